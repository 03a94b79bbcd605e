//! The engine: one model, its queues, its KV blocks and its step loop, behind a cloneable handle.
//!
//! [`Engine`] holds channels and immutable facts; the step loop in [`core`] owns the state. Must not know tensors, wire
//! formats or HTTP.

pub mod blocks;
pub mod capacity;
mod cloning;
pub mod config;
mod conversation;
mod core;
mod error;
pub mod executor;
pub mod known_speakers;
pub mod kv_cache;
mod kv_swap;
pub mod leases;
mod load_turn;
mod memory;
pub mod metrics;
pub mod qos;
pub mod remote;
mod replicas;
pub mod request;
pub mod scheduler;
mod sequences;
pub mod speakers;
mod start;
#[cfg(test)]
mod tests;
pub mod types;

use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

pub use config::EngineCoreConfig;
pub use conversation::{Conversation, ConversationLimits};
pub use core::{EngineState, EngineStatus};
pub use error::{EngineError, RemoteError, Result};
pub use executor::{ExecutorProfile, ModelExecutor, Said, Writer, WriterOptions, words_of};
pub use izwi_types::{
    DeviceChoice, Emission, GenerationParams, LiveWindow, Message, Precision, SamplingParams, Segment,
    SpeechOptions, SpokenWord, Task, Tool, ToolCall, ToolChoice, Transcript, TranscriptionOptions, Turn,
    Voice, Word,
};
pub use kv_cache::KVCacheStats;
pub use memory::{MemoryBudget, MemoryFull, MemoryShare};
pub use metrics::MetricsSnapshot;
pub use qos::arbiter::{DeviceArbiter, DeviceArbiters};
pub use remote::{RemoteModel, UpstreamStatus};
pub use replicas::ReplicaStatus;
pub use request::{
    AudioInput, AudioStream, ChatOptions, EngineCoreRequest, ReferenceAudio, TextInput, VoiceInput,
    check_lexicon, ipa_of, lexicon_as_pls, read_lexicon,
};
pub use scheduler::SchedulingPolicy;
pub use types::{
    AudioOutput, EngineOutput, FinishReason, PlaybackReport, Prediction, Priority, RequestId, RequestStats,
    SequenceId, StreamingOutput,
};

use self::cloning::CloningTime;
use self::core::{Command, Refused};
use self::executor::with_yields;
use self::qos::admission::StreamRate;
use self::qos::arbiter::{Member, SharedTurn};
use self::qos::cost::CostModel;
use self::types::audio_duration;
use sequences::{AbortCause, Admission, Client, Delivery};

use replicas::Replica;
use request::{Abandoned, AudioIntake, RequestProcessor};

