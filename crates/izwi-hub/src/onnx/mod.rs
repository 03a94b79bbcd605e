//! Turns the weights of an ONNX graph into a safetensors file with the names and layout of the module it was exported
//! from. Knows no architecture: names come from the graph alone.

mod graph;
#[cfg(test)]
mod tests;
mod weights;
mod wire;

use std::fs;
use std::path::Path;

use crate::conversion::{self, ConversionError};
use crate::error::IoError;

/// Reads the ONNX file `source` and writes its weights to `target`; equal input gives equal output.
pub(crate) fn convert(source: &Path, target: &Path) -> Result<(), ConversionError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    let tensors = weights::named(&graph::Graph::parse(&bytes)?, bytes.len())?;
    conversion::write(tensors, source, target)
}
