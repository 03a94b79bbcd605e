//! The architectures and their one registry.
//!
//! A family is one folder here and one line in `REGISTRY`; its name appears nowhere else.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use crate::model::{ModelError, SpeechModel};

mod hibari;
mod qwen3_tts;
mod whisper;

/// Loads a checkpoint folder in the family's layout.
type Loader = fn(&Path, &Device) -> Result<Arc<dyn SpeechModel>, ModelError>;

const REGISTRY: &[(&str, Loader)] = &[("hibari", hibari::load), ("whisper", whisper::load)];

/// Loads the checkpoint in `folder` with the architecture named `family`.
///
/// # Errors
/// No such family, or the folder does not hold a checkpoint that fits it exactly.
pub fn load(family: &str, folder: &Path, device: &Device) -> Result<Arc<dyn SpeechModel>, ModelError> {
    match REGISTRY.iter().find(|(name, _)| *name == family) {
        Some((_, loader)) => loader(folder, device),
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
