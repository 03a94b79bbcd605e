//! What comes out: one session per request, cut into chunks, with its statistics, delivered without ever waiting.
//!
//! A receiver that is slow fills its channel; what does not fit stays in its session, and the caller pauses that one
//! sequence until [`OutputProcessor::next_event`] says the client has caught up. Knows no queue and no block.

mod saying;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use izwi_audio::chunk::{Chunk, Chunker};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use self::saying::Saying;
use super::error::{EngineError, Result};
use super::executor::{Emission, ExecutorOutput, Segment};
use super::metrics::MetricsCollector;
use super::types::{
    AudioOutput, EngineOutput, FinishReason, RequestId, RequestStats, SequenceId, StreamingOutput, TaskType,
    Transcript, audio_duration,
};

/// How a request's result reaches its caller.
#[derive(Debug)]
pub(super) enum Delivery {
    /// All at once.
    Whole(oneshot::Sender<Result<EngineOutput>>),
    /// In chunks.
    Stream(mpsc::Sender<StreamingOutput>),
    /// Kept for whoever asks.
    Kept,
}

/// What a new session starts from.
#[derive(Debug)]
pub(super) struct SessionStart {
    pub(super) sequence: SequenceId,
    pub(super) request_id: RequestId,
    pub(super) task_type: TaskType,
    pub(super) delivery: Delivery,
    pub(super) chunk_samples: usize,
    pub(super) prompt_tokens: usize,
    pub(super) seed: u64,
    /// Length of the recording, for requests that listen.
    pub(super) heard: Option<Duration>,
    /// Its share of the recordings that may be open at once; given back with the session.
    pub(super) _audio_share: Option<OwnedSemaphorePermit>,
    pub(super) accepted_at: Instant,
}

/// What became of samples handed to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// Delivered, or collected.
    Open,
    /// The client is slow: pause the sequence.
    Blocked,
    /// The client has gone: abort the request.
    Gone,
}

/// News from slow clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryEvent {
    /// Everything was delivered; go on.
    CaughtUp(SequenceId),
    /// The client has gone.
    Gone(SequenceId),
}

type Permit = std::result::Result<mpsc::OwnedPermit<StreamingOutput>, SequenceId>;

struct Session {
    start: SessionStart,
    chunker: Chunker,
    collected: Vec<f32>,
    text: String,
    /// Text not yet in a chunk.
    fresh_text: String,
    segments: Vec<Segment>,
    /// Segments not yet in a chunk.
    fresh_segments: Vec<Segment>,
    language: Option<String>,
    saying: Saying,
    pending: VecDeque<StreamingOutput>,
    blocked_since: Option<Instant>,
    blocked_total: Duration,
    first_scheduled_at: Option<Instant>,
    first_audio_at: Option<Instant>,
    last_chunk_at: Option<Instant>,
    /// When a client that plays at once runs out of audio.
    plays_until: Option<Instant>,
    underrun: Duration,
    generated_tokens: usize,
    /// The sequence has ended; only delivery goes on.
    ended: bool,
}

/// Owns every open session.
pub(super) struct OutputProcessor {
    sample_rate: u32,
    sessions: HashMap<SequenceId, Session>,
    permits: FuturesUnordered<BoxFuture<'static, (SequenceId, Permit)>>,
}

impl OutputProcessor {
    pub(super) fn new(sample_rate: u32) -> Self {
        Self { sample_rate, sessions: HashMap::new(), permits: FuturesUnordered::new() }
    }

    /// Opens a session.
    pub(super) fn open(&mut self, start: SessionStart) {
        let session = Session {
            chunker: Chunker::new(start.chunk_samples),
            collected: Vec::new(),
            text: String::new(),
            fresh_text: String::new(),
            segments: Vec::new(),
            fresh_segments: Vec::new(),
            language: None,
            saying: Saying::default(),
            pending: VecDeque::new(),
            blocked_since: None,
            blocked_total: Duration::ZERO,
            first_scheduled_at: None,
            first_audio_at: None,
            last_chunk_at: None,
            plays_until: None,
            underrun: Duration::ZERO,
            generated_tokens: 0,
            ended: false,
            start,
        };
        self.sessions.insert(session.start.sequence, session);
    }

