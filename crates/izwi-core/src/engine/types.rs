//! Types of the engine's API: identifiers, parameters, results.
//!
//! Must not know any other module of the engine.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::time::Instant;

use izwi_types::{Emission, Segment, SpokenWord, Task, TextNotes, Transcript, excerpt};

use super::error::EngineError;

/// Identifies a request, unique within a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// A new random id.
    pub fn random() -> Self {
        Self(format!("req-{}", uuid::Uuid::new_v4().simple()).into())
    }

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RequestId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies a running sequence. Never reused, so a late result cannot reach another sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A map from ids, which no client chooses: its hash is fast, and its order is the same in every run.
pub(super) type IdMap<K, V> = HashMap<K, V, FixedState>;
/// A set of ids.
pub(super) type IdSet<K> = HashSet<K, FixedState>;

/// Priority of a request: among equally urgent ones, higher priorities are admitted first and preempted last. With
/// [`SchedulingPolicy::Priority`](super::SchedulingPolicy::Priority) they also preempt lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Background work.
    Low,
    /// Interactive work.
    #[default]
    Normal,
    /// A screen reader, an alarm.
    High,
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            other => Err(format!("priority '{}' is unknown; use low, normal or high", excerpt(other))),
        }
    }
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended the generation.
    Stop,
    /// A token or length limit was reached.
    Length,
    /// The watchdog cut a runaway generation.
    RunawayTrimmed,
    /// The client disconnected or aborted.
    Cancelled,
    /// The client interrupted the output.
    Interrupted,
    /// No more text or audio arrived for `text_timeout`.
    TextTimeout,
    /// The model failed.
    Error,
}

impl FinishReason {
    /// The value on the wire and of the `finish_reason` metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::RunawayTrimmed => "runaway_trimmed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::TextTimeout => "text_timeout",
            Self::Error => "error",
        }
    }
}

/// Mono audio.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AudioOutput {
    /// Samples in −1.0..=1.0.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
}

impl AudioOutput {
    /// Duration.
    pub fn duration(&self) -> Duration {
        audio_duration(self.samples.len() as u64, self.sample_rate)
    }
}

/// Duration of `samples` at `sample_rate_hz` (0 Hz counts as no audio).
pub fn audio_duration(samples: u64, sample_rate_hz: u32) -> Duration {
    if sample_rate_hz == 0 {
        return Duration::ZERO;
    }
    Duration::from_secs_f64(samples as f64 / f64::from(sample_rate_hz))
}

/// Statistics of one finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestStats {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The failure, if the reason is [`FinishReason::Error`] or [`FinishReason::TextTimeout`].
    pub error: Option<EngineError>,
    /// The seed that was given or chosen: the same request with it gives the same result.
    pub seed: u64,
    /// Tokens of the prepared input.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Samples generated.
    pub samples: u64,
    /// Duration of the generated or, for ASR, of the input audio.
    pub audio_duration: Duration,
    /// When it was accepted.
    pub accepted_at: Instant,
    /// From acceptance until its input was prepared.
    pub prepare_time: Duration,
    /// From acceptance to first execution.
    pub queue_time: Duration,
    /// From acceptance, or from the end of the engine's warm-up if that is later, to the end, without the time in which its
    /// client was slow or its input had run out.
    pub generation_time: Duration,
    /// From acceptance to the first output of the model: the end of the prefill.
    pub time_to_first_output: Option<Duration>,
    /// From acceptance to the first samples.
    pub time_to_first_audio: Option<Duration>,
}

impl RequestStats {
    /// Real-time factor: processing time over audio time, 0 without audio. Lower is better.
    pub fn rtf(&self) -> f32 {
        rtf(self.generation_time, self.audio_duration)
    }
}

/// Real-time factor: processing time over audio time, 0 without audio.
pub fn rtf(processing: Duration, audio: Duration) -> f32 {
    if audio.is_zero() { 0.0 } else { processing.as_secs_f32() / audio.as_secs_f32() }
}

/// What a client's player tells of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlaybackReport {
    /// The audio that was played so far.
    pub played: Duration,
    /// The silence that was heard so far because audio was missing; `None` from a player that does not know. One that does
    /// may play more slowly than the audio is: what it does not tell is then no gap.
    pub silence: Option<Duration>,
}

