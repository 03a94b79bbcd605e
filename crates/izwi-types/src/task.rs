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
    /// Who speaks when in a recording.
    Diarize,
    /// Whether a speaker has finished.
    Turn,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 5] = [Self::Tts, Self::Asr, Self::Chat, Self::Diarize, Self::Turn];

    /// Whether it tells what is in a recording, and makes no audio.
    pub fn listens(self) -> bool {
        matches!(self, Self::Asr | Self::Diarize | Self::Turn)
    }

    /// The name in manifests, on the command line and in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tts => "tts",
            Self::Asr => "asr",
            Self::Chat => "chat",
            Self::Diarize => "diarize",
            Self::Turn => "turn",
        }
    }
}