    /// Whether no session is open, not even one that only has chunks left to deliver.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Notes that a sequence is being executed for the first time.
    pub(super) fn scheduled(&mut self, sequence: SequenceId, metrics: &MetricsCollector) {
        if let Some(session) = self.sessions.get_mut(&sequence)
            && session.first_scheduled_at.is_none()
        {
            session.first_scheduled_at = Some(Instant::now());
            metrics.first_scheduled(session.start.accepted_at.elapsed());
        }
    }

    /// Counts the prompt of one more pass.
    pub(super) fn add_prompt_tokens(&mut self, sequence: SequenceId, tokens: usize) {
        if let Some(session) = self.sessions.get_mut(&sequence) {
            session.start.prompt_tokens += tokens;
        }
    }

    /// Takes what a step made for a sequence.
    pub(super) fn push(
        &mut self,
        sequence: SequenceId,
        output: ExecutorOutput,
        metrics: &MetricsCollector,
    ) -> Pushed {
        let sample_rate = self.sample_rate;
        let Some(session) = self.sessions.get_mut(&sequence) else { return Pushed::Gone };
        session.take(output, sample_rate, metrics);
        self.send(sequence)
    }

    /// Ends a session: the rest of the audio, the statistics, and for a kept one the whole result.
    pub(super) fn finish(
        &mut self,
        sequence: SequenceId,
        reason: FinishReason,
        error: Option<String>,
        metrics: &mut MetricsCollector,
    ) -> Option<EngineOutput> {
        let sample_rate = self.sample_rate;
        let session = self.sessions.get_mut(&sequence)?;
        let stats = session.stats(reason, error, sample_rate);
        metrics.request_finished(session.start.task_type, &stats);
        session.ended = true;
        if let Delivery::Stream(_) = session.start.delivery {
            session.end_stream(stats, sample_rate, metrics);
            self.send(sequence);
            return None;
        }
        let session = self.sessions.remove(&sequence)?;
        session.end_whole(stats, sample_rate)
    }

    /// Playback of what was made so far ends here, for scheduling by deadline.
    pub(super) fn plays_until(&self, sequence: SequenceId) -> Option<Instant> {
        self.sessions.get(&sequence)?.plays_until
    }

    /// Sequences whose client has gone.
    pub(super) fn gone(&self) -> Vec<SequenceId> {
        self.sessions.iter().filter(|(_, session)| session.is_gone()).map(|(id, _)| *id).collect()
    }

    /// Sequences whose client has not read for `limit`.
    pub(super) fn stalled(&self, limit: Duration) -> Vec<SequenceId> {
        let stalled = |session: &Session| session.blocked_since.is_some_and(|since| since.elapsed() >= limit);
        self.sessions.iter().filter(|(_, session)| stalled(session)).map(|(id, _)| *id).collect()
    }

    /// When the next client will have stalled for `limit`.
    pub(super) fn next_stall(&self, limit: Duration) -> Option<Instant> {
        self.sessions.values().filter_map(|session| session.blocked_since).min().map(|since| since + limit)
    }

    /// Forgets a session without a word to its client, who has gone or will not read.
    pub(super) fn discard(&mut self, sequence: SequenceId) {
        self.sessions.remove(&sequence);
    }

    /// Whether the sequence of this session still runs.
    pub(super) fn is_live(&self, sequence: SequenceId) -> bool {
        self.sessions.get(&sequence).is_some_and(|session| !session.ended)
    }

    /// Statistics as they are now, for a request that is dropped.
    pub(super) fn stats_now(
        &self,
        sequence: SequenceId,
        reason: FinishReason,
    ) -> Option<(TaskType, RequestStats)> {
        let session = self.sessions.get(&sequence)?;
        Some((session.start.task_type, session.stats(reason, None, self.sample_rate)))
    }

