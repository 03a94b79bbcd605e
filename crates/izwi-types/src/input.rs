//! Inputs of a model: an utterance, a transcription, a turn of a conversation.

use std::sync::Arc;
use std::time::Duration;

use crate::{BeamSearch, SamplingParams, SpeechOptions, Turn, VoiceReference};

/// One utterance to synthesise.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakInput {
    /// The text, as the user wrote it.
    pub text: String,
    /// The id of one of [`ModelInfo::voices`](crate::ModelInfo::voices); `None` for the default.
    pub voice: Option<String>,
    /// BCP 47 tag; `None` if unknown.
    pub language: Option<String>,
    /// Style prompt.
    pub instructions: Option<String>,
    /// A voice to use instead of the model's own.
    pub reference: Option<VoiceReference>,
    /// Whether the text is interleaved with generation (`true`) or in the prompt as a whole (`false`); `None` for the
    /// model's default.
    pub streams_text: Option<bool>,
    /// Whether more text is appended while it is spoken, only for models with
    /// [`ModelInfo::appends_text`](crate::ModelInfo::appends_text). The text is then interleaved with generation.
    pub has_more_text: bool,
    /// Tempo relative to the voice's own, 1.0 for unchanged.
    pub speed: f32,
    /// Sampling of tokens.
    pub sampling: SamplingParams,
    /// Seed of all randomness in this utterance.
    pub seed: u64,
    /// Tokens after which the engine ends a pass, unless [`PrepareLimits::max_positions`] ends it earlier. The model
    /// decides how many of them are still undecoded codes at that point.
    pub max_tokens: usize,
    /// Samples per delivered chunk: a model may decode audio in chunks of this size. 1 decodes as early as possible.
    pub chunk_samples: usize,
    /// Samples of the first delivered chunk; `None` for the size of all others.
    pub first_chunk_samples: Option<usize>,
    /// The options that the client set itself. The fields above have them, and the model's defaults for the others.
    pub asked: SpeechOptions,
}

impl SpeakInput {
    /// `text` in the model's default voice, with every option at its default.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            voice: None,
            language: None,
            instructions: None,
            reference: None,
            streams_text: None,
            has_more_text: false,
            speed: 1.0,
            sampling: SamplingParams::GREEDY,
            seed: 0,
            max_tokens: usize::MAX,
            chunk_samples: 1,
            first_chunk_samples: None,
            asked: SpeechOptions::default(),
        }
    }
}

/// One recording to transcribe.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenInput {
    /// Mono samples at [`ModelInfo::input_sample_rate_hz`](crate::ModelInfo::input_sample_rate_hz).
    pub samples: Arc<[f32]>,
    /// One of [`ModelInfo::languages`](crate::ModelInfo::languages), a BCP 47 tag or an English name; `None` to detect it.
    pub language: Option<String>,
    /// Context as if it preceded the recording: names, spellings, style.
    pub prompt: Option<String>,
    /// Translate into English instead of transcribing.
    pub translate: bool,
    /// Languages of which one is detected, each as `language`; empty for all.
    pub languages: Vec<String>,
    /// Words and phrases that are likely in the recording.
    pub keywords: Vec<String>,
    /// Compute the times of each word.
    pub word_timestamps: bool,
    /// Tell the log-probability of each token.
    pub logprobs: bool,
    /// How speech is found in the recording; `None` for the model's own way.
    pub detection: Option<SpeechDetection>,
    /// How the likeliest text is searched for.
    pub search: BeamSearch,
    /// Whether the transcript is delivered while it is made.
    pub is_streamed: bool,
    /// Set if the recording is a window of live audio.
    pub window: Option<LiveWindow>,
    /// 0.0 decodes greedily with fallback to higher temperatures; any other value is used without fallback.
    pub temperature: f32,
    /// Seed of all randomness in this transcription.
    pub seed: u64,
}

impl ListenInput {
    /// A recording with every option at its default.
    pub fn plain(samples: Arc<[f32]>) -> Self {
        Self {
            samples,
            language: None,
            prompt: None,
            translate: false,
            languages: Vec::new(),
            keywords: Vec::new(),
            word_timestamps: false,
            logprobs: false,
            detection: None,
            search: BeamSearch::default(),
            is_streamed: false,
            window: None,
            temperature: 0.0,
            seed: 0,
        }
    }
}

/// A window of live audio that is transcribed again as it grows: without silence detection, fallbacks and timestamps, since
/// the next transcript of it comes soon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveWindow {
    /// What its transcript begins with: a decoder is forced to it and generates what follows. A window that turns out to
    /// have no speech has no transcript.
    pub decided: String,
    /// Whether the model should spend more on it, since words are uncertain.
    pub is_thorough: bool,
}

/// How speech is found in a recording: each stretch of speech is transcribed on its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeechDetection {
    /// Score of the detector above which a frame is speech, 0.0 to 1.0.
    pub threshold: f32,
    /// Audio before speech that is part of its stretch.
    pub prefix_padding: Duration,
    /// Silence that ends a stretch.
    pub silence: Duration,
}

/// A conversation in which the model answers next.
///
/// The prompt starts with all earlier turns, so its content keys (see [`Work::Autoregressive`](crate::Work)) start with
/// those of the previous turn's prompt and with that turn's [`StepOutput::content_key`](crate::StepOutput::content_key)
/// values: blocks that are cached under these keys are reused.
#[derive(Debug, Clone, PartialEq)]
pub struct ConverseInput {
    /// System prompt; `None` for the model's default.
    pub instructions: Option<String>,
    /// All turns so far; the first and the last are the user's.
    pub turns: Vec<Turn>,
    /// Sampling of audio codes; `None` for the model's default.
    pub sampling: Option<SamplingParams>,
    /// Sampling of text tokens; `None` for the model's default.
    pub text_sampling: Option<SamplingParams>,
    /// Seed of all randomness in this turn.
    pub seed: u64,
    /// The most text tokens and audio frames, together, that the turn may have.
    pub max_tokens: usize,
    /// Samples per delivered chunk.
    pub chunk_samples: usize,
    /// Samples of the first delivered chunk; `None` for the size of all others.
    pub first_chunk_samples: Option<usize>,
}

/// The input of one request, before [`Prepared`](crate::Prepared).
#[derive(Debug, Clone)]
pub enum Input {
    /// Text to speech.
    Speak(SpeakInput),
    /// Speech to text.
    Listen(ListenInput),
    /// The next turn of a conversation.
    Converse(ConverseInput),
}

/// Limits on the work that a model prepares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrepareLimits {
    /// The most tokens of one step: no unit may be larger.
    pub max_tokens_per_step: usize,
    /// The most positions of a pass, prompt and generated together.
    pub max_positions: usize,
}

/// An input that the model rejects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The request field, by its public name (`voice`, `input`, `language` …).
    pub param: &'static str,
    /// What is wrong, with the value and the remedy.
    pub message: String,
}

impl InputError {
    /// The input is for a task that the model does not support.
    pub fn other_task(does: &str, param: &'static str) -> Self {
        Self { param, message: format!("this model {does}; choose another for {param}") }
    }
}
