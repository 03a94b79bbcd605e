//! Output: one session per request, with chunks and statistics, delivered without blocking.
//!
//! A slow receiver fills its channel; further chunks stay in its session, and the caller pauses that sequence until
//! [`OutputProcessor::next_event`] reports that the client caught up. Must not know queues or blocks.

mod emission_queue;
mod ending;
mod missing_text;
mod playback;
mod stall_clock;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use izwi_audio::chunk::{Chunk, ChunkLengths, Chunker};
use izwi_types::{Emission, Segment, SpokenWord, StepOutput, Task, TextNotes};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use self::emission_queue::EmissionQueue;
use self::playback::PlaybackClock;
pub(super) use self::playback::Underrun;
use self::stall_clock::StallClock;
use super::error::{EngineError, Result};
use super::metrics::MetricsCollector;
use super::types::{
    EngineOutput, FinishReason, Prediction, RequestId, RequestStats, SequenceId, StreamingOutput,
    audio_duration,
};

/// Destination of a request's result.
#[derive(Debug)]
pub(super) enum Delivery {
    /// The whole result.
    Whole(oneshot::Sender<Result<EngineOutput>>),
    /// Chunks.
    Stream(mpsc::Sender<StreamingOutput>),
    /// Kept for `take_output`.
    Kept,
}

/// Parameters of a new session.
#[derive(Debug)]
pub(super) struct SessionStart {
    pub(super) sequence: SequenceId,
    pub(super) request_id: RequestId,
    pub(super) task: Task,
    pub(super) delivery: Delivery,
    /// Whether somebody listens while it is generated.
    pub(super) live: bool,
    /// What was predicted for a live stream.
    pub(super) prediction: Option<Prediction>,
    /// Samples that are generated before the first chunk leaves.
    pub(super) head_start_samples: u64,
    pub(super) chunk_lengths: ChunkLengths,
    pub(super) prompt_tokens: usize,
    pub(super) seed: u64,
    /// What the model says otherwise than it is written.
    pub(super) notes: TextNotes,
    /// Duration of the recording, for ASR.
    pub(super) recording: Option<Duration>,
    /// The request's share of the open audio, released with the session.
    pub(super) _audio_share: Option<OwnedSemaphorePermit>,
    pub(super) accepted_at: Instant,
}

/// Result of pushing output to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// Delivered or collected.
    Open,
    /// The client's channel is full: pause the sequence.
    Blocked,
    /// The client disconnected: abort the request.
    Disconnected,
}

/// An event of a slow client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEvent {
    /// All pending chunks were delivered: resume the sequence.
    CaughtUp(SequenceId),
    /// The client disconnected.
    Disconnected(SequenceId),
}

type Permit = std::result::Result<mpsc::OwnedPermit<StreamingOutput>, SequenceId>;

struct Session {
    start: SessionStart,
    chunker: Chunker,
    /// Words that are in no chunk yet, in the order of their times.
    pending_words: VecDeque<SpokenWord>,
    collected: Vec<f32>,
    text: String,
    /// Text that is in no chunk yet.
    pending_text: String,
    segments: Vec<Segment>,
    /// Segments that are in no chunk yet.
    pending_segments: Vec<Segment>,
    language: Option<String>,
    emissions: EmissionQueue,
    /// Chunks that have not left, with the time when each was made.
    pending: VecDeque<(StreamingOutput, Instant)>,
    blocked_since: Option<Instant>,
    stall_clock: StallClock,
    /// Since when it waits for text.
    waiting_since: Option<Instant>,
    /// Time in which the client was slow or its text had run out.
    blocked_total: Duration,
    opened_at: Instant,
    first_scheduled_at: Option<Instant>,
    first_output_at: Option<Instant>,
    first_audio_at: Option<Instant>,
    last_chunk_at: Option<Instant>,
    playback: PlaybackClock,
    generated_tokens: usize,
    /// Whether the sequence has ended; delivery may continue.
    ended: bool,
}

/// Places in the channels of slow clients, as they come free.
type Permits = FuturesUnordered<BoxFuture<'static, (SequenceId, Permit)>>;

async fn next_permit(permits: &mut Permits) -> (SequenceId, Permit) {
    match permits.next().await {
        Some(permit) => permit,
        None => std::future::pending().await,
    }
}

/// All open sessions.
pub(super) struct OutputProcessor {
    sample_rate: u32,
    /// In order of their arrival, so that simulations repeat.
    sessions: BTreeMap<SequenceId, Session>,
    permits: Permits,
    /// When the warm-up ended: before, no request is computed.
    ready_at: Instant,
}

