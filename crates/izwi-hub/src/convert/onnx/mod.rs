//! Converts the weights of an ONNX graph to safetensors, with the names and the layout of the module that the graph was
//! exported from. Knows no model architecture: names come from the graph.

mod graph;
mod quantised;
#[cfg(test)]
mod tests;
mod weights;
mod wire;

use std::fs;
use std::path::Path;

use super::error::ConversionError;
use super::output;
use crate::io_error::IoError;

pub(super) use quantised::Quantised;

/// Converts the ONNX file `source` to the safetensors file `target`.
pub(super) fn convert(source: &Path, target: &Path, kept: Quantised) -> Result<(), ConversionError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    let tensors = weights::named(&graph::Graph::parse(&bytes)?, bytes.len(), kept)?;
    output::write(tensors, source, target)
}
