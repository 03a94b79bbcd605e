//! Voices: built-in ones by name, and references for voice cloning.

use std::sync::Arc;

/// A built-in voice of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// Name, as users give it.
    pub id: String,
    /// BCP 47 tag of its language, e.g. `en-US`; `mul` where it speaks every language of its model.
    pub language: String,
    /// Who it sounds like, where that is known.
    pub gender: Option<Gender>,
    /// A short description for users.
    pub description: String,
}

/// Gender of a voice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gender {
    /// `female`.
    Female,
    /// `male`.
    Male,
}

impl Gender {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Female, Self::Male];

    /// Its name in lists of voices.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Female => "female",
            Self::Male => "male",
        }
    }
}

impl Voice {
    /// Whether `name` is one of `voices` or a blend of them, with weights or without: `a(2)+b(1)`. A model that does not
    /// blend refuses it.
    #[must_use]
    pub fn is_named(name: &str, voices: &[Self]) -> bool {
        let is_voice = |name: &str| voices.iter().any(|voice| voice.id == name);
        let part = |part: &str| part.split('(').next().unwrap_or_default().trim().to_owned();
        is_voice(name) || name.contains(['+', '(']) && name.split('+').all(|one| is_voice(&part(one)))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voices_and_blends_of_them_are_named() {
        let voice = |id: &str| Voice {
            id: id.to_owned(),
            language: String::new(),
            gender: None,
            description: String::new(),
        };
        let voices = [voice("heart"), voice("adam")];
        for (name, expected) in [
            ("heart", true),
            ("heart(2)+adam(1)", true),
            ("heart + adam", true),
            ("adam(0.5)", true),
            ("heart+nobody", false),
            ("heart+", false),
            ("(2)", false),
            ("", false),
        ] {
            assert_eq!(Voice::is_named(name, &voices), expected, "{name}");
        }
    }
}