impl OutputProcessor {
    pub(super) fn new(sample_rate: u32) -> Self {
        let ready_at = Instant::now();
        Self { sample_rate, sessions: BTreeMap::new(), permits: FuturesUnordered::new(), ready_at }
    }

    /// Records the end of the warm-up.
    pub(super) fn set_ready(&mut self) {
        self.ready_at = Instant::now();
    }

    /// Opens a session.
    pub(super) fn open(&mut self, start: SessionStart) {
        let session = Session {
            chunker: Chunker::new(start.chunk_lengths),
            pending_words: VecDeque::new(),
            collected: Vec::new(),
            text: String::new(),
            pending_text: String::new(),
            segments: Vec::new(),
            pending_segments: Vec::new(),
            language: None,
            emissions: EmissionQueue::default(),
            pending: VecDeque::new(),
            blocked_since: None,
            stall_clock: StallClock::default(),
            waiting_since: None,
            blocked_total: Duration::ZERO,
            opened_at: Instant::now(),
            first_scheduled_at: None,
            first_output_at: None,
            first_audio_at: None,
            last_chunk_at: None,
            playback: PlaybackClock::default(),
            generated_tokens: 0,
            ended: false,
            start,
        };
        self.sessions.insert(session.start.sequence, session);
    }

    /// Whether no session is open, including ended ones with undelivered chunks.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Records the first execution of a sequence.
    pub(super) fn scheduled(&mut self, sequence: SequenceId, metrics: &MetricsCollector) {
        if let Some(session) = self.sessions.get_mut(&sequence)
            && session.first_scheduled_at.is_none()
        {
            session.first_scheduled_at = Some(Instant::now());
            metrics.first_scheduled(session.start.accepted_at.elapsed());
        }
    }

    /// Adds the prompt of another pass.
    pub(super) fn add_prompt_tokens(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(session) = self.sessions.get_mut(&sequence) {
            session.start.prompt_tokens += tokens;
        }
    }

    /// Adds a sequence's output of one step.
    pub(super) fn push(
        &mut self,
        sequence: SequenceId,
        output: StepOutput,
        metrics: &MetricsCollector,
    ) -> Pushed {
        let sample_rate = self.sample_rate;
        let Some(session) = self.sessions.get_mut(&sequence) else { return Pushed::Disconnected };
        session.push(output, sample_rate, metrics);
        self.send(sequence, metrics)
    }

    /// Ends a session: delivers the rest and the statistics. Returns the result of [`Delivery::Kept`] sessions.
    pub(super) fn finish(
        &mut self,
        sequence: SequenceId,
        reason: FinishReason,
        error: Option<EngineError>,
        metrics: &mut MetricsCollector,
    ) -> Option<EngineOutput> {
        let (sample_rate, ready_at) = (self.sample_rate, self.ready_at);
        let session = self.sessions.get_mut(&sequence)?;
        let stats = session.stats(reason, error, sample_rate, ready_at);
        metrics.request_finished(session.start.task, &stats);
        session.ended = true;
        if let Delivery::Stream(_) = session.start.delivery {
            session.end_stream(stats, sample_rate, metrics);
            self.send(sequence, metrics);
            return None;
        }
        let session = self.sessions.remove(&sequence)?;
        session.end_whole(stats, sample_rate)
    }

    /// When playback of the delivered audio of a live stream ends; `None` before its first chunk.
    pub(super) fn playback_end(&self, sequence: SequenceId) -> Option<Instant> {
        self.sessions.get(&sequence).filter(|session| session.start.live)?.playback.end()
    }

    /// The live streams whose first chunk has left, and when playback of their delivered audio ends.
    pub(super) fn playing(&self) -> impl Iterator<Item = (SequenceId, Instant)> {
        let live = self.sessions.iter().filter(|(_, session)| session.plays());
        live.filter_map(|(sequence, session)| Some((*sequence, session.playback.end()?)))
    }

    /// Whether the first chunk of a live stream has not left.
    pub(super) fn is_beginning(&self, sequence: SequenceId) -> bool {
        self.sessions
            .get(&sequence)
            .is_some_and(|session| session.plays() && session.first_audio_at.is_none())
    }

