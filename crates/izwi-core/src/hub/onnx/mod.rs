//! Turns the weights of an ONNX graph into a safetensors file with the names and layout of the module it was exported
//! from. Knows no architecture: names come from the graph alone.

mod graph;
#[cfg(test)]
mod tests;
mod weights;
mod wire;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::error::IoError;

/// An ONNX file whose weights cannot be carried over.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The bytes are not what they claim to be.
    #[error("malformed file: {0}")]
    Malformed(String),
    /// The graph holds something that no rule covers.
    #[error("weights cannot be carried over: {0}")]
    Unsupported(String),
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Reads the ONNX file `source` and writes its weights to `target`; equal input gives equal output.
pub(super) fn convert(source: &Path, target: &Path) -> Result<(), OnnxError> {
    let bytes = fs::read(source).map_err(IoError::at("read", source))?;
    let tensors = weights::named(&graph::Graph::parse(&bytes)?, bytes.len())?;
    // One key only: the order of several is not fixed.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let partial = target.with_added_extension("part");
    let io = |error: safetensors::SafeTensorError| {
        IoError::at("write", &partial)(match error {
            safetensors::SafeTensorError::IoError(error) => error,
            other => std::io::Error::other(other),
        })
    };
    safetensors::serialize_to_file(tensors, Some(metadata), &partial).map_err(io)?;
    // The writer makes files for their owner alone; whoever may read the source may read the result.
    let permissions = fs::metadata(source).map_err(IoError::at("read", source))?.permissions();
    fs::set_permissions(&partial, permissions).map_err(IoError::at("write", &partial))?;
    fs::rename(&partial, target).map_err(IoError::at("rename", &partial))?;
    Ok(())
}
