//! Errors of loads and forward passes. Knows no model family.

/// A load or a forward pass failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A file of the checkpoint is missing, unreadable or malformed.
    #[error("cannot read {path}: {message}")]
    File {
        /// Path of the file.
        path: String,
        /// Cause.
        message: String,
    },
    /// The checkpoint does not fit the architecture: each line names a tensor.
    #[error("checkpoint does not fit: {0}")]
    Checkpoint(String),
    /// A caller broke the contract of a function.
    #[error("internal: {0}")]
    Internal(&'static str),
    /// The device does not exist or this build does not support it.
    #[error("device '{device}' cannot be used: {message}")]
    Device {
        /// The device asked for.
        device: String,
        /// Cause and remedy.
        message: String,
    },
}