/// A handle to an engine. Clones share the engine; after the last one is dropped the engine finishes open requests and
/// ends.
///
/// A new engine only queues requests. [`Engine::generate`], [`Engine::generate_streaming`] and [`Engine::run`] start the
/// step loop; [`Engine::step`] runs one step.
///
/// An engine that runs in the background:
///
/// ```
/// # use std::sync::Arc;
/// # use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
/// # use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
/// # #[tokio::main]
/// # async fn main() -> izwi_core::engine::Result<()> {
/// # let config = EngineCoreConfig::default();
/// # let executor = SimulatedExecutor::new(&config, SimulatedModel::default());
/// # let engine = Engine::with_executor(config, Box::new(executor))?;
/// # let (request1, request2) = (EngineCoreRequest::tts("One."), EngineCoreRequest::tts("Two."));
/// // Start engine in background
/// let engine = Arc::new(engine);
/// let engine_clone = engine.clone();
///
/// tokio::spawn(async move {
///     engine_clone.run().await.unwrap();
/// });
///
/// // Add requests
/// engine.add_request(request1).await?;
/// engine.add_request(request2).await?;
///
/// // Check scheduler state
/// println!("Waiting: {}", engine.pending_requests().await);
/// println!("Running: {}", engine.running_requests().await);
///
/// // Stop engine
/// engine.stop();
/// # Ok(())
/// # }
/// ```
///
/// One that its owner steps, and what it tells of itself:
///
/// ```
/// # use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
/// # use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
/// # #[tokio::main]
/// # async fn main() -> izwi_core::engine::Result<()> {
/// # let config = EngineCoreConfig::default();
/// # let executor = SimulatedExecutor::new(&config, SimulatedModel::default());
/// # let engine = Engine::with_executor(config, Box::new(executor))?;
/// # engine.add_request(EngineCoreRequest::tts("One.")).await?;
/// loop {
///     let outputs = engine.step().await?;
///     println!("Step completed: {} outputs", outputs.len());
/// #   if !outputs.is_empty() { break }
/// }
///
/// let snapshot = engine.metrics().await;
/// println!("Average RTF: {:.3}", snapshot.avg_rtf);
/// println!("p99 Latency: {:.1}ms", snapshot.p99_latency_ms);
/// println!("Throughput: {:.1} tokens/sec", snapshot.avg_tokens_per_sec);
/// println!("{:#?}", snapshot);
/// # assert_eq!(snapshot.total_requests, 1);
///
/// let stats = engine.kv_cache_stats();
/// println!("Memory used: {} MB", stats.memory_used_bytes / 1_000_000);
/// println!("Utilization: {:.1}%", stats.utilization() * 100.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Engine {
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<EngineStatus>,
    processor: RequestProcessor,
    profile: Arc<ExecutorProfile>,
    config: Arc<EngineCoreConfig>,
    /// Limits concurrent preparations, so that they leave processors to execution.
    preparing: Arc<Semaphore>,
    /// This engine's place on the device, for work outside of steps.
    device: Arc<Member>,
    /// Time of the networks that clone a voice.
    cloning: Arc<CloningTime>,
    place: Place,
}

/// What runs behind a handle.
#[derive(Clone)]
enum Place {
    Device,
    Devices(Arc<[Replica]>),
    Servers(Arc<dyn RemoteModel>),
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status().fmt(f)
    }
}

impl Place {
    fn status(&self) -> Placement {
        match self {
            Self::Device => Placement::Local,
            Self::Devices(replicas) => Placement::Replicated(replicas.iter().map(Replica::status).collect()),
            Self::Servers(model) => Placement::Remote(model.upstreams()),
        }
    }
}

/// Where the model of an engine runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Placement {
    /// On one device of this machine.
    Local,
    /// On several devices of this machine.
    Replicated(Vec<ReplicaStatus>),
    /// On these servers.
    Remote(Vec<UpstreamStatus>),
}

impl Engine {
    /// Where the model runs, and the state of what runs it.
    pub fn placement(&self) -> Placement {
        self.place.status()
    }

    /// Static facts about the model; with several devices those of the first replica, with the names of all devices and
    /// the memory of all replicas.
    pub fn profile(&self) -> &ExecutorProfile {
        &self.profile
    }

    /// The engine's settings.
    pub fn config(&self) -> &EngineCoreConfig {
        &self.config
    }

    /// Generates and returns the whole result. Dropping the future aborts the request.
    ///
    /// # Errors
    /// The request is rejected, fails or is aborted.
    pub async fn generate(&self, request: EngineCoreRequest) -> Result<EngineOutput> {
        let (reply, result) = oneshot::channel();
        self.submit(request, Delivery::Whole(reply)).await?;
        result.await.map_err(|_| self.ended_error())?
    }

    /// Generates in chunks. Dropping the receiver aborts the request within one step.
    ///
    /// The last chunk has `is_final` set and carries the statistics; a stream without it was cut off.
    ///
    /// # Errors
    /// The request is rejected.
    pub async fn generate_streaming(
        &self,
        request: EngineCoreRequest,
    ) -> Result<(RequestId, mpsc::Receiver<StreamingOutput>)> {
        let (sender, receiver) = mpsc::channel(self.config.stream_buffer_chunks);
        let id = self.submit(request, Delivery::Stream(sender)).await?;
        Ok((id, receiver))
    }

