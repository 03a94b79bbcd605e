//! The tasks of models.

/// A task of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text to speech.
    Tts,
    /// Speech to text.
    Asr,
    /// Spoken conversation.
    Chat,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 3] = [Self::Tts, Self::Asr, Self::Chat];

    /// The name in manifests and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tts => "tts",
            Self::Asr => "asr",
            Self::Chat => "chat",
        }
    }
}
