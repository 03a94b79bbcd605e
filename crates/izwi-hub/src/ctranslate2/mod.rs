//! Turns a CTranslate2 model of an encoder and a decoder of speech into a safetensors file with the names and layout
//! that the transformers library uses. Every value keeps its bits. Names no architecture: a model is taken if it has
//! exactly the variables that the rules in [`names`] cover.

mod file;
mod names;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use crate::conversion::{self, ConversionError};
use crate::error::IoError;

/// Reads the CTranslate2 file `source` (usually called `model.bin`) and writes its weights to `target`; equal input
/// gives equal output. Holds the file once: tensors are parts of it.
pub(crate) fn convert(source: &Path, target: &Path) -> Result<(), ConversionError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    let tensors = names::named(file::File::parse(&bytes)?)?;
    conversion::write(tensors, source, target)
}
