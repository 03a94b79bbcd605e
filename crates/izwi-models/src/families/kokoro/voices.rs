//! The voices of a checkpoint and their blends. A voice has a style for each number of phonemes. Knows no tensor.

use std::path::{Path, PathBuf};

use super::config::STYLE;
use izwi_nn::Error;
use izwi_types::{Gender, Voice, excerpt, suggest};

/// Values of a style: one half for the decoder, the other for prosody.
pub(super) const VALUES: usize = 2 * STYLE;
const EXTENSION: &str = "bin";
const MAX_VOICES: usize = 1_024;
/// The most styles of a voice.
const MAX_STYLES: usize = 4_096;
/// The most voices of a blend.
const MAX_PARTS: usize = 8;
const MAX_WEIGHT: f32 = 1_000.0;

/// The first letter of a voice's name, its language, and the name of that.
const LANGUAGES: [(char, &str, &str); 9] = [
    ('a', "en-US", "American English"),
    ('b', "en-GB", "British English"),
    ('e', "es", "Spanish"),
    ('f', "fr", "French"),
    ('h', "hi", "Hindi"),
    ('i', "it", "Italian"),
    ('j', "ja", "Japanese"),
    ('p', "pt-BR", "Brazilian Portuguese"),
    ('z', "zh", "Mandarin Chinese"),
];
/// The voice of requests that name none, where a checkpoint has it.
const FIRST: &str = "af_heart";

/// All voices, the one for requests without a voice first.
#[derive(Debug)]
pub(super) struct Voices {
    named: Vec<(Voice, Vec<f32>)>,
}

/// A voice or a blend: shares of voices that sum to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blend {
    parts: Vec<(usize, f32)>,
}

impl Voices {
    /// Reads `voices/*.bin` in `folder`: styles in f32, little-endian, `[styles, 1, VALUES]` each.
    ///
    /// # Errors
    /// There is none, or a file has another size.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let mut named = Vec::new();
        for path in paths(folder)? {
            let bytes = std::fs::read(&path).map_err(|error| fault(&path, error.to_string()))?;
            let (values, rest) = bytes.as_chunks();
            let styles = values.len() / VALUES;
            if !rest.is_empty() || values.len() % VALUES != 0 || !(1..=MAX_STYLES).contains(&styles) {
                let message = format!("has {} bytes, which are not 1 to {MAX_STYLES} styles", bytes.len());
                return Err(fault(&path, message));
            }
            let styles = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            named.push((describe(&path), styles));
        }
        Ok(Self { named })
    }

    /// What each voice is.
    pub(super) fn list(&self) -> Vec<Voice> {
        self.named.iter().map(|(voice, _)| voice.clone()).collect()
    }

    /// Bytes of all styles.
    pub(super) fn bytes(&self) -> usize {
        self.named.iter().map(|(_, styles)| size_of_val(&styles[..])).sum()
    }

    /// The voice of a name, or the blend of several with their weights: `af_heart(2)+am_adam(1)`. Without a name, the first.
    ///
    /// # Errors
    /// A name or a weight that is none; the message names it.
    pub(super) fn find(&self, asked: Option<&str>) -> Result<Blend, String> {
        let Some(asked) = asked else { return Ok(Blend { parts: vec![(0, 1.0)] }) };
        let mut parts = Vec::new();
        for part in asked.split('+') {
            if parts.len() == MAX_PARTS {
                return Err(format!("a blend has more than {MAX_PARTS} voices"));
            }
            let (name, weight) = match part.trim().strip_suffix(')').and_then(|part| part.split_once('(')) {
                Some((name, weight)) => (name.trim(), weight.trim().parse().unwrap_or(f32::NAN)),
                None => (part.trim(), 1.0),
            };
            if !(weight > 0.0 && weight <= MAX_WEIGHT) {
                let part = excerpt(part);
                return Err(format!(
                    "the weight of '{part}' must be a number above 0 up to {MAX_WEIGHT}, as in a(2)+b(1)"
                ));
            }
            let found = self.named.iter().position(|(voice, _)| voice.id == name);
            parts.push((found.ok_or_else(|| self.unknown(name))?, weight));
        }
        let sum: f32 = parts.iter().map(|(_, weight)| weight).sum();
        parts.iter_mut().for_each(|(_, weight)| *weight /= sum);
        Ok(Blend { parts })
    }

    fn unknown(&self, name: &str) -> String {
        let names = self.named.iter().map(|(voice, _)| voice.id.as_str());
        format!("voice '{}' is unknown; {}", excerpt(name), suggest(name, "voices", names))
    }

    /// The language of a blend: that of its first voice.
    pub(super) fn language(&self, blend: &Blend) -> &str {
        blend
            .parts
            .first()
            .and_then(|(at, _)| self.named.get(*at))
            .map_or("en-US", |(voice, _)| &voice.language)
    }

    /// The style `[VALUES]` for `phonemes` phonemes, at least one.
    pub(super) fn style(&self, blend: &Blend, phonemes: usize) -> Vec<f32> {
        let mut mixed = vec![0f32; VALUES];
        for (at, weight) in &blend.parts {
            let styles = &self.named[*at].1;
            let row = (phonemes.max(1) - 1).min(styles.len() / VALUES - 1);
            let style = &styles[row * VALUES..][..VALUES];
            mixed.iter_mut().zip(style).for_each(|(mixed, style)| *mixed += weight * style);
        }
        mixed
    }
}

