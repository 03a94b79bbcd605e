//! The nouns of the engine: identifiers, tasks, parameters, results. Behaviour lives elsewhere.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::executor::{Emission, Segment};

/// Names one request, unique within a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// A fresh random id.
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

/// Names one running sequence; never reused, so that a late result cannot reach another sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Index of a block in the physical KV pool.
pub type BlockId = u32;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskType {
    /// Text to speech.
    Tts,
    /// Speech to text.
    Asr,
    /// Spoken conversation.
    AudioChat,
}

impl TaskType {
    /// The value of the `task` metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Tts => "tts",
            Self::Asr => "asr",
            Self::AudioChat => "chat",
        }
    }
}

/// How urgent a request is. Only the priority policy orders by it; every policy preempts the lowest first.
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
            other => Err(format!("priority '{other}' is unknown; use low, normal or high")),
        }
    }
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model came to its end.
    Stop,
    /// A token or length limit was reached.
    Length,
    /// The watchdog cut a generation that did not end by itself.
    RunawayTrimmed,
    /// The client left or aborted.
    Cancelled,
    /// The client spoke over it.
    Interrupted,
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
            Self::Error => "error",
        }
    }
}

/// How a request is to be generated. A request without parameters uses the model's own.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationParams {
    /// Randomness of sampling, 0.0 (greedy) to 2.0.
    pub temperature: f32,
    /// Nucleus mass, above 0.0 up to 1.0.
    pub top_p: f32,
    /// Candidates kept, 0 for all.
    pub top_k: usize,
    /// Penalty of repeated tokens, 1.0 for none.
    pub repetition_penalty: f32,
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// Tempo of speech, 1.0 is the voice's own.
    pub speed: f32,
    /// Seed of everything random; `None` draws one.
    pub seed: Option<u64>,
}

impl Default for GenerationParams {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_p: 0.9,
            top_k: 50,
            repetition_penalty: 1.0,
            max_tokens: 2048,
            speed: 1.0,
            seed: None,
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
    /// Length in time.
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
    /// What failed, when the reason is an error.
    pub error: Option<String>,
    /// The seed that was given or drawn: with it the same request gives the same result.
    pub seed: u64,
    /// Tokens of the prepared input.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Samples produced, for requests that speak.
    pub samples: u64,
    /// Length of the audio made or heard.
    pub audio_duration: Duration,
    /// From acceptance to first execution.
    pub queue_time: Duration,
    /// From acceptance to the end.
    pub generation_time: Duration,
    /// From acceptance to the first samples.
    pub time_to_first_audio: Option<Duration>,
}

impl RequestStats {
    /// Processing time over audio time; 0 when there is no audio. Lower is better.
    pub fn rtf(&self) -> f32 {
        rtf(self.generation_time, self.audio_duration)
    }
}

/// Processing time over audio time; 0 when there is no audio.
pub fn rtf(processing: Duration, audio: Duration) -> f32 {
    if audio.is_zero() { 0.0 } else { processing.as_secs_f32() / audio.as_secs_f32() }
}

/// What was heard.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// Code of the language heard; `None` when nothing was said.
    pub language: Option<String>,
    /// Its segments, in order; their texts make up the whole.
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// The whole text, without the space before it.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }
}

/// A finished request, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOutput {
    /// Which request.
    pub request_id: RequestId,
    /// What it asked for.
    pub task_type: TaskType,
    /// What was spoken; empty for a streaming request, whose chunks carried it.
    pub audio: AudioOutput,
    /// What was heard or said in text; for a transcription always there, empty when nothing was said.
    pub text: Option<String>,
    /// What was heard, with its times; `None` for other tasks.
    pub transcript: Option<Transcript>,
    /// What was said in a conversation, in order: with it the conversation goes on.
    pub emissions: Vec<Emission>,
    /// From acceptance to the end.
    pub generation_time: Duration,
    /// The rest of the numbers.
    pub stats: RequestStats,
}

impl EngineOutput {
    /// Processing time over audio time; 0 when there is no audio. Lower is better.
    pub fn rtf(&self) -> f32 {
        self.stats.rtf()
    }
}

/// One chunk of a streaming request.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamingOutput {
    /// Which request.
    pub request_id: RequestId,
    /// 0, 1, 2, … without gap.
    pub sequence: u64,
    /// Offset of the first sample from the start of the utterance.
    pub sample_offset: u64,
    /// Mono samples in −1.0..=1.0; exactly the chunk size, except in the final chunk. None for a transcription.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
    /// New text since the last chunk.
    pub text: Option<String>,
    /// New segments of a transcript since the last chunk.
    pub segments: Vec<Segment>,
    /// Code of the language heard, once it is known.
    pub language: Option<String>,
    /// What was said in a conversation and has been handed over whole with this chunk, in order.
    pub emissions: Vec<Emission>,
    /// Whether nothing follows.
    pub is_final: bool,
    /// The request's numbers, on the final chunk.
    pub stats: Option<RequestStats>,
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
