//! Tasks of a model.

use std::fmt;
use std::str::FromStr;

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

    /// The name in manifests, listings and metric labels.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tts => "tts",
            Self::Asr => "asr",
            Self::Chat => "chat",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|task| task.label() == text);
        found.ok_or_else(|| format!("task '{text}' is unknown; use tts, asr or chat"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_parse_back() {
        for task in Task::ALL {
            assert_eq!(task.to_string().parse(), Ok(task));
        }
        assert!("sing".parse::<Task>().unwrap_err().contains("sing"));
    }
}
