//! The architectures and their one registry.
//!
//! A family is one folder here and one line in `REGISTRY`; its name appears nowhere else.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use crate::model::SpeechModel;
use izwi_kernels::precision::Precision;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::error::ModelError;

#[cfg(test)]
mod golden_set;
mod hibari;
mod lfm2_audio;
mod qwen3_tts;
#[cfg(test)]
mod stage;
mod whisper;

/// How a checkpoint is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where its tensors go.
    pub device: Device,
    /// How large weights are kept. Families whose weights are small keep their own.
    pub precision: Precision,
    /// Whether what large weights become is kept in a file beside them, so that they load faster the next time.
    pub weight_cache: bool,
}

impl LoadOptions {
    /// Nothing is written beside the checkpoint.
    #[must_use]
    pub fn new(device: Device, precision: Precision) -> Self {
        Self { device, precision, weight_cache: false }
    }

    /// The same for the codec of a model.
    pub(crate) fn of_codec(&self) -> Self {
        Self { precision: self.precision.of_codec(self.device.is_cpu()), ..self.clone() }
    }

    /// Has a checkpoint take what its large weights become in `precision` from a file, where that is wanted.
    pub(crate) fn cached(&self, from: Checkpoint, precision: Precision) -> Checkpoint {
        if self.weight_cache { from.with_cache(precision) } else { from }
    }
}

/// Loads a checkpoint folder in the family's layout.
type Loader = fn(&Path, &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError>;

/// The published sizes of a family, and what makes a model of one of them with made-up weights.
type Maker = (&'static [&'static str], fn(&str, &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError>);

const REGISTRY: &[(&str, Loader)] = &[
    ("hibari", hibari::load),
    ("lfm2_audio", lfm2_audio::load),
    ("qwen3_tts", qwen3_tts::load),
    ("whisper", whisper::load),
];

/// Families whose models can be made up, for measuring without a checkpoint.
const MAKERS: &[Maker] =
    &[(&lfm2_audio::SIZES, lfm2_audio::made_up), (&qwen3_tts::SIZES, qwen3_tts::made_up)];

/// A model of the published size `model` with made-up weights.
///
/// # Errors
/// No family has such a size, or the device has not the memory.
pub fn made_up(model: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, ModelError> {
    let Some((_, make)) = MAKERS.iter().find(|(sizes, _)| sizes.contains(&model)) else {
        let sizes: Vec<_> = MAKERS.iter().flat_map(|(sizes, _)| *sizes).copied().collect();
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
