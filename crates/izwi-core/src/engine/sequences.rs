//! The sequences of an engine, one record each: its place in the queues, its input, and what its client gets.
//!
//! Delivery never blocks: a slow receiver fills its channel, further chunks stay in the record, and the caller pauses that
//! sequence until [`Sequences::next_event`] reports that the client caught up. Must not know queues or blocks.

mod emission_queue;
mod ending;
mod events;
mod open_input;
mod session;
mod stall_clock;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use izwi_types::{Prepared, StepOutput, Work};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::events::Permits;
pub(super) use self::events::{DeliveryEvent, Watch};
use self::open_input::Opened;
use self::session::{Content, Session};
use super::error::{EngineError, Result};
use super::executor::NewSequenceData;
use super::memory::MemoryShare;
use super::metrics::MetricsCollector;
use super::request::{PreparedRequest, RequestInfo};
use super::scheduler::Workload;
use super::types::{
    EngineOutput, FinishReason, PlaybackReport, Prediction, RequestId, SequenceId, StreamingOutput,
};

/// Destination of a request's result.
#[derive(Debug)]
pub(super) enum Delivery {
    /// The whole result.
    Whole(oneshot::Sender<Result<EngineOutput>>),
    /// Chunks.
    Stream(mpsc::Sender<StreamingOutput>),
    /// The step in which it ends returns it.
    Step,
}

/// The client of a request.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) delivery: Delivery,
    pub(super) accepted_at: Instant,
    /// The memory of the request's recordings, given back once all is delivered.
    pub(super) _recordings: MemoryShare,
}

/// A prepared request and its client.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) request: PreparedRequest,
    pub(super) client: Client,
}

impl Admission {
    /// Whether somebody listens to what it generates.
    pub(super) fn is_live_stream(&self) -> bool {
        let RequestInfo { live, task, .. } = self.request.info;
        live && !task.listens() && matches!(self.client.delivery, Delivery::Stream(_))
    }
}

/// Why a request is aborted, as `izwi_aborts_total` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AbortCause {
    Client,
    Interrupt,
    Disconnect,
    SlowClient,
    Shutdown,
}

impl AbortCause {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Interrupt => "interrupt",
            Self::Disconnect => "disconnect",
            Self::SlowClient => "slow_client",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Result of pushing output to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// Delivered or collected; `is_new` if the output brings what the client does not have.
    Open { is_new: bool },
    /// The client's channel is full: pause the sequence.
    Blocked,
    /// The client disconnected: abort the request.
    Disconnected,
}

/// What an engine keeps of a request from its admission until all of its result is delivered.
struct Sequence {
    queue_state: QueueState,
    /// Its input, while more may come.
    input: Option<Opened>,
    session: Session,
}

/// Where a sequence is: in the queues, or past them.
enum QueueState {
    /// In the queues; the executor holds its state if a plan has contained it.
    Queued { prepared: Prepared, is_planned: bool },
    /// It has left the queues. Delivery may continue.
    Left,
}

/// All sequences.
pub(super) struct Sequences {
    sample_rate: u32,
    /// In order of their arrival, so that simulations repeat.
    by_id: BTreeMap<SequenceId, Sequence>,
    last_id: u64,
    permits: Permits,
    /// When the warm-up ended: before, no request is computed.
    ready_at: Instant,
}

impl Sequences {
    pub(super) fn new(sample_rate: u32) -> Self {
        let (by_id, permits, ready_at) = (BTreeMap::new(), FuturesUnordered::new(), Instant::now());
        Self { sample_rate, by_id, last_id: 0, permits, ready_at }
    }

    /// Records the end of the warm-up.
    pub(super) fn set_ready(&mut self) {
        self.ready_at = Instant::now();
    }

