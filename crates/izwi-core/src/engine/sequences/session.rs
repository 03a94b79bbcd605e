//! The delivery part of a sequence: chunks, playback and times of its result.
//!
//! Must not know channels of other sequences, or queues.

use std::collections::VecDeque;
use std::time::Duration;

use izwi_audio::chunk::{Chunk, Chunker};
use izwi_types::{Emission, Segment, SpokenWord, StepOutput, Task};
use tokio::time::Instant;

use super::emission_queue::EmissionQueue;
use super::stall_clock::StallClock;
use super::{Client, Delivery};
use crate::engine::executor::normalised;
use crate::engine::metrics::MetricsCollector;
use crate::engine::qos::playback::PlaybackClock;
use crate::engine::request::RequestInfo;
use crate::engine::types::{Prediction, RequestStats, StreamingOutput, audio_duration};

/// So long, and less loud than this, is the silence between two phrases.
const QUIET_MS: usize = 60;
const QUIET: f32 = 0.01;

pub(super) struct Session {
    pub(super) request: RequestInfo,
    pub(super) client: Client,
    /// Whether somebody listens while it is generated.
    pub(super) live: bool,
    /// What was predicted for a live stream.
    pub(super) prediction: Option<Prediction>,
    /// Samples that are generated before the first chunk leaves.
    pub(super) head_start_samples: u64,
    pub(super) chunker: Chunker,
    /// Words that are in no chunk yet, in the order of their times.
    pending_words: VecDeque<SpokenWord>,
    pub(super) collected: Vec<f32>,
    pub(super) text: String,
    /// Text that is in no chunk yet.
    pending_text: String,
    pub(super) segments: Vec<Segment>,
    /// What follows the text for now.
    partial: String,
    /// Segments that are in no chunk yet.
    pending_segments: Vec<Segment>,
    pub(super) language: Option<String>,
    pub(super) language_probability: Option<f32>,
    pub(super) emissions: EmissionQueue,
    /// Chunks that have not left, with the time when each was made.
    pub(super) pending: VecDeque<(StreamingOutput, Instant)>,
    pub(super) blocked_since: Option<Instant>,
    pub(super) stall_clock: StallClock,
    /// Since when it waits for input.
    pub(super) waiting_since: Option<Instant>,
    /// Time in which the client was slow or its input had run out.
    pub(super) blocked_total: Duration,
    pub(super) opened_at: Instant,
    pub(super) first_scheduled_at: Option<Instant>,
    pub(super) first_output_at: Option<Instant>,
    pub(super) first_audio_at: Option<Instant>,
    last_chunk_at: Option<Instant>,
    pub(super) playback: PlaybackClock,
    /// Whether its client was told that it pauses, and has got no audio since.
    pub(super) is_paused: bool,
    /// Whether its last chunk ends in silence.
    pub(super) ends_quietly: bool,
    pub(super) generated_tokens: usize,
    /// Outputs so far, and how many of them come again.
    outputs: usize,
    repeats: usize,
    /// Whether its last chunk or its result is made; delivery may continue.
    pub(super) ended: bool,
}

/// The content of an output of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    New,
    /// It came before the sequence started again.
    Again,
}

impl Session {
    /// A session of a request, `live` if somebody listens while it is generated.
    pub(super) fn new(request: RequestInfo, client: Client, live: bool) -> Self {
        Self {
            chunker: Chunker::new(request.chunk_lengths),
            request,
            client,
            live,
            prediction: None,
            head_start_samples: 0,
            pending_words: VecDeque::new(),
            collected: Vec::new(),
            text: String::new(),
            pending_text: String::new(),
            partial: String::new(),
            segments: Vec::new(),
            pending_segments: Vec::new(),
            language: None,
            language_probability: None,
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
            is_paused: false,
            ends_quietly: false,
            generated_tokens: 0,
            outputs: 0,
            repeats: 0,
            ended: false,
        }
    }

    /// Its outputs come again from the first on.
    pub(super) fn restart(&mut self) {
        self.repeats = self.outputs;
    }

    /// What an output of a step is to its client. Counts it.
    pub(super) fn count(&mut self, output: &StepOutput) -> Content {
        let StepOutput { samples, text, segments, emission, partial, .. } = output;
        let is_known = text.is_empty() && *partial == self.partial;
        if samples.is_empty() && is_known && segments.is_empty() && emission.is_none() {
            return Content::Nothing;
        }
        if let Some(repeats) = self.repeats.checked_sub(1) {
            self.repeats = repeats;
            return Content::Again;
        }
        self.outputs += 1;
        Content::New
    }

    pub(super) fn is_disconnected(&self) -> bool {
        match &self.client.delivery {
            Delivery::Whole(reply) => reply.is_closed(),
            Delivery::Stream(channel) => channel.is_closed(),
            Delivery::Step => false,
        }
    }

    /// When the client is `limit` behind real time, if it takes nothing until then.
    pub(super) fn stalls_at(&self, limit: Duration) -> Option<Instant> {
        self.blocked_since.map(|since| since + self.stall_clock.time_to(limit))
    }

    /// How long a client that reads in real time takes for a chunk: its audio, or the part of the recording that it
    /// transcribes. Text alone counts as one chunk of audio.
    pub(super) fn playing_time(&self, chunk: &StreamingOutput) -> Duration {
        let spans = chunk.segments.iter().map(|segment| (segment.end_s - segment.start_s).max(0.0));
        let transcribed = Duration::try_from_secs_f64(spans.sum()).unwrap_or_default();
        let audio = audio_duration(chunk.samples.len() as u64, chunk.sample_rate).max(transcribed);
        if audio.is_zero() {
            audio_duration(self.request.chunk_lengths.common() as u64, chunk.sample_rate)
        } else {
            audio
        }
    }

