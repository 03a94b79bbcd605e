//! Tasks of a model.

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
    /// All tasks.
    pub const ALL: [Self; 3] = [Self::Tts, Self::Asr, Self::Chat];

    /// The name in manifests, on the command line and in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tts => "tts",
            Self::Asr => "asr",
            Self::Chat => "chat",
        }
    }
}