    /// Adds a request, `live` if a client plays it while it is generated. Returns its sequence and the work of it.
    pub(super) fn add(&mut self, admission: Admission, live: bool) -> (SequenceId, Workload) {
        let Admission { request: PreparedRequest { mut info, prepared, work, .. }, client } = admission;
        self.last_id += 1;
        let id = SequenceId(self.last_id);
        let input = info.open_input.take().map(Opened::new);
        let session = Session::new(info, client, live);
        let queue_state = QueueState::Queued { prepared, is_planned: false };
        self.by_id.insert(id, Sequence { queue_state, input, session });
        (id, work)
    }

    /// The sequence of a request that is in the queues.
    pub(super) fn find(&self, request: &RequestId) -> Option<SequenceId> {
        self.queued().find(|(_, session)| session.request.id == *request).map(|(id, _)| id)
    }

    /// The sequences in the queues.
    pub(super) fn ids(&self) -> Vec<SequenceId> {
        self.queued().map(|(id, _)| id).collect()
    }

    /// Whether a sequence is in the queues.
    pub(super) fn is_queued(&self, sequence: SequenceId) -> bool {
        self.by_id.get(&sequence).is_some_and(|sequence| !matches!(sequence.queue_state, QueueState::Left))
    }

    /// Takes a sequence from the queues: delivery alone continues. Returns whether the executor holds its state.
    pub(super) fn leave(&mut self, sequence: SequenceId) -> bool {
        let Some(sequence) = self.by_id.get_mut(&sequence) else { return false };
        sequence.input = None;
        let state = std::mem::replace(&mut sequence.queue_state, QueueState::Left);
        matches!(state, QueueState::Queued { is_planned: true, .. })
    }

    /// A sequence starts again, since its step failed: its client gets nothing twice. Returns the work of it.
    pub(super) fn restart(&mut self, sequence: SequenceId) -> Option<Work> {
        let Sequence { queue_state, session, .. } = self.by_id.get_mut(&sequence)?;
        let QueueState::Queued { prepared, is_planned } = queue_state else { return None };
        *is_planned = false;
        session.restart();
        Some(prepared.work.clone())
    }

    /// A plan contains a sequence. Returns what the executor must know of one that no plan has contained yet.
    pub(super) fn planned(
        &mut self,
        sequence: SequenceId,
        metrics: &MetricsCollector,
    ) -> Option<NewSequenceData> {
        let Sequence { queue_state, session, .. } = self.by_id.get_mut(&sequence)?;
        if session.first_scheduled_at.is_none() {
            session.first_scheduled_at = Some(Instant::now());
            metrics.first_scheduled(session.client.accepted_at.elapsed());
        }
        let QueueState::Queued { prepared, is_planned } = queue_state else { return None };
        let is_new = !std::mem::replace(is_planned, true);
        is_new.then(|| NewSequenceData { sequence, prepared: prepared.clone() })
    }

    /// The most tokens of a pass.
    pub(super) fn max_tokens(&self, sequence: SequenceId) -> usize {
        self.session(sequence).map_or(usize::MAX, |session| session.request.max_tokens)
    }

    /// Whether its audio is as long as its text takes, without silence that was asked for.
    pub(super) fn is_all_speech(&self, sequence: SequenceId) -> bool {
        self.session(sequence).is_some_and(|session| !session.request.has_silence)
    }

    /// Sets the tokens of the prompt of its first pass.
    pub(super) fn set_prompt_tokens(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(session) = self.session_mut(sequence) {
            session.request.prompt_tokens = tokens;
        }
    }

    /// Adds the prompt of another pass.
    pub(super) fn add_prompt_tokens(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(session) = self.session_mut(sequence) {
            session.request.prompt_tokens += tokens;
        }
    }