/// What was predicted for a live stream when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// From arrival to the first audio.
    pub first_audio: Duration,
    /// Processing time over audio time while it plays. Above 1 the audio is generated slower than it plays.
    pub rtf: f32,
    /// How long a player waits after the first audio so that the rest plays without a gap. Zero where the audio is
    /// generated faster than it plays.
    pub prebuffer: Duration,
}

/// The whole result of a finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOutput {
    /// The request.
    pub request_id: RequestId,
    /// The request's task.
    pub task_type: Task,
    /// Generated audio; empty for tasks that listen and for streaming requests, whose chunks carry it.
    pub audio: AudioOutput,
    /// Transcribed or generated text. Always `Some` for tasks that listen, empty if the recording holds no speech.
    pub text: Option<String>,
    /// What a task that listens tells of the recording: a transcript, or the turns of its speakers, segments without text;
    /// `None` for other tasks.
    pub transcript: Option<Transcript>,
    /// Output of a conversational turn, in order, for [`Conversation::answer`](super::Conversation::answer).
    pub emissions: Vec<Emission>,
    /// As of its statistics.
    pub generation_time: Duration,
    /// Statistics.
    pub stats: RequestStats,
}

impl EngineOutput {
    /// Real-time factor: processing time over audio time, 0 without audio. Lower is better.
    pub fn rtf(&self) -> f32 {
        self.stats.rtf()
    }
}

/// One chunk of a streaming request.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamingOutput {
    /// The request.
    pub request_id: RequestId,
    /// Number of the chunk, from 0 without gaps.
    pub sequence: u64,
    /// Offset of the first sample from the start of the utterance.
    pub sample_offset: u64,
    /// Mono samples in −1.0..=1.0: exactly the chunk size, except in the final chunk and a first one with a size of its
    /// own. Empty for tasks that listen.
    pub samples: Vec<f32>,
    /// The words whose first sound is in this chunk, their times in samples from the start of the utterance. Empty where the
    /// model does not know when words are spoken.
    pub words: Vec<SpokenWord>,
    /// Samples per second.
    pub sample_rate: u32,
    /// New text since the last chunk.
    pub text: Option<String>,
    /// Of audio that is transcribed as it arrives: what follows the text for now, and the next chunk replaces.
    pub partial: String,
    /// New segments of a transcript since the last chunk.
    pub segments: Vec<Segment>,
    /// Code of the detected language, once known.
    pub language: Option<String>,
    /// Output of a conversational turn whose audio is complete with this chunk, in order.
    pub emissions: Vec<Emission>,
    /// For each of the emissions, the samples from the start of the turn to the end of its audio; for a text token, those
    /// before it.
    pub emission_ends: Vec<u64>,
    /// Whether this is the last chunk.
    pub is_final: bool,
    /// Statistics, on the final chunk.
    pub stats: Option<RequestStats>,
    /// What was predicted when the stream was accepted, on the first chunk of a live stream.
    pub prediction: Option<Prediction>,
    /// What the model says otherwise than it is written, on the first chunk.
    pub notes: TextNotes,
    /// How long the stream is expected to pause after this chunk, which has no samples: the machine has become too slow for all
    /// of its streams. Silence until the next chunk is no fault of the player.
    pub pauses: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtf_is_processing_over_audio_and_zero_without_audio() {
        assert_eq!(rtf(Duration::from_millis(500), Duration::from_secs(2)), 0.25);
        assert_eq!(rtf(Duration::from_secs(1), Duration::ZERO), 0.0);
        assert_eq!(audio_duration(4_800, 24_000), Duration::from_millis(200));
        assert_eq!(audio_duration(1, 0), Duration::ZERO);
    }

    #[test]
    fn priorities_order_and_parse() {
        assert!(Priority::High > Priority::Normal && Priority::Normal > Priority::Low);
        assert_eq!("high".parse(), Ok(Priority::High));
        assert!("urgent".parse::<Priority>().unwrap_err().contains("urgent"));
    }
}
