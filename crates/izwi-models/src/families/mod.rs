//! The architectures and their one registry.
//!
//! A family is one folder here and one line in `REGISTRY`; its name appears nowhere else.

use std::path::Path;
use std::sync::Arc;

use crate::model::SpeechModel;
use izwi_nn::error::ModelError;

pub use crate::load_options::LoadOptions;

#[cfg(test)]
pub(crate) mod golden_set;
mod hibari;
mod lfm2_audio;
mod qwen3_tts;
mod whisper;

/// Loads a checkpoint folder in the family's layout.
type Loader = fn(&Path, &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError>;

/// The published sizes of a family, and its constructor of a model of such a size with random weights.
type RandomModel =
    (&'static [&'static str], fn(&str, &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError>);

const REGISTRY: &[(&str, Loader)] = &[
    ("hibari", hibari::load),
    ("lfm2_audio", lfm2_audio::load),
    ("qwen3_tts", qwen3_tts::load),
    ("whisper", whisper::load),
];

/// Families with random weights, for measuring without a checkpoint.
const RANDOM_MODELS: &[RandomModel] =
    &[(&lfm2_audio::SIZES, lfm2_audio::random_weights), (&qwen3_tts::SIZES, qwen3_tts::random_weights)];

/// A model of the published size `model` with random weights.
///
/// # Errors
/// No family has such a size, or out of device memory.
pub fn random_weights(model: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError> {
    let Some((_, make)) = RANDOM_MODELS.iter().find(|(sizes, _)| sizes.contains(&model)) else {
        let sizes: Vec<_> = RANDOM_MODELS.iter().flat_map(|(sizes, _)| *sizes).copied().collect();
        return Err(ModelError::UnknownSize { size: model.to_owned(), known: sizes.join(", ") });
    };
    make(model, options)
}

/// Loads the checkpoint in `folder` with the architecture named `family`.
///
/// # Errors
/// No such family, or the folder does not hold a checkpoint that fits it exactly.
pub fn load(family: &str, folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError> {
    match REGISTRY.iter().find(|(name, _)| *name == family) {
        Some((_, loader)) => loader(folder, options),
        None => Err(ModelError::UnknownFamily {
            family: family.to_owned(),
            known: known().collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Names of the families in this build.
pub fn known() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(name, _)| *name)
}
