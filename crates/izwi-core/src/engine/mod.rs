//! The engine: one model, its queues, its KV blocks and its step loop, behind a handle that can be cloned.
//!
//! [`Engine`] holds channels and immutable facts only; the state is owned by the loop in [`core`].

pub mod arbiter;
pub mod config;
mod conversation;
mod core;
mod error;
pub mod executor;
pub mod kv_cache;
pub mod metrics;
mod output;
pub mod reference;
pub mod request;
pub mod scheduler;
pub mod types;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

pub use arbiter::DeviceArbiter;
pub use config::{EngineCoreConfig, SchedulingPolicy};
pub use conversation::{Conversation, ConversationLimits};
pub use core::{EngineState, EngineStatus};
pub use error::{EngineError, Result};
pub use executor::{DeviceChoice, ExecutorProfile, ModelExecutor};
pub use executor::{Emission, Message, Segment, Turn, Word};
pub use kv_cache::KVCacheStats;
pub use metrics::{BenchmarkResult, MetricsSnapshot, RequestTimer};
pub use reference::{ReferenceRecording, VoiceReference};
pub use request::{AudioInput, ChatOptions, EngineCoreRequest, TranscriptionOptions};
pub use types::{
    AudioOutput, EngineOutput, FinishReason, GenerationParams, Priority, RequestId, RequestStats, SequenceId,
    StreamingOutput, TaskType, Transcript,
};

use self::core::{AbortCause, Admission, Command, EngineCore};
use output::Delivery;
use request::RequestProcessor;

/// A handle to one engine. Clones address the same engine; when the last one is gone the engine finishes what is
/// under way and ends.
///
/// A new engine only queues. [`Engine::generate`], [`Engine::generate_streaming`] and [`Engine::run`] set it going;
/// [`Engine::step`] runs it by hand.
#[derive(Debug, Clone)]
pub struct Engine {
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<EngineStatus>,
    processor: RequestProcessor,
    profile: Arc<ExecutorProfile>,
    config: Arc<EngineCoreConfig>,
    /// Bounds how many requests are prepared at once, so that preparation does not crowd out execution.
    preparing: Arc<Semaphore>,
    /// Bounds the recordings held at once; a permit is a second.
    open_audio: Arc<Semaphore>,
}

impl Engine {
    /// Loads the configured model and starts its loop.
    ///
    /// Must be called within a tokio runtime. Loading blocks: call it from a blocking thread for large models.
    ///
    /// # Errors
    /// The configuration is unusable, or the model is unknown, not pulled or does not load.
    pub fn new(config: EngineCoreConfig) -> Result<Self> {
        config.validate()?;
        let executor = executor::build_native(&config)?;
        Self::with_executor(config, executor)
    }