    /// Whether a slow client is being waited for.
    pub(super) fn has_blocked(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Waits for news from slow clients. Cancel-safe. Pending for ever when nobody is blocked.
    pub(super) async fn next_event(&mut self) -> DeliveryEvent {
        loop {
            let Some((sequence, permit)) = self.permits.next().await else {
                std::future::pending::<()>().await;
                continue;
            };
            if let Some(event) = self.resume(sequence, permit) {
                return event;
            }
        }
    }

    /// News that are there already.
    pub(super) fn ready_events(&mut self) -> Vec<DeliveryEvent> {
        let mut events = Vec::new();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while let std::task::Poll::Ready(Some((sequence, permit))) =
            self.permits.poll_next_unpin(&mut context)
        {
            events.extend(self.resume(sequence, permit));
        }
        events
    }

    fn resume(&mut self, sequence: SequenceId, permit: Permit) -> Option<DeliveryEvent> {
        let session = self.sessions.get_mut(&sequence)?;
        let Ok(permit) = permit else { return Some(DeliveryEvent::Gone(sequence)) };
        if let Some(chunk) = session.pending.pop_front() {
            permit.send(chunk);
        }
        if let Some(since) = session.blocked_since.take() {
            session.blocked_total += since.elapsed();
            let caught_up_at = Instant::now();
            session.plays_until = session.plays_until.map(|end| end.max(caught_up_at));
        }
        match self.send(sequence) {
            Pushed::Open => Some(DeliveryEvent::CaughtUp(sequence)),
            Pushed::Gone => Some(DeliveryEvent::Gone(sequence)),
            Pushed::Blocked => None,
        }
    }

    /// Sends what the client's channel takes; waits for the rest through a permit.
    fn send(&mut self, sequence: SequenceId) -> Pushed {
        let Some(session) = self.sessions.get_mut(&sequence) else { return Pushed::Gone };
        let Delivery::Stream(channel) = &session.start.delivery else {
            return if session.is_gone() { Pushed::Gone } else { Pushed::Open };
        };
        while session.blocked_since.is_none()
            && let Some(chunk) = session.pending.pop_front()
        {
            match channel.try_send(chunk) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Pushed::Gone,
                Err(TrySendError::Full(chunk)) => {
                    session.pending.push_front(chunk);
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
    fn is_gone(&self) -> bool {
        match &self.start.delivery {
            Delivery::Whole(reply) => reply.is_closed(),
            Delivery::Stream(channel) => channel.is_closed(),
            Delivery::Kept => false,
        }
    }

    fn take(&mut self, output: ExecutorOutput, sample_rate: u32, metrics: &MetricsCollector) {
        self.generated_tokens += output.generated_tokens;
        self.text.push_str(&output.text);
        self.fresh_text.push_str(&output.text);
        self.language = output.language.or(self.language.take());
        self.saying.take(output.emission, output.samples.len());
        if !output.samples.is_empty() {
            self.heard(output.samples.len(), sample_rate);
        }
        if let Delivery::Stream(_) = self.start.delivery {
            self.fresh_segments.extend(output.segments);
            for chunk in self.chunker.push(&output.samples) {
                let said = self.saying.heard(chunk.sample_offset + chunk.samples.len() as u64);
                self.enqueue(chunk, said, None, sample_rate, metrics);
            }
            // Text that is not spoken word by word does not wait for sound.
            if self.start.task_type != TaskType::Tts && !self.fresh_text.is_empty() {
                let chunk = self.chunker.mark();
                let said = self.saying.heard(chunk.sample_offset);
                self.enqueue(chunk, said, None, sample_rate, metrics);
            }
        } else {
            self.segments.extend(output.segments);
            self.collected.extend_from_slice(&output.samples);
        }
    }

    /// Keeps account of whether a client that plays at once would hear a gap.
    fn heard(&mut self, samples: usize, sample_rate: u32) {
        let now = Instant::now();
        self.first_audio_at.get_or_insert(now);
        let length = audio_duration(samples as u64, sample_rate);
        let end = match self.plays_until {
            Some(end) if end < now => {
                self.underrun += now - end;
                now
            }
            Some(end) => end,
            None => now,
        };
        self.plays_until = Some(end + length);
    }

    fn enqueue(
        &mut self,
        chunk: Chunk,
        emissions: Vec<Emission>,
        stats: Option<RequestStats>,
        sample_rate: u32,
        metrics: &MetricsCollector,
    ) {
        let now = Instant::now();
        if let Some(last) = self.last_chunk_at.replace(now) {
            metrics.chunk_gap(now - last);
        }
        let text = std::mem::take(&mut self.fresh_text);
        self.pending.push_back(StreamingOutput {
            request_id: self.start.request_id.clone(),
            sequence: chunk.sequence,
            sample_offset: chunk.sample_offset,
            samples: chunk.samples,
            sample_rate,
            text: Some(text).filter(|text| !text.is_empty()),
            segments: std::mem::take(&mut self.fresh_segments),
            language: self.language.clone(),
            emissions,
            is_final: chunk.is_final,
            stats,
        });
    }

    fn end_stream(&mut self, stats: RequestStats, sample_rate: u32, metrics: &MetricsCollector) {
        if stats.samples > 0 && stats.finish_reason == FinishReason::Stop {
            metrics.stream_continuity(self.underrun);
        }
        let rest = std::mem::replace(&mut self.chunker, Chunker::new(1)).finish();
        let said = self.said(stats.finish_reason);
        self.enqueue(rest, said, Some(stats), sample_rate, metrics);
    }

    /// What was said and not handed on yet: all of it, or, where it was broken off, what was sound.
    fn said(&mut self, reason: FinishReason) -> Vec<Emission> {
        match reason {
            FinishReason::Stop | FinishReason::Length | FinishReason::RunawayTrimmed => self.saying.rest(),
            FinishReason::Cancelled | FinishReason::Interrupted | FinishReason::Error => {
                self.saying.heard(u64::MAX)
            }
        }
    }

    fn end_whole(mut self, stats: RequestStats, sample_rate: u32) -> Option<EngineOutput> {
        let emissions = self.said(stats.finish_reason);
        let transcript = (self.start.task_type == TaskType::Asr)
            .then_some(Transcript { language: self.language, segments: self.segments });
        let listens = transcript.is_some();
        let output = EngineOutput {
            request_id: self.start.request_id,
            task_type: self.start.task_type,
            audio: AudioOutput { samples: self.collected, sample_rate },
            text: Some(if listens { self.text.trim().to_owned() } else { self.text })
                .filter(|text| listens || !text.is_empty()),
            transcript,
            emissions,
            generation_time: stats.generation_time,
            stats,
        };
        match self.start.delivery {
            Delivery::Whole(reply) => {
                let result = match output.stats.finish_reason {
                    FinishReason::Error => {
                        Err(EngineError::Execution(output.stats.error.unwrap_or_default()))
                    }
                    FinishReason::Cancelled | FinishReason::Interrupted => Err(EngineError::Aborted),
                    _ => Ok(output),
                };
                // A caller that left in this instant needs no answer.
                let _ = reply.send(result);
                None
            }
            Delivery::Kept | Delivery::Stream(_) => Some(output),
        }
    }

    fn stats(&self, finish_reason: FinishReason, error: Option<String>, sample_rate: u32) -> RequestStats {
        let accepted = self.start.accepted_at;
        let blocked = self.blocked_total + self.blocked_since.map_or(Duration::ZERO, |since| since.elapsed());
        let samples = match self.start.delivery {
            Delivery::Stream(_) => self.chunker.total_samples(),
            _ => self.collected.len() as u64,
        };
        RequestStats {
            finish_reason,
            error,
            seed: self.start.seed,
            prompt_tokens: self.start.prompt_tokens,
            generated_tokens: self.generated_tokens,
            samples,
            audio_duration: self.start.heard.unwrap_or_else(|| audio_duration(samples, sample_rate)),
            queue_time: self.first_scheduled_at.map_or_else(|| accepted.elapsed(), |at| at - accepted),
            generation_time: accepted.elapsed().saturating_sub(blocked),
            time_to_first_audio: self.first_audio_at.map(|at| at - accepted),
        }
    }
}
