//! Voices: the model's own by name, and those taken from a recording.

use std::sync::Arc;

/// A voice a user can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// The name.
    pub id: String,
    /// BCP 47 tag of the language it speaks, e.g. `en-US`.
    pub language: String,
    /// A few words for a person choosing.
    pub description: String,
}

/// A recording of a voice.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceRecording {
    /// Mono samples at [`ModelInfo::sample_rate_hz`].
    pub samples: Arc<[f32]>,
    /// What is said in it. Without it only the timbre is taken.
    pub text: Option<String>,
    /// Take the timbre alone, whether or not the text is known.
    pub timbre_only: bool,
}

/// A voice that is not one of the model's own.
#[derive(Debug, Clone, PartialEq)]
pub enum VoiceReference {
    /// As it is in a recording.
    Recording(VoiceRecording),
    /// As `SpeechModel::make_voice` made it of one: a safetensors file.
    Pack(Arc<[u8]>),
}