    /// Replaces what is predicted from the first chunk on.
    pub(super) fn set_forecast(
        &mut self,
        sequence: SequenceId,
        rtf: f32,
        prebuffer: Duration,
        head_start_samples: u64,
    ) {
        if let Some(session) = self.sessions.get_mut(&sequence) {
            let elapsed = session.start.accepted_at.elapsed();
            let first_audio = session.start.prediction.map_or(elapsed, |prediction| prediction.first_audio);
            session.start.prediction = Some(Prediction { first_audio, rtf, prebuffer });
            session.start.head_start_samples = head_start_samples;
            if let Some((chunk, _)) = session.pending.front_mut() {
                chunk.prediction = session.start.prediction;
            }
        }
    }

    /// Samples generated so far.
    pub(super) fn generated_samples(&self, sequence: SequenceId) -> u64 {
        self.sessions.get(&sequence).map_or(0, Session::samples)
    }

    /// Samples of a chunk of a stream, and those that are missing until its next chunk leaves.
    pub(super) fn chunk_progress(&self, sequence: SequenceId) -> Option<(u64, u64)> {
        let session = self.sessions.get(&sequence)?;
        Some(session.chunker.progress())
    }

    /// Corrects the playback clock of a stream: its client has played `played` so far.
    pub(super) fn acknowledge(&mut self, sequence: SequenceId, played: Duration) {
        if let Some(session) = self.sessions.get_mut(&sequence) {
            session.playback.acknowledge(played, Instant::now());
        }
    }

    /// Sequences whose client disconnected.
    pub(super) fn disconnected(&self) -> Vec<SequenceId> {
        self.sessions.iter().filter(|(_, session)| session.is_disconnected()).map(|(id, _)| *id).collect()
    }

    /// Sequences whose client is `limit` behind real time.
    pub(super) fn stalled(&self, limit: Duration) -> Vec<SequenceId> {
        let now = Instant::now();
        let stalled = |session: &Session| session.stalls_at(limit).is_some_and(|at| at <= now);
        self.sessions.iter().filter(|(_, session)| stalled(session)).map(|(id, _)| *id).collect()
    }

    /// When the next client is `limit` behind real time, if it takes nothing until then.
    pub(super) fn next_stall(&self, limit: Duration) -> Option<Instant> {
        self.sessions.values().filter_map(|session| session.stalls_at(limit)).min()
    }

    /// Drops the session of a request that another server did not take.
    pub(super) fn discard(&mut self, sequence: SequenceId) {
        self.sessions.remove(&sequence);
    }

    /// Drops the session of a request that is aborted because its client has gone or, `is_slow`, does not read. What was
    /// made of it is counted.
    pub(super) fn abandon(&mut self, sequence: SequenceId, is_slow: bool, metrics: &mut MetricsCollector) {
        let Some(session) = self.sessions.remove(&sequence) else { return };
        if !session.ended {
            let stats = session.stats(FinishReason::Cancelled, None, self.sample_rate, self.ready_at);
            metrics.request_finished(session.start.task, &stats);
        }
        if is_slow && session.plays() {
            metrics.stream_continuity(session.playback.underrun(), true);
        }
    }

    /// Whether the sequence has not ended.
    pub(super) fn is_live(&self, sequence: SequenceId) -> bool {
        self.sessions.get(&sequence).is_some_and(|session| !session.ended)
    }

    /// Waits for an event of a client that is slow or has more text to send. Cancel-safe. Never returns while there is none.
    pub(super) async fn next_event(&mut self, metrics: &MetricsCollector) -> DeliveryEvent {
        loop {
            let Self { sessions, permits, .. } = self;
            let (sequence, permit) = tokio::select! {
                biased;
                permit = next_permit(permits) => permit,
                sequence = missing_text::next_closed(sessions) => return DeliveryEvent::Disconnected(sequence),
            };
            if let Some(event) = self.resume(sequence, permit, metrics) {
                return event;
            }
        }
    }

    /// Waits for an event of any client. Cancel-safe. Never returns while there is none.
    pub(super) async fn next_client_event(&mut self, metrics: &MetricsCollector) -> DeliveryEvent {
        loop {
            let Self { sessions, permits, .. } = self;
            let (sequence, permit) = tokio::select! {
                biased;
                permit = next_permit(permits) => permit,
                sequence = missing_text::next_gone(sessions) => return DeliveryEvent::Disconnected(sequence),
            };
            if let Some(event) = self.resume(sequence, permit, metrics) {
                return event;
            }
        }
    }