    /// Whether nothing is left to compute or to deliver.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a sequence's output of one step.
    pub(super) fn push(
        &mut self,
        sequence: SequenceId,
        output: StepOutput,
        metrics: &MetricsCollector,
    ) -> Pushed {
        let sample_rate = self.sample_rate;
        let Some(session) = self.session_mut(sequence) else { return Pushed::Disconnected };
        let content = session.count(&output);
        if content != Content::Again {
            session.push(output, sample_rate, metrics);
        }
        match self.send(sequence, metrics) {
            Pushed::Open { .. } => Pushed::Open { is_new: content == Content::New },
            other => other,
        }
    }

    /// Makes the rest of a result and its statistics. Returns the result of [`Delivery::Step`].
    pub(super) fn finish(
        &mut self,
        sequence: SequenceId,
        reason: FinishReason,
        error: Option<EngineError>,
        metrics: &mut MetricsCollector,
    ) -> Option<EngineOutput> {
        let (sample_rate, ready_at) = (self.sample_rate, self.ready_at);
        let session = self.session_mut(sequence)?;
        let stats = session.stats(reason, error, sample_rate, ready_at);
        metrics.request_finished(session.request.task, &stats);
        session.ended = true;
        if let Delivery::Stream(_) = session.client.delivery {
            session.end_stream(stats, sample_rate, metrics);
            self.send(sequence, metrics);
            return None;
        }
        self.by_id.remove(&sequence)?.session.end_whole(stats, sample_rate)
    }

    /// When playback of the delivered audio of a live stream ends; `None` before its first chunk, and in a pause.
    pub(super) fn playback_end(&self, sequence: SequenceId) -> Option<Instant> {
        self.session(sequence).filter(|session| session.live && !session.is_paused)?.playback.end()
    }

    /// The live streams whose first chunk has left, and when playback of their delivered audio ends.
    pub(super) fn playing(&self) -> impl Iterator<Item = (SequenceId, Instant)> {
        let live = self.sessions().filter(|(_, session)| session.plays());
        live.filter_map(|(sequence, session)| Some((sequence, session.playback.end()?)))
    }

    /// Whether the first chunk of a live stream has not left.
    pub(super) fn is_beginning(&self, sequence: SequenceId) -> bool {
        self.session(sequence).is_some_and(|session| session.plays() && session.first_audio_at.is_none())
    }

    /// Sets what is predicted for a live stream, and the samples that are generated before its first chunk leaves.
    pub(super) fn set_forecast(
        &mut self,
        sequence: SequenceId,
        prediction: Option<Prediction>,
        head_start_samples: u64,
    ) {
        if let Some(session) = self.session_mut(sequence) {
            (session.prediction, session.head_start_samples) = (prediction, head_start_samples);
            if let Some((chunk, _)) = session.pending.front_mut() {
                chunk.prediction = prediction;
            }
        }
    }

    /// The time to the first audio that was predicted for a live stream; without a prediction that so far.
    pub(super) fn predicted_first_audio(&self, sequence: SequenceId) -> Duration {
        self.session(sequence).map_or(Duration::ZERO, |session| {
            let elapsed = session.client.accepted_at.elapsed();
            session.prediction.map_or(elapsed, |prediction| prediction.first_audio)
        })
    }

    /// Samples generated so far.
    pub(super) fn generated_samples(&self, sequence: SequenceId) -> u64 {
        self.session(sequence).map_or(0, Session::samples)
    }

    /// Samples of a chunk of a stream, and those that are missing until its next chunk leaves.
    pub(super) fn chunk_progress(&self, sequence: SequenceId) -> Option<(u64, u64)> {
        Some(self.session(sequence)?.chunker.progress())
    }

    /// The streams that play and wait for neither client nor input, and when each has been silent in gaps for `tolerated` in all
    /// if it gets no audio until then.
    pub(super) fn silent_for(&self, tolerated: Duration) -> impl Iterator<Item = (SequenceId, Instant)> {
        let playing =
            self.sessions().filter(|(_, session)| session.plays() && !session.is_paused && !session.ended);
        let playing = playing.filter(|(_, session)| !session.waits());
        playing.filter_map(move |(id, session)| {
            Some((id, session.playback.end()? + tolerated.saturating_sub(session.playback.underrun())))
        })
    }