    /// Queues a request. The [`Engine::step`] in which it ends returns its result.
    ///
    /// # Errors
    /// The request is rejected.
    pub async fn add_request(&self, request: EngineCoreRequest) -> Result<RequestId> {
        self.submit(request, Delivery::Step).await
    }

    /// Aborts a request, at the latest after the in-flight step. Returns whether the request was open.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn abort_request(&self, id: &RequestId) -> Result<bool> {
        self.ask(|reply| Command::Abort(id.clone(), AbortCause::Client, reply)).await
    }

    /// Ends a request that the user interrupted, at the latest after the in-flight step. Returns whether the request was
    /// open.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn interrupt_request(&self, id: &RequestId) -> Result<bool> {
        self.ask(|reply| Command::Abort(id.clone(), AbortCause::Interrupt, reply)).await
    }

    /// Corrects the playback clock of a stream, and counts the gaps that its client tells. Without effect on a request that
    /// has ended.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn playback_ack(&self, id: &RequestId, report: PlaybackReport) -> Result<()> {
        self.send(Command::PlaybackAck(id.clone(), report, Instant::now()))
    }

    /// Makes a voice pack of a recording: a safetensors file, for [`VoiceInput::Pack`].
    ///
    /// # Errors
    /// The model does not support voice cloning, or the recording is invalid; the error names the field.
    pub async fn make_voice(&self, recording: ReferenceAudio) -> Result<Vec<u8>> {
        let read = move |processor: &RequestProcessor, mut intake: AudioIntake| {
            Ok((processor.read_voice(recording, &mut intake)?, intake))
        };
        let (recording, share) = self.prepare(read).await?;
        let length = audio_duration(recording.samples.len() as u64, self.profile.info.sample_rate_hz);
        let work = move |processor: &RequestProcessor| {
            let _share = share;
            processor.make_voice(&recording)
        };
        self.clone_voice(length, work).await
    }

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// It does not, or the model does not support voice cloning; the error names the remedy.
    pub async fn check_voice(&self, pack: Arc<[u8]>) -> Result<()> {
        self.prepare(move |processor, _| processor.check_voice(&pack)).await
    }

    /// Decodes the recording of a user's message to mono samples at the model's input rate, for [`Message::Recording`].
    ///
    /// # Errors
    /// The recording cannot be decoded or is longer than `max_turn_duration`; or the recordings take all of
    /// [`EngineCoreConfig::memory`].
    pub async fn decode_message(&self, audio: AudioInput) -> Result<Arc<[f32]>> {
        let memory = self.config.memory.clone();
        let decode = move |processor: &RequestProcessor, mut intake: AudioIntake| {
            let samples = processor.decode_message(audio, &mut intake)?;
            drop(intake);
            memory.keep(&samples)?;
            Ok(samples)
        };
        self.prepare(decode).await
    }

    /// Runs one step, or awaits the next step of a running engine, and returns the results of finished requests.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn step(&self) -> Result<Vec<EngineOutput>> {
        self.ask(Command::Step).await?
    }

    /// Starts the step loop and returns when the engine has stopped.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn run(&self) -> Result<()> {
        self.ask(Command::AwaitEnd).await?
    }

    /// Stops after the in-flight step and cancels open requests.
    pub fn stop(&self) {
        // A stopped engine has no receiver.
        let _ = self.commands.send(Command::Stop);
    }

    /// Pauses after the in-flight step, until [`Engine::resume`]. New requests are queued.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn pause(&self) -> Result<()> {
        self.send(Command::Pause)
    }

    /// Resumes a paused engine.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn resume(&self) -> Result<()> {
        self.send(Command::Resume)
    }

    /// Rejects new requests and waits until the open ones are finished and delivered.
    ///
    /// # Errors
    /// The engine stopped earlier.
    pub async fn drain(&self) -> Result<()> {
        self.ask(Command::Drain).await
    }

    /// Statistics over the last 1,000 requests, and totals.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn try_metrics(&self) -> Result<MetricsSnapshot> {
        self.ask(Command::Metrics).await
    }

    /// What the engine has learned: the time of its steps, and the work and audio of a step of one stream.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn learned(&self) -> Result<(CostModel, StreamRate)> {
        self.ask(Command::Learned).await
    }

    /// Statistics over the last 1,000 requests, and totals; zeros after the engine stopped.
    pub async fn metrics(&self) -> MetricsSnapshot {
        self.try_metrics().await.unwrap_or_default()
    }

    /// Requests waiting for admission. The future is ready at once.
    pub fn pending_requests(&self) -> Ready<usize> {
        ready(self.status().pending)
    }

    /// Requests running. The future is ready at once.
    pub fn running_requests(&self) -> Ready<usize> {
        ready(self.status().running)
    }

    /// Block accounting of the KV cache.
    pub fn kv_cache_stats(&self) -> KVCacheStats {
        self.status().kv
    }

    /// Checks the invariants of the block accounting.
    ///
    /// # Errors
    /// Outer: the engine has stopped. Inner: the violated invariant.
    pub async fn check_invariants(&self) -> Result<std::result::Result<(), String>> {
        self.ask(Command::CheckInvariants).await
    }

    /// Status after the last step or command.
    pub fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Waits until the engine is ready.
    ///
    /// # Errors
    /// The engine stopped or failed.
    pub async fn ready(&self) -> Result<()> {
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| status.state != EngineState::Starting).await;
        match settled.map(|status| status.state.clone()) {
            Ok(EngineState::Ready | EngineState::Draining | EngineState::Starting) => Ok(()),
            Ok(EngineState::Stopped | EngineState::Dead(_)) | Err(_) => Err(self.ended_error()),
        }
    }

    /// Why the engine failed; `None` while it runs and after it was stopped.
    pub fn failure(&self) -> Option<String> {
        failure(&self.status)
    }

    /// Waits until the engine has ended. The result is as of [`Engine::failure`]. Does not keep the engine alive.
    pub fn ended(&self) -> impl Future<Output = Option<String>> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            let is_over =
                |status: &EngineStatus| matches!(status.state, EngineState::Stopped | EngineState::Dead(_));
            // An error means that the loop has ended.
            let _ = status.wait_for(is_over).await.map(drop);
            failure(&status)
        }
    }

    async fn submit(&self, request: EngineCoreRequest, delivery: Delivery) -> Result<RequestId> {
        let accepted_at = Instant::now();
        let id = request.id.clone();
        let result = self.prepare_and_add(request, delivery, accepted_at).await;
        if let Err(error) = &result {
            metrics::count_rejection(error.rejection_reason());
        }
        result.map(|()| id)
    }

    async fn prepare_and_add(
        &self,
        request: EngineCoreRequest,
        delivery: Delivery,
        accepted_at: Instant,
    ) -> Result<()> {
        // Before the input is decoded and tokenised.
        // A window of live audio is never refused for the streams that play: it waits for its turn.
        let is_live = request.live && !request.task_type.listens() && matches!(delivery, Delivery::Stream(_));
        let refuses_until = self.status.borrow().outlook.refuses_until.filter(|_| is_live);
        let retry_after =
            refuses_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        if !retry_after.is_zero() {
            return Err(EngineError::Saturated { retry_after });
        }
        let clones = matches!(request.reference, Some(VoiceInput::Recording(_)));
        let read = move |processor: &RequestProcessor, mut intake: AudioIntake| {
            Ok((processor.read(request, &mut intake)?, intake))
        };
        let (request, intake) = if clones {
            // Recordings are decoded before the device is taken.
            let ((info, input), intake) = self.prepare(read).await?;
            let length = info.recorded;
            (self.clone_voice(length, move |processor| processor.finish(info, &input)).await?, intake)
        } else {
            let process = move |processor: &RequestProcessor, intake: AudioIntake| {
                let ((info, input), intake) = read(processor, intake)?;
                Ok((processor.finish(info, &input)?, intake))
            };
            self.prepare(process).await?
        };
        if let Some(input) = &request.info.open_input {
            let (commands, id) = (self.commands.downgrade(), request.info.id.clone());
            let wake = move || {
                // An engine that has ended ends the request too.
                let _ = commands.upgrade().map(|commands| commands.send(Command::InputGrew(id.clone())));
            };
            input.attach(self.processor.preparer(), request.prepared.clone(), Box::new(wake))?;
        }
        if !matches!(delivery, Delivery::Step) {
            // Before it is added: a client that leaves before it knows that it was would stay in the queue.
            self.send(Command::Start)?;
        }
        let client = Client { delivery, accepted_at, _recordings: intake.into_share() };
        let admission = Box::new(Admission { request, client });
        let added = self.ask(|reply| Command::Add(admission, reply)).await?;
        added.map_err(|Refused { error, .. }| error)
    }

    /// Runs preparation work on the blocking pool, limited by `preparing`; in simulated time within the caller's task.
    /// Recordings are decoded into the intake, which ends the work once this future is dropped.
    async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RequestProcessor, AudioIntake) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let abandoned = Abandoned::default();
        let intake = AudioIntake::new(self.config.memory.share(), abandoned.clone());
        if self.processor.is_simulated() {
            return work(&self.processor, intake);
        }
        let slot = Arc::clone(&self.preparing).acquire_owned().await.map_err(|_| self.ended_error())?;
        let processor = self.processor.clone();
        let _waiting = abandoned.set_on_drop();
        blocking(move || {
            let _slot = slot;
            work(&processor, intake)
        })
        .await
    }

    /// Runs the networks that clone a voice of a recording of `length`, in a turn of the device, which lasts for as long as
    /// they compute, also where the caller leaves meanwhile. They take no place among the preparations: one that waits for
    /// the device would keep it from others, and one that waits for a place the device.
    async fn clone_voice<T: Send + 'static>(
        &self,
        length: Duration,
        work: impl FnOnce(&RequestProcessor) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = SharedTurn::new(&self.device, self.device.turn(self.cloning.turn(length)).await);
        let begun = Instant::now();
        let (processor, cloning) = (self.processor.clone(), Arc::clone(&self.cloning));
        let (yielding, device) = (turn.clone(), self.profile.device.clone());
        let ended = move |result| {
            cloning.observe(length, begun.elapsed(), turn.end());
            result
        };
        if self.processor.is_simulated() {
            tokio::time::sleep(self.processor.simulated_cloning(length)).await;
            return ended(work(&processor));
        }
        let work = move || with_yields(&device, move || yielding.block_at_yield_point(), || work(&processor));
        blocking(move || ended(work())).await
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| self.ended_error())
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| self.ended_error())
    }

    fn ended_error(&self) -> EngineError {
        match self.status().state {
            EngineState::Dead(reason) => EngineError::Stopped(reason),
            _ => EngineError::Stopped("stop was requested".to_owned()),
        }
    }
}

/// Runs preparation work on the blocking pool.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let panicked = |panic| EngineError::Execution(format!("preparing the request failed: {panic}"));
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// Why the loop behind `status` failed; `None` while it runs and after it was stopped.
fn failure(status: &watch::Receiver<EngineStatus>) -> Option<String> {
    // Before the state is read: the last state is published before the loop ends.
    let has_ended = status.has_changed().is_err();
    match &status.borrow().state {
        EngineState::Dead(reason) => Some(reason.clone()),
        EngineState::Stopped => None,
        _ if has_ended => Some("the step loop ended abnormally".to_owned()),
        _ => None,
    }
}