    /// Delivers what waits for slow clients until one of them has taken all of it. Cancel-safe. Never returns while there is
    /// none.
    pub(super) async fn next_caught_up(&mut self, metrics: &MetricsCollector) -> DeliveryEvent {
        loop {
            let (sequence, permit) = next_permit(&mut self.permits).await;
            if let Some(event) = self.resume(sequence, permit, metrics) {
                return event;
            }
        }
    }

    /// Events that are ready now.
    pub(super) fn ready_events(&mut self, metrics: &MetricsCollector) -> Vec<DeliveryEvent> {
        let mut events = Vec::new();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while let std::task::Poll::Ready(Some((sequence, permit))) =
            self.permits.poll_next_unpin(&mut context)
        {
            events.extend(self.resume(sequence, permit, metrics));
        }
        events
    }

    fn resume(
        &mut self,
        sequence: SequenceId,
        permit: Permit,
        metrics: &MetricsCollector,
    ) -> Option<DeliveryEvent> {
        let sample_rate = self.sample_rate;
        let session = self.sessions.get_mut(&sequence)?;
        let Ok(permit) = permit else { return Some(DeliveryEvent::Disconnected(sequence)) };
        if let Some(since) = session.blocked_since {
            session.stall_clock.wait(since.elapsed());
        }
        if let Some((chunk, made_at)) = session.pending.pop_front() {
            session.leaves(chunk.samples.len(), made_at, sample_rate, metrics);
            session.stall_clock.take(session.playing_time(&chunk));
            permit.send(chunk);
        }
        if let Some(since) = session.blocked_since.take() {
            session.blocked_total += since.elapsed();
        }
        match self.send(sequence, metrics) {
            Pushed::Open => Some(DeliveryEvent::CaughtUp(sequence)),
            Pushed::Disconnected => Some(DeliveryEvent::Disconnected(sequence)),
            Pushed::Blocked => None,
        }
    }

    /// Sends pending chunks until the client's channel is full; a permit then signals free capacity.
    fn send(&mut self, sequence: SequenceId, metrics: &MetricsCollector) -> Pushed {
        let sample_rate = self.sample_rate;
        let Some(session) = self.sessions.get_mut(&sequence) else { return Pushed::Disconnected };
        let Delivery::Stream(channel) = &session.start.delivery else {
            return if session.is_disconnected() { Pushed::Disconnected } else { Pushed::Open };
        };
        let channel = channel.clone();
        if session.holds_back() {
            return Pushed::Open;
        }
        while session.blocked_since.is_none()
            && let Some((chunk, made_at)) = session.pending.pop_front()
        {
            let (samples, playing_time) = (chunk.samples.len(), session.playing_time(&chunk));
            match channel.try_send(chunk) {
                Ok(()) => {
                    session.leaves(samples, made_at, sample_rate, metrics);
                    session.stall_clock.take(playing_time);
                }
                Err(TrySendError::Closed(_)) => return Pushed::Disconnected,
                Err(TrySendError::Full(chunk)) => {
                    session.pending.push_front((chunk, made_at));
                    session.blocked_since = Some(Instant::now());
                    let channel = channel.clone();
                    let wait = async move { (sequence, channel.reserve_owned().await.map_err(|_| sequence)) };
                    self.permits.push(Box::pin(wait));
                }
            }
        }
        if session.blocked_since.is_some() {
            return Pushed::Blocked;
        }
        if session.ended {
            self.sessions.remove(&sequence);
        }
        Pushed::Open
    }
}

impl Session {
    fn is_disconnected(&self) -> bool {
        match &self.start.delivery {
            Delivery::Whole(reply) => reply.is_closed(),
            Delivery::Stream(channel) => channel.is_closed(),
            Delivery::Kept => false,
        }
    }

    /// When the client is `limit` behind real time, if it takes nothing until then.
    fn stalls_at(&self, limit: Duration) -> Option<Instant> {
        self.blocked_since.map(|since| since + self.stall_clock.time_to(limit))
    }

    /// How long a client that reads in real time takes for a chunk: its audio, or the part of the recording that it
    /// transcribes. Text alone counts as one chunk of audio.
    fn playing_time(&self, chunk: &StreamingOutput) -> Duration {
        let spans = chunk.segments.iter().map(|segment| (segment.end_s - segment.start_s).max(0.0));
        let transcribed = Duration::try_from_secs_f64(spans.sum()).unwrap_or_default();
        let audio = audio_duration(chunk.samples.len() as u64, chunk.sample_rate).max(transcribed);
        if audio.is_zero() {
            audio_duration(self.start.chunk_lengths.common() as u64, chunk.sample_rate)
        } else {
            audio
        }
    }

