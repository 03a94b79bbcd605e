//! Converts an archive of the NeMo toolkit: its weights to safetensors under their own names, its settings and its tokenizer,
//! if it has one, beside them as they are. Every value keeps its bits. Names no model architecture.

mod archive;
mod pickle;
#[cfg(test)]
mod tests;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ConversionError;
use super::output;
use crate::io_error::IoError;

/// Names of the files beside the weights.
const SETTINGS: &str = "model_config.yaml";
const TOKENIZER: &str = "tokenizer.model";

/// Converts the archive `source` to the safetensors file `target`. Returns the files that it wrote beside it. The weights are
/// in memory once: tensors borrow from them.
pub(super) fn convert(source: &Path, target: &Path) -> Result<Vec<PathBuf>, ConversionError> {
    let archive = archive::Members::read(source)?;
    output::write(weights::named(&archive.weights)?, source, target)?;
    let tokenizer = archive.tokenizer.map(|tokenizer| (TOKENIZER, tokenizer));
    let beside = [(SETTINGS, archive.settings)].into_iter().chain(tokenizer);
    let write = |(name, bytes): (&str, Vec<u8>)| {
        let path = target.with_file_name(name);
        let partial = path.with_added_extension("part");
        fs::write(&partial, bytes).map_err(IoError::at("write", &partial))?;
        fs::rename(&partial, &path).map_err(IoError::at("rename", &partial))?;
        Ok(path)
    };
    beside.map(write).collect()
}
