//! The architectures and their one registry.
//!
//! A family is one folder here and one line in `REGISTRY`; its name appears nowhere else.

use std::path::Path;
use std::sync::Arc;

use crate::error::LoadError;
use crate::model::SpeechModel;
use izwi_nn::Error;
use izwi_types::Voice;

#[cfg(test)]
pub(crate) mod golden_set;
mod hibari;
mod kokoro;
mod lfm2_audio;
mod load_options;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod metal_budget;
mod nemo;
mod parakeet;
mod pocket_tts;
mod pyannote;
mod qwen3_asr;
mod qwen3_tts;
mod settings;
mod smart_turn;
mod sortformer;
mod voxtral;
mod whisper;

pub use load_options::LoadOptions;

/// Loads a checkpoint folder in the family's layout.
type Loader = fn(&Path, &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error>;

/// An architecture.
struct Family {
    name: &'static str,
    load: Loader,
    /// The voices of a checkpoint folder, as its loaded model has them. Reads no weights.
    voices: fn(&Path) -> Result<Vec<Voice>, Error>,
}

/// Published sizes of a family, and the function that makes a model of such a size with random weights.
type RandomModel = (&'static [&'static str], fn(&str, &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error>);

const REGISTRY: &[Family] = &[
    Family { name: "hibari", load: hibari::load, voices: |_| Ok(hibari::voices()) },
    Family { name: "kokoro", load: kokoro::load, voices: kokoro::voices },
    Family { name: "lfm2_audio", load: lfm2_audio::load, voices: |_| Ok(lfm2_audio::voices()) },
    Family { name: "parakeet", load: parakeet::load, voices: |_| Ok(Vec::new()) },
    Family { name: "pocket_tts", load: pocket_tts::load, voices: pocket_tts::voices },
    Family { name: "pyannote", load: pyannote::load, voices: |_| Ok(Vec::new()) },
    Family { name: "qwen3_asr", load: qwen3_asr::load, voices: |_| Ok(Vec::new()) },
    Family { name: "qwen3_tts", load: qwen3_tts::load, voices: qwen3_tts::voices },
    Family { name: "smart_turn", load: smart_turn::load, voices: |_| Ok(Vec::new()) },
    Family { name: "sortformer", load: sortformer::load, voices: |_| Ok(Vec::new()) },
    Family { name: "voxtral", load: voxtral::load, voices: |_| Ok(Vec::new()) },
    Family { name: "whisper", load: whisper::load, voices: |_| Ok(Vec::new()) },
];

/// Families with random weights of published sizes, for benchmarks without a checkpoint.
const RANDOM: &[RandomModel] = &[
    (&lfm2_audio::SIZES, lfm2_audio::random),
    (&pocket_tts::SIZES, pocket_tts::random),
    (&qwen3_tts::SIZES, qwen3_tts::random),
];

/// A model of the published size `model` with random weights.
///
/// # Errors
/// [`LoadError::UnknownSize`]; [`LoadError::Model`] if the device is out of memory.
pub fn random(model: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, LoadError> {
    let Some((_, make)) = RANDOM.iter().find(|(sizes, _)| sizes.contains(&model)) else {
        let sizes: Vec<_> = RANDOM.iter().flat_map(|(sizes, _)| *sizes).copied().collect();
        return Err(LoadError::UnknownSize { size: model.to_owned(), known: sizes.join(", ") });
    };
    Ok(make(model, options)?)
}

/// Loads the checkpoint in `folder` with the architecture named `family`.
///
/// # Errors
/// [`LoadError::UnknownFamily`]; [`LoadError::Model`] if the folder does not hold a checkpoint that fits exactly.
pub fn load(family: &str, folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, LoadError> {
    Ok((find(family)?.load)(folder, options)?)
}

/// The voices of the checkpoint in `folder`, the default first: those of its loaded model, read without weights.
///
/// # Errors
/// [`LoadError::UnknownFamily`]; [`LoadError::Model`] if the files that name the voices cannot be read.
pub fn voices(family: &str, folder: &Path) -> Result<Vec<Voice>, LoadError> {
    Ok((find(family)?.voices)(folder)?)
}

fn find(family: &str) -> Result<&'static Family, LoadError> {
    REGISTRY.iter().find(|known| known.name == family).ok_or_else(|| LoadError::UnknownFamily {
        family: family.to_owned(),
        known: known().collect::<Vec<_>>().join(", "),
    })
}

/// Names of the families in this build.
pub fn known() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|family| family.name)
}

/// Reads the tokenizer of the checkpoint in `folder`, for a network of `size` tokens, and the ids of `text`: what a fuzz
/// target calls, without weights.
///
/// # Errors
/// As [`load`].
#[doc(hidden)]
pub fn tokenize(family: &str, folder: &Path, size: usize, text: &str) -> Result<Vec<u32>, Error> {
    match family {
        "lfm2_audio" => lfm2_audio::tokenize(folder, size, text),
        "pocket_tts" => pocket_tts::tokenize(folder, size, text),
        "qwen3_asr" => qwen3_asr::tokenize(folder, size, text),
        "qwen3_tts" => qwen3_tts::tokenize(folder, size, text),
        "voxtral" => voxtral::tokenize(folder, size, text),
        _ => whisper::tokenize(folder, size, text),
    }
}

/// The phonemes of each sentence of a text, and how many bytes of the text are said after each word: what a fuzz target
/// calls, without weights.
///
/// # Errors
/// A rule for texts is faulty.
#[doc(hidden)]
pub fn phonemes(text: &str) -> Result<Vec<(String, Vec<usize>)>, Error> {
    crate::text::english::phonemes(text)
}

#[cfg(test)]
mod tests {
    use izwi_types::Precision;

    use super::golden_set::{GoldenSet, device};
    use super::*;

    #[test]
    fn voices_are_those_of_the_loaded_model() {
        let set = |name, variable| GoldenSet { name, variable }.root();
        let qwen = set("qwen3_tts", "IZWI_GOLDEN_QWEN3_TTS");
        let options = LoadOptions::new(device(), Precision::F32);
        for (family, folder, has_voices) in [
            ("kokoro", set("kokoro", "IZWI_GOLDEN_KOKORO"), true),
            ("lfm2_audio", set("lfm2_audio", "IZWI_GOLDEN_LFM2_AUDIO"), true),
            ("qwen3_tts", qwen.join("cv06"), true),
            ("qwen3_tts", qwen.join("base17"), false),
        ] {
            let listed = voices(family, &folder).unwrap();
            assert_eq!(listed, load(family, &folder, &options).unwrap().info().voices, "{family}");
            assert_eq!(!listed.is_empty(), has_voices, "{family}");
        }
        let none = Path::new("no-such-folder");
        assert!(matches!(voices("kokoro", none), Err(LoadError::Model(_))));
        assert!(matches!(voices("no-family", none), Err(LoadError::UnknownFamily { .. })));
    }
}
