//! What a model is asked for: an utterance, a transcription, a turn of a conversation.

use std::sync::Arc;

use crate::{SamplingParams, Turn, VoiceReference};

/// One utterance to speak.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakInput {
    /// What to say, as the user wrote it.
    pub text: String,
    /// A name out of [`ModelInfo::voices`]; `None` for the default.
    pub voice: Option<String>,
    /// BCP 47 tag, when the caller knows.
    pub language: Option<String>,
    /// Style prompt.
    pub instructions: Option<String>,
    /// A voice to take in place of the model's own.
    pub reference: Option<VoiceReference>,
    /// Whether the text is given to the model as it speaks (`true`) or whole before it does (`false`); `None` for the
    /// model's own way.
    pub streams_text: Option<bool>,
    /// Tempo, 1.0 is the voice's own.
    pub speed: f32,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Seed of everything random in this utterance.
    pub seed: u64,
    /// Tokens after which the engine ends a pass, if [`PrepareLimits::max_positions`] does not before. Only the model
    /// knows what of them is not sound yet.
    pub max_tokens: usize,
    /// Samples that the listener gets at once: a model may make sound in such portions. 1 for as soon as it can.
    pub chunk_samples: usize,
}

impl SpeakInput {
    /// `text` in the model's first voice, with nothing else asked for.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            voice: None,
            language: None,
            instructions: None,
            reference: None,
            streams_text: None,
            speed: 1.0,
            sampling: SamplingParams::GREEDY,
            seed: 0,
            max_tokens: usize::MAX,
            chunk_samples: 1,
        }
    }
}

/// One recording to transcribe.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenInput {
    /// Mono samples at [`ModelInfo::input_sample_rate_hz`].
    pub samples: Arc<[f32]>,
    /// A code out of [`ModelInfo::languages`], a BCP 47 tag or an English name; `None` to detect it.
    pub language: Option<String>,
    /// Text that might have come before: names, spellings, style.
    pub prompt: Option<String>,
    /// Render in English instead of transcribing.
    pub translate: bool,
    /// Tell when each word was said.
    pub word_timestamps: bool,
    /// 0.0 decodes greedily and raises the temperature where the result looks wrong; above 0.0 it is kept.
    pub temperature: f32,
    /// Seed of everything random in this transcription.
    pub seed: u64,
}

/// A conversation in which the model speaks next.
///
/// Its prompt begins with all that earlier turns consisted of, so that the content keys of [`Work::Autoregressive`] are
/// those of the earlier turn's prompt and of its [`StepOutput::content_key`]s: whose blocks are kept by these keys need
/// not be computed again.
#[derive(Debug, Clone, PartialEq)]
pub struct ConverseInput {
    /// What the model is told before the conversation; `None` for its own way.
    pub instructions: Option<String>,
    /// All turns so far, the user's first and last.
    pub turns: Vec<Turn>,
    /// How codes are drawn; `None` for the model's own way.
    pub sampling: Option<SamplingParams>,
    /// How text is drawn; `None` for the model's own way.
    pub text_sampling: Option<SamplingParams>,
    /// Seed of everything random in this turn.
    pub seed: u64,
    /// Tokens and frames together after which the engine ends the turn.
    pub max_tokens: usize,
    /// Samples that the listener gets at once.
    pub chunk_samples: usize,
}

/// What a request becomes before it is scheduled.
#[derive(Debug, Clone)]
pub enum Input {
    /// Speak.
    Speak(SpeakInput),
    /// Transcribe.
    Listen(ListenInput),
    /// Answer in a conversation.
    Converse(ConverseInput),
}

/// Bounds a family keeps while it cuts work to size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrepareLimits {
    /// The most tokens one step can take: no unit may be larger.
    pub max_tokens_per_step: usize,
    /// The most positions a pass can have, prompt and generated together.
    pub max_positions: usize,
}

/// An input the model cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The request field at fault, by its public name (`voice`, `input`, `language` …).
    pub param: &'static str,
    /// What is wrong, with the value and the remedy.
    pub message: String,
}

impl InputError {
    /// The input is for a task that the model does not do.
    pub fn other_task(does: &str, param: &'static str) -> Self {
        Self { param, message: format!("this model {does}; choose another for {param}") }
    }
}
