//! Names by which clients know models of hosted services and of other servers, and what stands for each here.

use izwi_core::engine::Task;

/// Names of hosted models that stand for the default TTS model, also with a date after them.
pub const TTS_ALIASES: [&str; 3] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"];
/// Names of hosted models that stand for the default ASR model, also with a date after them.
pub const ASR_ALIASES: [&str; 5] = [
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-transcribe",
    "gpt-4o-transcribe-diarize",
];

/// The model whose voices clients of other servers blend.
pub const BLENDING: &str = "kokoro";

/// Sizes of Whisper, by which other servers name it with or without a family and an owner before the size:
/// `large-v3`, `openai/whisper-base`, `Systran/faster-whisper-small`.
const SIZES: [&str; 19] = [
    "tiny",
    "tiny.en",
    "base",
    "base.en",
    "small",
    "small.en",
    "medium",
    "medium.en",
    "large",
    "large-v1",
    "large-v2",
    "large-v3",
    "large-v3-turbo",
    "turbo",
    "distil-small.en",
    "distil-medium.en",
    "distil-large-v2",
    "distil-large-v3",
    "distil-large-v3.5",
];
/// Sizes that are another name of one.
const SAME: [(&str, &str); 2] = [("large", "large-v3"), ("turbo", "large-v3-turbo")];

/// What a name that is no id of a model here stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Alias {
    /// Without one of `models` it stands for the default model of this task.
    pub(super) task: Task,
    /// Ids of the model that it names, the best first; none if it means the default model.
    pub(super) models: Vec<String>,
}

/// Reads a name. The case does not count.
pub(super) fn alias(name: &str) -> Option<Alias> {
    let dated = without_date(name);
    if TTS_ALIASES.contains(&dated) {
        return Some(Alias { task: Task::Tts, models: Vec::new() });
    }
    if ASR_ALIASES.contains(&dated) {
        return Some(Alias { task: Task::Asr, models: Vec::new() });
    }
    let name = name.to_ascii_lowercase();
    let name = name.rsplit('/').next().unwrap_or_default();
    if name == "kokoro" || name.starts_with("kokoro-") || name.starts_with("kokoro_") {
        return Some(Alias { task: Task::Tts, models: vec!["kokoro-82m".to_owned()] });
    }
    if name == "whisper" {
        return Some(Alias { task: Task::Asr, models: Vec::new() });
    }
    // Names of conversions, such as `faster-whisper-large-v3-turbo-ct2`.
    let name = name.strip_prefix("faster-").unwrap_or(name);
    let size = name.strip_suffix("-ct2").unwrap_or(name).replace("whisper-", "");
    let size = SIZES.contains(&size.as_str()).then_some(size)?;
    let same = SAME.iter().find(|(other, _)| *other == size).map_or(size.as_str(), |(_, same)| *same);
    let models = [format!("whisper-{same}"), same.to_owned(), same.replacen("distil-", "distil-whisper-", 1)];
    Some(Alias { task: Task::Asr, models: models.into() })
}

/// The name of a hosted model without the date of its release: `-2025-12-15` or `-1106`.
fn without_date(id: &str) -> &str {
    let digits =
        |text: &str, count: usize| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((name, last)) = id.rsplit_once('-') else { return id };
    if digits(last, 4) {
        return name;
    }
    let mut parts = name.rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(month), Some(year), Some(name)) if digits(last, 2) && digits(month, 2) && digits(year, 4) => {
            name
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_servers_are_read() {
        let first = |name: &str| alias(name).map(|alias| (alias.task, alias.models.first().cloned()));
        for name in ["tts-1", "tts-1-hd-1106", "gpt-4o-mini-tts-2025-12-15"] {
            assert_eq!(first(name), Some((Task::Tts, None)), "{name}");
        }
        for name in ["whisper-1", "whisper", "gpt-4o-transcribe-2025-03-20"] {
            assert_eq!(first(name), Some((Task::Asr, None)), "{name}");
        }
        for name in ["kokoro", "hexgrad/Kokoro-82M", "kokoro-v1_0", "speaches-ai/Kokoro-82M-v1.0-ONNX"] {
            assert_eq!(first(name), Some((Task::Tts, Some("kokoro-82m".to_owned()))), "{name}");
        }
        for (name, id) in [
            ("large-v3", "whisper-large-v3"),
            ("large", "whisper-large-v3"),
            ("openai/whisper-base", "whisper-base"),
            ("Systran/faster-whisper-small.en", "whisper-small.en"),
            ("Systran/faster-distil-whisper-large-v3", "whisper-distil-large-v3"),
            ("deepdml/faster-whisper-large-v3-turbo-ct2", "whisper-large-v3-turbo"),
            ("whisper-turbo", "whisper-large-v3-turbo"),
        ] {
            assert_eq!(first(name), Some((Task::Asr, Some(id.to_owned()))), "{name}");
        }
        assert!(alias("distil-large-v3.5").unwrap().models.contains(&"distil-whisper-large-v3.5".to_owned()));
        for name in ["", "/", "kokorot", "whisper-huge", "basement", "owner/base/x", "tts-1-1"] {
            assert_eq!(alias(name), None, "{name}");
        }
    }
}
