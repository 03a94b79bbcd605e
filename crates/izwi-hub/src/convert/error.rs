//! Why a conversion fails. Knows no source format.

use crate::io_error::IoError;

/// A file that cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// The file breaks its format.
    #[error("malformed file: {0}")]
    Malformed(String),
    /// The file has contents that no conversion rule covers.
    #[error("weights cannot be converted: {0}")]
    Unsupported(String),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// For `ok_or_else` and `map_err`: the file breaks its format.
pub(super) fn malformed(reason: String) -> ConversionError {
    ConversionError::Malformed(reason)
}