    fn push(&mut self, output: StepOutput, sample_rate: u32, metrics: &MetricsCollector) {
        if self.first_output_at.is_none() && (output.generated_tokens > 0 || !output.samples.is_empty()) {
            self.first_output_at = Some(Instant::now());
        }
        self.generated_tokens += output.generated_tokens;
        self.text.push_str(&output.text);
        self.pending_text.push_str(&output.text);
        self.language = output.language.or(self.language.take());
        self.emissions.push(output.emission, output.samples.len());
        if let Delivery::Stream(_) = self.start.delivery {
            self.pending_segments.extend(output.segments);
            let before = self.chunker.total_samples();
            self.pending_words.extend(output.words.into_iter().map(|word| SpokenWord {
                sample_start: before + word.sample_start,
                sample_end: before + word.sample_end,
                ..word
            }));
            for chunk in self.chunker.push(&output.samples) {
                let emissions = self.emissions.pop_complete(chunk.sample_offset + chunk.samples.len() as u64);
                self.enqueue(chunk, emissions, None, sample_rate, metrics);
            }
            // Transcripts and conversation text do not wait for audio.
            if self.start.task != Task::Tts && !self.pending_text.is_empty() {
                let chunk = self.chunker.mark();
                let emissions = self.emissions.pop_complete(chunk.sample_offset);
                self.enqueue(chunk, emissions, None, sample_rate, metrics);
            }
        } else {
            if !output.samples.is_empty() {
                self.first_audio_at.get_or_insert_with(Instant::now);
            }
            self.segments.extend(output.segments);
            self.collected.extend_from_slice(&output.samples);
        }
    }

    /// Whether its first chunk waits for a head start.
    fn holds_back(&self) -> bool {
        self.first_audio_at.is_none() && !self.ended && self.samples() < self.start.head_start_samples
    }

    /// Samples generated so far.
    fn samples(&self) -> u64 {
        match self.start.delivery {
            Delivery::Stream(_) => self.chunker.total_samples(),
            _ => self.collected.len() as u64,
        }
    }

    /// Whether a client plays it.
    fn plays(&self) -> bool {
        self.start.live && matches!(self.start.delivery, Delivery::Stream(_))
    }

    /// Records that a chunk leaves.
    fn leaves(&mut self, samples: usize, made_at: Instant, sample_rate: u32, metrics: &MetricsCollector) {
        if samples == 0 {
            return;
        }
        let now = Instant::now();
        if self.first_audio_at.is_none() {
            self.first_audio_at = Some(now);
            if let Some(prediction) = &self.start.prediction {
                metrics.first_audio(prediction.first_audio, now - self.start.accepted_at);
            }
        }
        if self.plays() {
            if let Some(slack) = self.playback.slack(now) {
                metrics.slack(slack);
            }
            let prebuffer = self.start.prediction.map_or(Duration::ZERO, |prediction| prediction.prebuffer);
            let length = audio_duration(samples as u64, sample_rate);
            if let Some(underrun) = self.playback.deliver(length, made_at, now, prebuffer) {
                metrics.underrun(underrun);
            }
        }
    }

    fn enqueue(
        &mut self,
        chunk: Chunk,
        emissions: Vec<(Emission, u64)>,
        stats: Option<RequestStats>,
        sample_rate: u32,
        metrics: &MetricsCollector,
    ) {
        let now = Instant::now();
        if let Some(last) = self.last_chunk_at.replace(now) {
            metrics.chunk_gap(now - last);
        }
        let text = std::mem::take(&mut self.pending_text);
        let end = chunk.sample_offset + chunk.samples.len() as u64;
        let begun = self.pending_words.iter().take_while(|word| word.sample_start < end || chunk.is_final);
        let begun = begun.count();
        let (emissions, emission_ends) = emissions.into_iter().unzip();
        let chunk = StreamingOutput {
            request_id: self.start.request_id.clone(),
            sequence: chunk.sequence,
            sample_offset: chunk.sample_offset,
            samples: chunk.samples,
            words: self.pending_words.drain(..begun).collect(),
            sample_rate,
            text: Some(text).filter(|text| !text.is_empty()),
            segments: std::mem::take(&mut self.pending_segments),
            language: self.language.clone(),
            emissions,
            emission_ends,
            is_final: chunk.is_final,
            stats,
            prediction: self.start.prediction.filter(|_| chunk.sequence == 0),
            notes: std::mem::take(&mut self.start.notes),
        };
        self.pending.push_back((chunk, now));
    }
}
