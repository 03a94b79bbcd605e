//! Languages and voices by name: from a user's spelling to the checkpoint's ids.

use super::config::{Config, Kind};
use izwi_types::{Gender, InputError, Voice, excerpt};

/// BCP 47 primary subtags and the English names that checkpoints use.
const LANGUAGES: &[(&str, &str)] = &[
    ("ar", "arabic"),
    ("de", "german"),
    ("en", "english"),
    ("es", "spanish"),
    ("fr", "french"),
    ("hi", "hindi"),
    ("it", "italian"),
    ("ja", "japanese"),
    ("ko", "korean"),
    ("nl", "dutch"),
    ("pl", "polish"),
    ("pt", "portuguese"),
    ("ru", "russian"),
    ("th", "thai"),
    ("tr", "turkish"),
    ("vi", "vietnamese"),
    ("zh", "chinese"),
];
/// Genders of the published voices: <https://github.com/QwenLM/Qwen3-TTS#custom-voice-generate>.
const GENDERS: [(&str, Gender); 9] = [
    ("aiden", Gender::Male),
    ("dylan", Gender::Male),
    ("eric", Gender::Male),
    ("ono_anna", Gender::Female),
    ("ryan", Gender::Male),
    ("serena", Gender::Female),
    ("sohee", Gender::Female),
    ("uncle_fu", Gender::Male),
    ("vivian", Gender::Female),
];
/// The name that leaves the language to the model.
const AUTO: &str = "auto";
/// Part of the names of dialects, which cannot be asked for.
const DIALECT: &str = "dialect";

/// Id of the language that `wanted` names: a BCP 47 tag, an English name or `auto`. A voice that speaks a dialect speaks
/// it where the language is Chinese or left open.
///
/// # Errors
/// The checkpoint does not know the language.
pub(super) fn language(
    config: &Config,
    wanted: Option<&str>,
    voice: Option<&str>,
) -> Result<Option<u32>, InputError> {
    let known = &config.talker_config.codec_language_id;
    let wanted = wanted.map(|wanted| wanted.trim().to_lowercase()).filter(|wanted| !wanted.is_empty());
    let wanted = wanted.unwrap_or_else(|| AUTO.to_owned());
    let primary = wanted.split(['-', '_']).next().unwrap_or_default();
    let name = LANGUAGES.iter().find(|(tag, _)| *tag == primary).map_or(wanted.as_str(), |(_, name)| name);
    if name == AUTO || name == "chinese" {
        let dialect = voice.and_then(|voice| config.talker_config.dialect_of(voice));
        if let Some(&id) = dialect.and_then(|dialect| known.get(dialect)) {
            return Ok(Some(id));
        }
    }
    if name == AUTO {
        return Ok(None);
    }
    match known.get(name).filter(|_| !name.contains(DIALECT)) {
        Some(&id) => Ok(Some(id)),
        None => {
            let names = known.keys().filter(|name| !name.contains(DIALECT));
            let names: Vec<&str> = names.map(String::as_str).collect();
            let (wanted, names) = (excerpt(&wanted), names.join(", "));
            let message = format!("language '{wanted}' is unknown to this model; use {names} or auto");
            Err(InputError { param: "language", message })
        }
    }
}

/// The voices that a checkpoint has of its own.
pub(super) fn voices(config: &Config) -> Vec<Voice> {
    if config.kind != Kind::CustomVoice {
        return Vec::new();
    }
    let talker = &config.talker_config;
    let describe = |name: &String| Voice {
        id: name.clone(),
        language: "mul".to_owned(),
        gender: GENDERS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, gender)| *gender),
        description: match talker.dialect_of(name) {
            Some(dialect) => format!("speaks every language of the model, and {}", dialect.replace('_', " ")),
            None => "speaks every language of the model".to_owned(),
        },
    };
    talker.spk_id.keys().map(describe).collect()
}

/// Id of a voice by its name in any case; the first voice where none is named. `None` for models without voices.
///
/// # Errors
/// The checkpoint does not know the voice, or has none of its own.
pub(super) fn voice<'a>(
    config: &'a Config,
    wanted: Option<&str>,
) -> Result<Option<(&'a str, u32)>, InputError> {
    let known = &config.talker_config.spk_id;
    if config.kind != Kind::CustomVoice {
        return match wanted {
            None => Ok(None),
            Some(wanted) => {
                let wanted = excerpt(wanted);
                let message = format!("voice '{wanted}' is unknown: this model has no voices of its own");
                Err(InputError { param: "voice", message })
            }
        };
    }
    let found = match wanted {
        None => known.iter().next(),
        Some(wanted) => known.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)),
    };
    match (found, wanted) {
        (Some((name, &id)), _) => Ok(Some((name, id))),
        (None, None) => Ok(None),
        (None, Some(wanted)) => {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let (wanted, names) = (excerpt(wanted), names.join(", "));
            let message = format!("voice '{wanted}' is unknown to this model; use {names}");
            Err(InputError { param: "voice", message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Settings;
    use super::super::golden_set::root;
    use super::*;

    #[test]
    fn languages_have_several_spellings_and_dialects_follow_voices() {
        let config = Settings::load(&root().join("cv06")).unwrap().config;
        let known = &config.talker_config.codec_language_id;
        let id = |wanted: Option<&str>, voice: Option<&str>| language(&config, wanted, voice).unwrap();
        for wanted in ["en", "EN-us", "English", " english "] {
            assert_eq!(id(Some(wanted), None), Some(known["english"]), "{wanted}");
        }
        assert_eq!((id(None, None), id(Some("auto"), None), id(Some(""), None)), (None, None, None));
        let (name, dialect) = config
            .talker_config
            .spk_id
            .keys()
            .find_map(|v| Some((v, config.talker_config.dialect_of(v)?)))
            .unwrap();
        assert_eq!(id(None, Some(name)), Some(known[dialect]));
        assert_eq!(id(Some("zh"), Some(name)), Some(known[dialect]));
        assert_eq!(id(Some("en"), Some(name)), Some(known["english"]));
        for wanted in [dialect, "klingon", "xx"] {
            let error = language(&config, Some(wanted), None).unwrap_err();
            assert!(error.param == "language" && error.message.contains("english"), "{error}");
        }
    }

    #[test]
    fn voice_names_ignore_case_and_unknown_ones_are_errors() {
        let config = Settings::load(&root().join("cv06")).unwrap().config;
        let name = config.talker_config.spk_id.keys().next_back().unwrap();
        let found = voice(&config, Some(&name.to_uppercase())).unwrap().unwrap();
        assert_eq!(found, (name.as_str(), config.talker_config.spk_id[name]));
        assert!(voice(&config, None).unwrap().is_some());
        assert!(voice(&config, Some("nobody")).unwrap_err().message.contains(name));
        let base = Settings::load(&root().join("base17")).unwrap().config;
        assert_eq!(voice(&base, None), Ok(None));
        assert_eq!(voice(&base, Some("x")).unwrap_err().param, "voice");
    }
}
