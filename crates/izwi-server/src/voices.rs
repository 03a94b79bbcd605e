//! Which of a model's voices a name means.

use izwi_core::engine::ExecutorProfile;
use izwi_core::engine::executor::VoiceInfo;

use crate::error::ApiError;
use crate::near;

/// Names of OpenAI's voices: clients send them by default, so that each must mean some voice.
/// <https://platform.openai.com/docs/guides/text-to-speech#voice-options>
pub const OPENAI_VOICES: [&str; 13] = [
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin",
    "cedar",
];

/// The voice that `name` means; the model's default without a name, `None` if the model has no voices.
///
/// A real name wins over OpenAI's names, which are spread over the voices there are.
pub(crate) fn resolve<'a>(
    profile: &'a ExecutorProfile,
    name: Option<&str>,
) -> Result<Option<&'a VoiceInfo>, ApiError> {
    let voices = &profile.voices;
    let Some(name) = name else { return Ok(voices.first()) };
    if let Some(voice) = voices.iter().find(|voice| voice.id == name) {
        return Ok(Some(voice));
    }
    let alias = OPENAI_VOICES.iter().position(|alias| alias.eq_ignore_ascii_case(name));
    match alias {
        Some(index) => Ok(voices.get(index % voices.len().max(1))),
        None => Err(ApiError::VoiceNotFound {
            id: near::shown(name),
            model: profile.model.clone(),
            hint: near::hint(name, voices.iter().map(|voice| voice.id.as_str())),
        }),
    }
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::{GenerationParams, TaskType};

    use super::*;

    fn profile(voices: &[&str]) -> ExecutorProfile {
        let voice =
            |id: &&str| VoiceInfo { id: (*id).into(), language: "en".into(), description: String::new() };
        ExecutorProfile {
            model: "m".into(),
            device: "cpu".into(),
            sample_rate: 24_000,
            tasks: vec![TaskType::Tts],
            voices: voices.iter().map(voice).collect(),
            kv_block_bytes: 0,
            speed_range: None,
            takes_instructions: false,
            languages: Vec::new(),
            translates: false,
            clones_voices: false,
            memory_bytes: 0,
            state_bytes: 0,
            default_params: GenerationParams::default(),
        }
    }

    fn resolved(voices: &[&str], name: Option<&str>) -> Result<Option<String>, ApiError> {
        resolve(&profile(voices), name).map(|voice| voice.map(|voice| voice.id.clone()))
    }

    #[test]
    fn openai_names_never_fail_and_real_names_win() {
        for name in OPENAI_VOICES {
            assert!(resolved(&["one", "two"], Some(name)).unwrap().is_some());
            assert_eq!(resolved(&[], Some(name)).unwrap(), None);
        }
        assert_eq!(resolved(&["one", "alloy"], Some("alloy")).unwrap().as_deref(), Some("alloy"));
        assert_eq!(resolved(&["one", "two"], None).unwrap().as_deref(), Some("one"));
    }

    #[test]
    fn an_unknown_voice_lists_near_names() {
        let error = resolved(&["anna", "bella"], Some("ana")).unwrap_err();
        assert_eq!((error.code(), error.param()), ("voice_not_found", Some("voice")));
        assert!(error.to_string().contains("'anna'"), "{error}");
    }
}
