//! Voices: built-in ones by name, and references for voice cloning.

use std::sync::Arc;

/// A built-in voice of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// Name, as users give it.
    pub id: String,
    /// BCP 47 tag of its language, e.g. `en-US`.
    pub language: String,
    /// A short description for users.
    pub description: String,
}

/// A decoded recording of a voice.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceRecording {
    /// Mono samples at [`ModelInfo::sample_rate_hz`](crate::ModelInfo::sample_rate_hz).
    pub samples: Arc<[f32]>,
    /// Its transcript. Without it only the timbre is cloned.
    pub text: Option<String>,
    /// Clone the timbre only, even if `text` is given.
    pub timbre_only: bool,
}

/// A voice to clone, ready for the model.
#[derive(Debug, Clone, PartialEq)]
pub enum VoiceReference {
    /// A recording.
    Recording(VoiceRecording),
    /// A voice pack that the model made of a recording: a safetensors file.
    Pack(Arc<[u8]>),
}