    /// Loads the configured model and starts its loop on a device that other engines share.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn sharing(config: EngineCoreConfig, arbiter: &Arc<DeviceArbiter>) -> Result<Self> {
        config.validate()?;
        let executor = executor::build_native(&config)?;
        let executor = arbiter::ArbitratedExecutor::new(executor, Arc::clone(arbiter));
        Self::with_executor(config, Box::new(executor))
    }

    /// Starts a loop around any executor. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The configuration is unusable, or there is no runtime.
    pub fn with_executor(config: EngineCoreConfig, executor: Box<dyn ModelExecutor>) -> Result<Self> {
        config.validate()?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            EngineError::Load("an engine needs a tokio runtime; create it within one".to_owned())
        })?;
        let config = Arc::new(config);
        let profile = executor.profile();
        let processor = RequestProcessor::new(Arc::clone(&config), Arc::clone(&profile), executor.preparer());
        let (commands, receiver) = mpsc::unbounded_channel();
        let (publish, status) = watch::channel(EngineStatus::default());
        let core = EngineCore::new(Arc::clone(&config), executor, publish);
        runtime.spawn(core.run(receiver));
        let preparing = Arc::new(Semaphore::new(config.num_threads));
        let open_audio = Arc::new(Semaphore::new(permits(config.max_open_audio_duration) as usize));
        Ok(Self { commands, status, processor, profile, config, preparing, open_audio })
    }

    /// Static facts about the model.
    pub fn profile(&self) -> &ExecutorProfile {
        &self.profile
    }

    /// The settings the engine was made with.
    pub fn config(&self) -> &EngineCoreConfig {
        &self.config
    }

    /// Generates and waits for the whole result. Dropping the future aborts the request.
    ///
    /// # Errors
    /// The request is refused, fails or is aborted.
    pub async fn generate(&self, request: EngineCoreRequest) -> Result<EngineOutput> {
        let (reply, result) = oneshot::channel();
        self.submit(request, Delivery::Whole(reply)).await?;
        self.send(Command::Start)?;
        result.await.map_err(|_| self.ended())?
    }

    /// Generates in chunks. Dropping the receiver aborts the request within one step.
    ///
    /// The last chunk has `is_final` and carries the statistics; a stream that ends without one was cut off.
    ///
    /// # Errors
    /// The request is refused.
    pub async fn generate_streaming(
        &self,
        request: EngineCoreRequest,
    ) -> Result<(RequestId, mpsc::Receiver<StreamingOutput>)> {
        let (sender, receiver) = mpsc::channel(self.config.stream_buffer_chunks);
        let id = self.submit(request.with_streaming(true), Delivery::Stream(sender)).await?;
        self.send(Command::Start)?;
        Ok((id, receiver))
    }

    /// Queues a request. Its result comes from [`Engine::step`], or from [`Engine::take_output`] once it is done.
    ///
    /// # Errors
    /// The request is refused.
    pub async fn add_request(&self, request: EngineCoreRequest) -> Result<RequestId> {
        self.submit(request, Delivery::Kept).await
    }

    /// Aborts a request, at the latest after the step in flight. False if it is not known (any more).
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn abort_request(&self, id: &RequestId) -> Result<bool> {
        self.ask(|reply| Command::Abort(id.clone(), AbortCause::Client, reply)).await
    }

    /// Ends a request whose listener spoke over it, at the latest after the step in flight. False if it is not known
    /// (any more).
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn interrupt_request(&self, id: &RequestId) -> Result<bool> {
        self.ask(|reply| Command::Abort(id.clone(), AbortCause::Interrupt, reply)).await
    }

    /// Makes a voice pack of a recording: a safetensors file, to be given as [`VoiceReference::Pack`].
    ///
    /// # Errors
    /// The model clones no voices, or the recording cannot be used; the error names the field.
    pub async fn make_voice(&self, recording: ReferenceRecording) -> Result<Vec<u8>> {
        self.beside(move |processor| processor.make_voice(recording)).await
    }

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// It does not, or the model clones no voices; the error names the remedy.
    pub async fn check_voice(&self, pack: Arc<[u8]>) -> Result<()> {
        self.beside(move |processor| processor.check_voice(&pack)).await
    }

    /// What a user says in a turn of a conversation, as the model hears it: mono samples, for [`Message::Recording`].
    ///
    /// # Errors
    /// It cannot be decoded, or is longer than a turn may be.
    pub async fn hear(&self, audio: AudioInput) -> Result<Arc<[f32]>> {
        self.beside(move |processor| processor.hear(audio)).await
    }

    /// Takes the result of a request that was queued with [`Engine::add_request`], if it is done. The last 256 are kept.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn take_output(&self, id: &RequestId) -> Result<Option<EngineOutput>> {
        self.ask(|reply| Command::TakeOutput(id.clone(), reply)).await
    }

    /// Runs one step and returns the requests it finished; on an engine that runs, waits for its next step.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn step(&self) -> Result<Vec<EngineOutput>> {
        self.ask(Command::Step).await?
    }

    /// Sets the engine going and returns when it has stopped.
    ///
    /// # Errors
    /// The engine ended by a failure.
    pub async fn run(&self) -> Result<()> {
        self.ask(Command::AwaitEnd).await?
    }

    /// Stops after the step in flight; requests that are not done are cancelled.
    pub fn stop(&self) {
        // An engine that has ended cannot be told to, and need not be.
        let _ = self.commands.send(Command::Stop);
    }

    /// Stops stepping after the step in flight, until [`Engine::resume`]; requests are taken and wait.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn pause(&self) -> Result<()> {
        self.send(Command::Pause)
    }

    /// Goes on stepping.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn resume(&self) -> Result<()> {
        self.send(Command::Resume)
    }

    /// Refuses new requests and waits until the present ones are done and delivered.
    ///
    /// # Errors
    /// The engine stopped before that.
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

    /// Statistics over the last 1,000 requests, and totals; zeros from an engine that has stopped.
    pub async fn metrics(&self) -> MetricsSnapshot {
        self.try_metrics().await.unwrap_or_default()
    }

    /// Requests that wait for admission.
    pub async fn pending_requests(&self) -> usize {
        self.status().pending
    }

    /// Requests that were admitted.
    pub async fn running_requests(&self) -> usize {
        self.status().running
    }

    /// The KV books.
    pub fn kv_cache_stats(&self) -> KVCacheStats {
        self.status().kv
    }

    /// Checks the KV books against each other.
    ///
    /// # Errors
    /// The outer error: the engine has stopped. The inner: what does not balance.
    pub async fn check_books(&self) -> Result<std::result::Result<(), String>> {
        self.ask(Command::CheckBooks).await
    }

    /// The loop as it was after its last step or command.
    pub fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Waits until the engine is ready.
    ///
    /// # Errors
    /// It ended instead.
    pub async fn ready(&self) -> Result<()> {
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| status.state != EngineState::Starting).await;
        match settled.map(|status| status.state.clone()) {
            Ok(EngineState::Ready | EngineState::Draining | EngineState::Starting) => Ok(()),
            Ok(EngineState::Stopped | EngineState::Dead(_)) | Err(_) => Err(self.ended()),
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
        let admissible = self.beside(move |processor| processor.process(request)).await?;
        let audio_share = Some(admissible.open_audio).filter(|length| !length.is_zero());
        let audio_share = audio_share.map(|length| self.share_of(length)).transpose()?;
        let admission = Box::new(Admission { admissible, delivery, accepted_at, audio_share });
        self.ask(|reply| Command::Add(admission, reply)).await?
    }

    /// Runs costly work of the processor on the blocking pool, once there is a place for it.
    async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RequestProcessor) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let slot = Arc::clone(&self.preparing).acquire_owned().await.map_err(|_| self.ended())?;
        let processor = self.processor.clone();
        let running = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            work(&processor)
        });
        let panicked = |panic| EngineError::Execution(format!("preparing the request failed: {panic}"));
        running.await.map_err(panicked)?
    }

    /// A recording's share of what may be open at once.
    fn share_of(&self, length: Duration) -> Result<OwnedSemaphorePermit> {
        let limit = self.config.max_open_audio_duration;
        let share = Arc::clone(&self.open_audio).try_acquire_many_owned(permits(length.min(limit)));
        share.map_err(|_| EngineError::AudioOverload { limit })
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| self.ended())
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| self.ended())
    }

    fn ended(&self) -> EngineError {
        match self.status().state {
            EngineState::Dead(reason) => EngineError::Stopped(reason),
            _ => EngineError::Stopped("it was told to".to_owned()),
        }
    }
}

/// Seconds of audio, rounded up, as permits; a semaphore counts no further than this on any platform.
fn permits(length: Duration) -> u32 {
    const MOST: f64 = (1u32 << 28) as f64;
    length.as_secs_f64().ceil().min(MOST) as u32
}