/// What each voice in `folder` is, without its styles: as [`Voices::list`].
///
/// # Errors
/// There is none.
pub(in crate::families) fn voices(folder: &Path) -> Result<Vec<Voice>, Error> {
    Ok(paths(folder)?.iter().map(|path| describe(path)).collect())
}

/// The files `voices/*.bin` in `folder`, that of the first voice first.
fn paths(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let folder = folder.join("voices");
    let entries = std::fs::read_dir(&folder).map_err(|error| fault(&folder, error.to_string()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect();
    let is_first = |path: &Path| path.file_stem().is_some_and(|name| name == FIRST);
    paths.sort_by_key(|path| (!is_first(path), path.clone()));
    paths.truncate(MAX_VOICES);
    match paths.is_empty() {
        true => Err(fault(&folder, format!("holds no voice (*.{EXTENSION})"))),
        false => Ok(paths),
    }
}

fn fault(path: &Path, message: String) -> Error {
    Error::File { path: path.display().to_string(), message }
}

/// The voice of a file, by its name.
fn describe(path: &Path) -> Voice {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let mut letters = name.chars();
    let (first, second) = (letters.next(), letters.next());
    let known = LANGUAGES.iter().find(|(letter, _, _)| Some(*letter) == first);
    let (language, said) = known.map_or(("en-US", "English"), |(_, tag, name)| (tag, name));
    let gender = match second {
        Some('f') => Some(Gender::Female),
        Some('m') => Some(Gender::Male),
        _ => None,
    };
    let description = match gender {
        Some(gender) => format!("{} voice, {said}", gender.name()),
        None => said.to_owned(),
    };
    Voice { id: name.to_owned(), language: language.to_owned(), gender, description }
}

#[cfg(test)]
mod tests {
    use super::super::golden_set;
    use super::*;

    fn voices() -> Voices {
        Voices::load(&golden_set().root()).unwrap()
    }

    #[test]
    fn blends_are_weighted_means_of_styles() {
        let voices = voices();
        let style = |name: &str| voices.style(&voices.find(Some(name)).unwrap(), 9);
        let (one, two) = (style("af_one"), style("am_two"));
        let mixed = style("af_one(2)+am_two(1)");
        for ((mixed, one), two) in mixed.iter().zip(&one).zip(&two) {
            assert!((mixed - (2.0 * one + two) / 3.0).abs() < 1e-6);
        }
        assert_eq!(voices.find(None), voices.find(Some("af_one")));
        assert_eq!(style("af_one + am_two"), style("af_one(7)+am_two(7)"));
        assert_ne!(voices.style(&voices.find(None).unwrap(), 10), one);
        assert_eq!(
            voices.style(&voices.find(None).unwrap(), 9_999),
            voices.style(&voices.find(None).unwrap(), 40)
        );
    }

    #[test]
    fn what_is_no_voice_is_refused() {
        let voices = voices();
        for (asked, expected) in [
            ("af_onee", "voice 'af_onee' is unknown; did you mean 'af_one'?"),
            ("", "voice '' is unknown"),
            ("af_one(0)", "the weight of 'af_one(0)' must be a number above 0"),
            ("af_one(x)+am_two", "the weight of 'af_one(x)'"),
            ("af_one(nan)", "the weight of"),
            ("af_one(-1)", "the weight of"),
            (&["af_one"; 9].join("+"), "more than 8 voices"),
        ] {
            let error = voices.find(Some(asked)).unwrap_err();
            assert!(error.contains(expected), "{asked}: {error}");
        }
    }

    #[test]
    fn names_tell_language_and_gender() {
        let voice = describe(Path::new("voices/bm_george.bin"));
        assert_eq!((voice.id.as_str(), voice.gender), ("bm_george", Some(Gender::Male)));
        assert_eq!(
            (voice.language.as_str(), voice.description.as_str()),
            ("en-GB", "male voice, British English")
        );
        let voice = describe(Path::new("x.bin"));
        assert_eq!((voice.language.as_str(), voice.gender), ("en-US", None));
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Voices::load(folder.path()).is_err());
        std::fs::create_dir(folder.path().join("voices")).unwrap();
        assert!(Voices::load(folder.path()).unwrap_err().to_string().contains("holds no voice"));
        for length in [0, 4, 1023, 1025] {
            std::fs::write(folder.path().join("voices/af_x.bin"), vec![0; length]).unwrap();
            assert!(Voices::load(folder.path()).unwrap_err().to_string().contains("styles"), "{length}");
        }
    }
}
