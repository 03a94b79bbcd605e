//! Static facts about a loaded checkpoint.

use crate::{SamplingParams, Task, Voice};

/// Static facts about a loaded checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Rate of the audio it makes, or takes where it makes none, and of the voices it is shown, in Hz.
    pub sample_rate_hz: u32,
    /// Rate of the recordings it listens to, in Hz.
    pub input_sample_rate_hz: u32,
    /// What it can do.
    pub tasks: Vec<Task>,
    /// Its voices; the first is the default. Empty for models that do not speak.
    pub voices: Vec<Voice>,
    /// Range of `speed` it honours; `None` when it cannot change tempo.
    pub speed_range: Option<(f32, f32)>,
    /// Whether it follows a style prompt.
    pub takes_instructions: bool,
    /// Languages it hears, as the codes it knows them by; empty for models that do not listen.
    pub languages: Vec<String>,
    /// Whether it can render what it hears in English.
    pub translates: bool,
    /// Whether it can speak in the voice of a [`VoiceReference`].
    pub clones_voices: bool,
    /// How tokens are drawn for a request that does not say.
    pub sampling: SamplingParams,
    /// Bytes of its weights, as loaded.
    pub weight_bytes: usize,
    /// Bytes that the state of one running sequence may take beside its KV blocks.
    pub state_bytes: usize,
}
