//! Writes converted tensors to a safetensors file. Knows no source format.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::View;

use super::error::ConversionError;
use crate::io_error::IoError;

/// Writes the tensors of the file `source` to the safetensors file `target`. The target appears complete or not at
/// all. Equal tensors give equal bytes.
pub(super) fn write<V: View>(
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
            other => io::Error::other(other),
        })
    };
    safetensors::serialize_to_file(tensors, Some(metadata), &partial).map_err(io)?;
    // `serialize_to_file` makes the file readable for its owner only; the target gets the source's permissions.
    let permissions = fs::metadata(source).map_err(IoError::at("read", source))?.permissions();
    fs::set_permissions(&partial, permissions).map_err(IoError::at("write", &partial))?;
    fs::rename(&partial, target).map_err(IoError::at("rename", &partial))?;
    Ok(())
}
