//! The architectures and their one registry.
//!
//! A family is one folder here and one line in `REGISTRY`; its name appears nowhere else.

use std::path::Path;
use std::sync::Arc;

use crate::error::LoadError;
use crate::model::SpeechModel;
use izwi_nn::Error;

#[cfg(test)]
pub(crate) mod golden_set;
mod hibari;
mod kokoro;
mod lfm2_audio;
mod load_options;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod metal_budget;
mod pocket_tts;
mod qwen3_tts;
mod voxtral;
mod whisper;

pub use load_options::LoadOptions;

/// Loads a checkpoint folder in the family's layout.
type Loader = fn(&Path, &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error>;

/// Published sizes of a family, and the function that makes a model of such a size with random weights.
type RandomModel = (&'static [&'static str], fn(&str, &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error>);

const REGISTRY: &[(&str, Loader)] = &[
    ("hibari", hibari::load),
    ("kokoro", kokoro::load),
    ("lfm2_audio", lfm2_audio::load),
    ("pocket_tts", pocket_tts::load),
    ("qwen3_tts", qwen3_tts::load),
    ("voxtral", voxtral::load),
    ("whisper", whisper::load),
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
    match REGISTRY.iter().find(|(name, _)| *name == family) {
        Some((_, loader)) => Ok(loader(folder, options)?),
        None => Err(LoadError::UnknownFamily {
            family: family.to_owned(),
            known: known().collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Names of the families in this build.
pub fn known() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(name, _)| *name)
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