    /// Whether a stream has audio that its client has not taken, or waits for input.
    pub(super) fn is_waited_for(&self, sequence: SequenceId) -> bool {
        self.session(sequence).is_some_and(Session::waits)
    }

    /// Whether the last chunk of a stream ends in silence.
    pub(super) fn ends_quietly(&self, sequence: SequenceId) -> bool {
        self.session(sequence).is_some_and(|session| session.ends_quietly)
    }

    /// Tells the client of a stream that it pauses for about `length`. It gets no audio before [`Self::go_on`].
    pub(super) fn pause(&mut self, sequence: SequenceId, length: Duration, metrics: &MetricsCollector) {
        let sample_rate = self.sample_rate;
        let Some(session) = self.session_mut(sequence) else { return };
        session.tell_pause(length, sample_rate, metrics);
        // One that has gone is found with its next output.
        self.send(sequence, metrics);
        if let Some(session) = self.session_mut(sequence) {
            (session.is_paused, session.head_start_samples) = (true, u64::MAX);
        }
    }

    /// A stream that paused goes on, once it has `head_start_samples` more. Returns whether it did pause.
    pub(super) fn go_on(&mut self, sequence: SequenceId, head_start_samples: u64) -> bool {
        let paused = self.session_mut(sequence).filter(|session| session.is_paused);
        paused.is_some_and(|session| {
            session.head_start_samples = session.samples().saturating_add(head_start_samples);
            true
        })
    }

    /// The reader of a stream that had stopped plays on, with a chunk of audio that waited for it.
    pub(super) fn resume_playback(&mut self, sequence: SequenceId, metrics: &MetricsCollector) {
        let sample_rate = self.sample_rate;
        let Some(session) = self.session_mut(sequence).filter(|session| !session.is_paused) else { return };
        let chunk = super::types::audio_duration(session.chunker.progress().0, sample_rate);
        session.playback.resume(chunk, Instant::now()).into_iter().for_each(|gap| metrics.underrun(gap));
    }

    /// Corrects the playback clock of a stream by what its client told at `at`.
    pub(super) fn acknowledge(
        &mut self,
        sequence: SequenceId,
        report: PlaybackReport,
        at: Instant,
        metrics: &MetricsCollector,
    ) {
        // In a pause the clock stands.
        let session = self.session_mut(sequence).filter(|session| !session.is_paused);
        let gap = session.and_then(|session| session.playback.acknowledge(report, at));
        gap.into_iter().for_each(|gap| metrics.underrun(gap));
    }

    /// Sequences whose client disconnected.
    pub(super) fn disconnected(&self) -> Vec<SequenceId> {
        self.sessions().filter(|(_, session)| session.is_disconnected()).map(|(id, _)| id).collect()
    }

    /// Sequences whose client is `limit` behind real time.
    pub(super) fn stalled(&self, limit: Duration) -> Vec<SequenceId> {
        let now = Instant::now();
        let stalled = |session: &Session| session.stalls_at(limit).is_some_and(|at| at <= now);
        self.sessions().filter(|(_, session)| stalled(session)).map(|(id, _)| id).collect()
    }

    /// When the next client is `limit` behind real time, if it takes nothing until then.
    pub(super) fn next_stall(&self, limit: Duration) -> Option<Instant> {
        self.sessions().filter_map(|(_, session)| session.stalls_at(limit)).min()
    }

    /// Drops a request that another server did not take.
    pub(super) fn discard(&mut self, sequence: SequenceId) {
        self.by_id.remove(&sequence);
    }

