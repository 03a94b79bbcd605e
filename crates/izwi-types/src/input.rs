//! Inputs of a model: an utterance, a transcription, a turn of a conversation.

use std::ops::Range;
use std::sync::Arc;

use crate::{SamplingParams, SpeechOptions, Tool, ToolChoice, TranscriptionOptions, Turn, VoiceReference};

/// The sounds of a word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordSounds {
    /// Its place, in bytes.
    pub range: Range<usize>,
    /// Its sounds, in misaki's alphabet.
    pub phonemes: String,
}

/// One utterance to synthesise.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakInput {
    /// The text, as the user wrote it.
    pub text: String,
    /// Words of the text whose sounds are given, in order, only for models with
    /// [`ModelInfo::takes_phonemes`](crate::ModelInfo::takes_phonemes).
    pub sounds: Vec<WordSounds>,
    /// The id of one of [`ModelInfo::voices`](crate::ModelInfo::voices); `None` for the default.
    pub voice: Option<String>,
    /// The options that the client set. `speed`, `sampling`, `seed` and `max_tokens` below have the model's defaults too.
    pub options: SpeechOptions,
    /// A voice to use instead of the model's own.
    pub reference: Option<VoiceReference>,
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
}

impl SpeakInput {
    /// The same in the language of a BCP 47 tag.
    #[must_use]
    pub fn in_language(mut self, tag: impl Into<String>) -> Self {
        self.options.language = Some(tag.into());
        self
    }

    /// `text` in the model's default voice, with every option at its default.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            sounds: Vec::new(),
            voice: None,
            options: SpeechOptions::default(),
            reference: None,
            has_more_text: false,
            speed: 1.0,
            sampling: SamplingParams::GREEDY,
            seed: 0,
            max_tokens: usize::MAX,
            chunk_samples: 1,
            first_chunk_samples: None,
        }
    }
}

/// One recording to transcribe, or to align with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenInput {
    /// Mono samples at [`ModelInfo::input_sample_rate_hz`](crate::ModelInfo::input_sample_rate_hz).
    pub samples: Arc<[f32]>,
    /// Checked options. The engine sets the seed, and the temperature where the client set none.
    pub options: TranscriptionOptions,
    /// Whether the transcript is delivered while it is made.
    pub is_streamed: bool,
    /// Set if the recording is a window of live audio.
    pub window: Option<LiveWindow>,
    /// Set if the audio is appended while it is transcribed; `samples` are empty then. Milliseconds of audio from one text to
    /// the next: one of [`ModelInfo::chunks_ms`](crate::ModelInfo::chunks_ms).
    pub chunk_ms: Option<u32>,
    /// What is said in the recording: its words are timed and nothing is transcribed. Only for models with
    /// [`ModelInfo::aligns_text`](crate::ModelInfo::aligns_text).
    pub text: Option<String>,
}

impl ListenInput {
    /// A recording with every option at its default.
    pub fn plain(samples: Arc<[f32]>) -> Self {
        Self {
            samples,
            options: TranscriptionOptions::default(),
            is_streamed: false,
            window: None,
            chunk_ms: None,
            text: None,
        }
    }

    /// Temperature of the tokens: 0.0 decodes greedily with fallback to higher temperatures; any other value is used without
    /// fallback.
    pub fn temperature(&self) -> f32 {
        self.options.temperature.unwrap_or_default()
    }

    /// Seed of all randomness in this transcription.
    pub fn seed(&self) -> u64 {
        self.options.seed.unwrap_or_default()
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
    /// Tools that may be called, only for models with [`ModelInfo::calls_tools`](crate::ModelInfo::calls_tools).
    pub tools: Vec<Tool>,
    /// Whether they are called.
    pub tool_choice: ToolChoice,
    /// Whether nobody hears the answer: a model that speaks after it writes need not speak.
    pub text_only: bool,
    /// A voice and a tempo, only for models with [`ModelInfo::transcriber`](crate::ModelInfo::transcriber), which speak by another
    /// model; `None` and 1.0 for their own.
    pub voice: Option<String>,
    pub speed: f32,
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