    pub(super) fn push(&mut self, mut output: StepOutput, sample_rate: u32, metrics: &MetricsCollector) {
        if self.first_output_at.is_none() && (output.generated_tokens > 0 || !output.samples.is_empty()) {
            self.first_output_at = Some(Instant::now());
        }
        self.generated_tokens += output.generated_tokens;
        self.language = output.language.take().or(self.language.take());
        self.language_probability = output.language_probability.or(self.language_probability);
        if self.request.writes_figures {
            self.write_figures(&mut output);
        }
        self.text.push_str(&output.text);
        self.pending_text.push_str(&output.text);
        self.request.prompt_tokens = output.prompt_tokens.unwrap_or(self.request.prompt_tokens);
        let has_call = matches!(output.emission, Some(Emission::Call(_)));
        self.emissions.push(output.emission, output.samples.len());
        if let Delivery::Stream(_) = self.client.delivery {
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
            let is_revised = std::mem::replace(&mut self.partial, output.partial) != self.partial;
            // Transcripts, turns of speakers, and text and calls of a conversation do not wait for audio.
            let has_text = !self.pending_text.is_empty() || !self.pending_segments.is_empty();
            if self.request.task != Task::Tts && (is_revised || has_call || has_text) {
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

    /// Rewrites the numbers of a transcript. A segment is a sentence or ends at a pause, so that no number goes on behind it.
    fn write_figures(&self, output: &mut StepOutput) {
        let language = self.language.as_deref().or(self.request.language.as_deref());
        let segments = std::mem::take(&mut output.segments).into_iter();
        output.segments = segments.map(|segment| normalised(segment, language)).collect();
        output.text = output.segments.iter().map(|segment| segment.text.as_str()).collect();
    }

    /// Whether its first chunk, or the first one after a pause, waits for a head start.
    pub(super) fn holds_back(&self) -> bool {
        let begins = self.first_audio_at.is_none() || self.is_paused;
        begins && !self.ended && self.samples() < self.head_start_samples
    }

    /// Whether it has audio that its client has not taken, or waits for input.
    pub(super) fn waits(&self) -> bool {
        !self.pending.is_empty() || self.waiting_since.is_some()
    }

    /// Makes a chunk that tells the client of a pause of about `length`.
    pub(super) fn tell_pause(&mut self, length: Duration, sample_rate: u32, metrics: &MetricsCollector) {
        let mark = self.chunker.mark();
        self.enqueue(mark, Vec::new(), None, sample_rate, metrics);
        if let Some((chunk, _)) = self.pending.back_mut() {
            chunk.pauses = Some(length);
        }
    }

    /// Samples generated so far.
    pub(super) fn samples(&self) -> u64 {
        match self.client.delivery {
            Delivery::Stream(_) => self.chunker.total_samples(),
            _ => self.collected.len() as u64,
        }
    }

    /// Whether a client plays it.
    pub(super) fn plays(&self) -> bool {
        self.live && matches!(self.client.delivery, Delivery::Stream(_))
    }

    /// Records that a chunk leaves.
    pub(super) fn leaves(
        &mut self,
        samples: usize,
        made_at: Instant,
        sample_rate: u32,
        metrics: &MetricsCollector,
    ) {
        if samples == 0 {
            return;
        }
        let now = Instant::now();
        if self.first_audio_at.is_none() {
            self.first_audio_at = Some(now);
            if let Some(prediction) = &self.prediction {
                metrics.first_audio(prediction.first_audio, now - self.client.accepted_at);
            }
        }
        if self.plays() {
            if let Some(slack) = self.playback.slack(now) {
                metrics.slack(slack);
            }
            let prebuffer = self.prediction.map_or(Duration::ZERO, |prediction| prediction.prebuffer);
            let length = audio_duration(samples as u64, sample_rate);
            if std::mem::take(&mut self.is_paused) {
                metrics.paused(self.playback.pause(now));
            }
            if let Some(underrun) = self.playback.deliver(length, made_at, now, prebuffer) {
                metrics.underrun(underrun);
            }
        }
    }

    pub(super) fn enqueue(
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
        if !chunk.samples.is_empty() {
            let tail = chunk.samples.iter().rev().take(sample_rate as usize * QUIET_MS / 1_000);
            self.ends_quietly = tail.fold(0.0, |peak: f32, sample| peak.max(sample.abs())) < QUIET;
        }
        let text = std::mem::take(&mut self.pending_text);
        let end = chunk.sample_offset + chunk.samples.len() as u64;
        let begun = self.pending_words.iter().take_while(|word| word.sample_start < end || chunk.is_final);
        let begun = begun.count();
        let (emissions, emission_ends) = emissions.into_iter().unzip();
        let chunk = StreamingOutput {
            request_id: self.request.id.clone(),
            sequence: chunk.sequence,
            sample_offset: chunk.sample_offset,
            samples: chunk.samples,
            words: self.pending_words.drain(..begun).collect(),
            sample_rate,
            text: Some(text).filter(|text| !text.is_empty()),
            partial: self.partial.clone(),
            segments: std::mem::take(&mut self.pending_segments),
            language: self.language.clone(),
            emissions,
            emission_ends,
            is_final: chunk.is_final,
            stats,
            prediction: self.prediction.filter(|_| chunk.sequence == 0),
            notes: std::mem::take(&mut self.request.notes),
            pauses: None,
        };
        self.pending.push_back((chunk, now));
    }
}
