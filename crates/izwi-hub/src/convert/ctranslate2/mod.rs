//! Converts a CTranslate2 speech model with encoder and decoder to safetensors, with the names and the layout of the
//! transformers library. Every value keeps its bits. Names no model architecture: the rules in [`names`] must cover
//! exactly the variables of the file.

mod file;
mod names;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use super::error::ConversionError;
use super::output;
use crate::io_error::IoError;

/// Converts the CTranslate2 file `source` (usually called `model.bin`) to the safetensors file `target`. The file is in
/// memory once: tensors borrow from it.
pub(super) fn convert(source: &Path, target: &Path) -> Result<(), ConversionError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    let tensors = names::named(file::File::parse(&bytes)?)?;
    output::write(tensors, source, target)
}
