//! Languages by code and by English name. Knows no model.

use crate::{excerpt, similar};

/// The languages of multilingual ASR models: ISO 639-1 codes where there are any, as such models and OpenAI's API name them.
const NAMES: &[(&str, &str)] = &[
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// Further names, and BCP 47 subtags with another code in the list.
const ALIASES: &[(&str, &str)] = &[
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
    ("cmn", "zh"),
    ("zho", "zh"),
    ("eng", "en"),
    ("deu", "de"),
    ("fra", "fr"),
    ("spa", "es"),
    ("ita", "it"),
    ("por", "pt"),
    ("jpn", "ja"),
    ("kor", "ko"),
    ("fil", "tl"),
    ("filipino", "tl"),
    ("iw", "he"),
    ("jv", "jw"),
    ("nb", "no"),
];

/// The code of a language given as a code, a BCP 47 tag or an English name. A given model may not support it.
pub fn code_of(wanted: &str) -> Option<String> {
    let wanted = wanted.trim().to_lowercase();
    let named = |word: &str| {
        let name = NAMES.iter().find(|(code, name)| *code == word || *name == word).map(|(code, _)| *code);
        name.or_else(|| ALIASES.iter().find(|(alias, _)| *alias == word).map(|(_, code)| *code))
    };
    let subtag = wanted.split(['-', '_']).next().unwrap_or_default();
    let is_tag = (2..=3).contains(&subtag.len());
    named(&wanted).or_else(|| named(subtag).filter(|_| is_tag)).map(str::to_owned)
}

/// The BCP 47 tag of a language given as a tag, with hyphens or underscores, or by its English name; `None` for what is none.
pub fn tag_of(wanted: &str) -> Option<String> {
    let tag = wanted.trim().replace('_', "-");
    let (subtag, region) =
        tag.split_once('-').map_or((tag.as_str(), None), |(tag, region)| (tag, Some(region)));
    let is_subtag = (2..=3).contains(&subtag.len()) && subtag.bytes().all(|byte| byte.is_ascii_alphabetic());
    let code = code_of(subtag).or_else(|| is_subtag.then(|| subtag.to_lowercase()))?;
    let is_region = |region: &str| {
        region.split('-').all(|part| {
            (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    };
    match region {
        None => Some(code),
        Some(region) => is_region(region).then(|| format!("{code}-{region}")),
    }
}

/// The English name of a language, in lower case.
pub fn name_of(code: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

/// The English name of a language as a sentence has it, or its code where it has no name here.
pub fn title_of(code: &str) -> String {
    let name = name_of(code).unwrap_or(code);
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The code, among `known`, of the language that `wanted` names.
///
/// # Errors
/// There is none; the message names `wanted` and lists what is known.
pub fn supported(wanted: &str, known: &[String]) -> Result<String, String> {
    match code_of(wanted) {
        Some(code) if known.contains(&code) => Ok(code),
        code => {
            let suggestion = nearest(wanted).filter(|_| code.is_none());
            let suggestion = suggestion.map(|name| format!(", perhaps '{name}'")).unwrap_or_default();
            let (wanted, known) = (excerpt(wanted), known.join(", "));
            Err(format!(
                "language '{wanted}' is unknown to this model{suggestion}; use one of {known}, or leave it out"
            ))
        }
    }
}

/// The language with the name most similar to `wanted`.
pub fn nearest(wanted: &str) -> Option<&'static str> {
    let names = NAMES.iter().map(|&(_, name)| name);
    similar(wanted.trim(), names).first().copied()
}

/// Whether the language is written without spaces between words.
pub fn is_unspaced(code: &str) -> bool {
    matches!(code, "zh" | "ja" | "th" | "lo" | "my" | "yue")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_region_and_what_is_none_is_told() {
        for (wanted, tag) in [
            ("en", "en"),
            ("EN_us", "en-us"),
            ("en-US", "en-US"),
            ("English", "en"),
            ("eng", "en"),
            ("gsw-CH", "gsw-CH"),
        ] {
            assert_eq!(tag_of(wanted).as_deref(), Some(tag), "{wanted}");
        }
        for none in ["", "!!", "Klingonese", "en-", "en-US-!", "e"] {
            assert_eq!(tag_of(none), None, "{none}");
        }
    }

    #[test]
    fn codes_tags_and_names_mean_the_same() {
        for (wanted, code) in [
            ("en", Some("en")),
            ("en-US", Some("en")),
            ("EN_gb", Some("en")),
            ("german", Some("de")),
            ("Haitian Creole", Some("ht")),
            ("Mandarin", Some("zh")),
            ("zh-Hant-TW", Some("zh")),
            ("nb-NO", Some("no")),
            ("yue", Some("yue")),
            ("klingon", None),
            ("", None),
            ("english-ish", None),
        ] {
            assert_eq!(code_of(wanted).as_deref(), code, "{wanted}");
        }
    }

    #[test]
    fn a_language_that_is_not_supported_is_named_with_those_that_are() {
        let known = ["en".to_owned(), "de".to_owned()];
        assert_eq!(supported("German", &known), Ok("de".to_owned()));
        for wanted in ["fr", "klingon", "", "germn"] {
            let message = supported(wanted, &known).unwrap_err();
            assert!(message.contains(&format!("'{wanted}'")) && message.contains("en, de"), "{message}");
            assert_eq!(message.contains("perhaps 'german'"), wanted == "germn", "{message}");
        }
        assert_eq!(
            (name_of("en"), name_of("yue"), name_of("xx")),
            (Some("english"), Some("cantonese"), None)
        );
    }

    #[test]
    fn misspelled_languages_are_suggested() {
        assert_eq!(nearest("germn"), Some("german"));
        assert_eq!(nearest("Frensh"), Some("french"));
        assert_eq!(nearest("qqq"), None);
    }
}
