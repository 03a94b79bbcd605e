//! Loads and forward passes that fail.

/// A forward pass or a load that failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A tensor operation failed.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A file of the checkpoint is absent or unreadable.
    #[error("cannot read {path}: {message}")]
    File {
        /// The file.
        path: String,
        /// Why.
        message: String,
    },
    /// The checkpoint does not fit the architecture: each line names a tensor.
    #[error("checkpoint does not fit: {0}")]
    Checkpoint(String),
    /// No family of this name.
    #[error("unknown family '{family}', this build knows: {known}")]
    UnknownFamily {
        /// What the manifest asked for.
        family: String,
        /// What exists.
        known: String,
    },
    /// No family makes up a model of this size.
    #[error("there are no made-up weights for '{size}', only for {known}")]
    UnknownSize {
        /// What was asked for.
        size: String,
        /// What can be made up.
        known: String,
    },
    /// The executor handed over something this family did not make.
    #[error("internal: {0}")]
    Internal(&'static str),
    /// The device is not there or not in this build.
    #[error("device '{device}' cannot be used: {message}")]
    Device {
        /// What was asked for.
        device: String,
        /// Why, and what to do.
        message: String,
    },
}
