//! What every conversion shares: why one fails, and how its tensors reach the disk. Knows no source format.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::View;

use crate::error::IoError;

/// A file whose weights cannot be carried over.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// The bytes are not what they claim to be.
    #[error("malformed file: {0}")]
    Malformed(String),
    /// The file holds something that no rule covers.
    #[error("weights cannot be carried over: {0}")]
    Unsupported(String),
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// For `ok_or_else` and `map_err`: the bytes are not what they claim to be.
pub(crate) fn malformed(reason: String) -> ConversionError {
    ConversionError::Malformed(reason)
}

/// Writes tensors that came from `source` to the safetensors file `target`, which appears whole or not at all; equal
/// tensors give equal bytes.
pub(crate) fn write<V: View>(
    tensors: impl IntoIterator<Item = (String, V)>,
    source: &Path,
    target: &Path,
) -> Result<(), ConversionError> {
    // One key only: the order of several is not fixed.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let partial = target.with_added_extension("part");
    let io = |error: SafeTensorError| {
        IoError::at("write", &partial)(match error {
            SafeTensorError::IoError(error) => error,
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
