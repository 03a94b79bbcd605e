//! Converts the weights of a model in the format of ONNX Runtime to safetensors, with the names and the layout of the module
//! that it was exported from. Knows no model architecture: names come from the graph.

mod flatbuffer;
#[cfg(test)]
mod tests;
mod weights;

use std::fs;
use std::path::Path;

use super::error::ConversionError;
use super::output;
use crate::io_error::IoError;

/// Converts the file `source` of ONNX Runtime to the safetensors file `target`.
pub(super) fn convert(source: &Path, target: &Path) -> Result<(), ConversionError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    output::write(weights::named(&bytes)?, source, target)
}