    /// Ends a request that is aborted, as [`Self::finish`] does for a client that is still there.
    pub(super) fn abort(
        &mut self,
        sequence: SequenceId,
        cause: AbortCause,
        metrics: &mut MetricsCollector,
    ) -> Option<EngineOutput> {
        tracing::info!(sequence = sequence.0, cause = cause.label(), "request aborted");
        metrics.aborted(cause.label());
        let reason = match cause {
            AbortCause::Client | AbortCause::Shutdown => FinishReason::Cancelled,
            AbortCause::Interrupt => FinishReason::Interrupted,
            AbortCause::Disconnect | AbortCause::SlowClient => {
                self.abandon(sequence, cause == AbortCause::SlowClient, metrics);
                return None;
            }
        };
        self.finish(sequence, reason, None, metrics)
    }

    /// Drops a request whose client has gone or, `is_slow`, does not read. What was made of it is counted.
    fn abandon(&mut self, sequence: SequenceId, is_slow: bool, metrics: &mut MetricsCollector) {
        let Some(Sequence { session, .. }) = self.by_id.remove(&sequence) else { return };
        if !session.ended {
            let stats = session.stats(FinishReason::Cancelled, None, self.sample_rate, self.ready_at);
            metrics.request_finished(session.request.task, &stats);
        }
        if is_slow && session.plays() {
            metrics.stream_continuity(session.playback.underrun(), true);
        }
    }

    /// Whether the last chunk or the result of a sequence is still to be made.
    pub(super) fn is_open(&self, sequence: SequenceId) -> bool {
        self.session(sequence).is_some_and(|session| !session.ended)
    }

    fn queued(&self) -> impl Iterator<Item = (SequenceId, &Session)> {
        let queued =
            self.by_id.iter().filter(|(_, sequence)| !matches!(sequence.queue_state, QueueState::Left));
        queued.map(|(id, sequence)| (*id, &sequence.session))
    }

    fn sessions(&self) -> impl Iterator<Item = (SequenceId, &Session)> {
        self.by_id.iter().map(|(id, sequence)| (*id, &sequence.session))
    }

    fn session(&self, sequence: SequenceId) -> Option<&Session> {
        Some(&self.by_id.get(&sequence)?.session)
    }

    fn session_mut(&mut self, sequence: SequenceId) -> Option<&mut Session> {
        Some(&mut self.by_id.get_mut(&sequence)?.session)
    }

    /// Sends pending chunks until the client's channel is full; a permit then signals free capacity.
    fn send(&mut self, sequence: SequenceId, metrics: &MetricsCollector) -> Pushed {
        let Self { sample_rate, by_id, permits, .. } = self;
        let Some(Sequence { session, .. }) = by_id.get_mut(&sequence) else { return Pushed::Disconnected };
        let Delivery::Stream(channel) = &session.client.delivery else {
            return if session.is_disconnected() {
                Pushed::Disconnected
            } else {
                Pushed::Open { is_new: true }
            };
        };
        let channel = channel.clone();
        if session.holds_back() {
            return Pushed::Open { is_new: true };
        }
        while session.blocked_since.is_none()
            && let Some((chunk, made_at)) = session.pending.pop_front()
        {
            let (samples, playing_time) = (chunk.samples.len(), session.playing_time(&chunk));
            match channel.try_send(chunk) {
                Ok(()) => {
                    session.leaves(samples, made_at, *sample_rate, metrics);
                    session.stall_clock.take(playing_time);
                }
                Err(TrySendError::Closed(_)) => return Pushed::Disconnected,
                Err(TrySendError::Full(chunk)) => {
                    session.pending.push_front((chunk, made_at));
                    session.blocked_since = Some(Instant::now());
                    let channel = channel.clone();
                    let wait = async move { (sequence, channel.reserve_owned().await.map_err(drop)) };
                    permits.push(Box::pin(wait));
                }
            }
        }
        if session.blocked_since.is_some() {
            return Pushed::Blocked;
        }
        if session.ended {
            by_id.remove(&sequence);
        }
        Pushed::Open { is_new: true }
    }
}
