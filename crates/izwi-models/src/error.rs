//! Errors of the registry of families and of warm-ups. Everything below a family fails with [`izwi_nn::Error`].

/// No model could be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No family has this name.
    #[error("unknown family '{family}', this build knows: {known}")]
    UnknownFamily {
        /// Family that the manifest names.
        family: String,
        /// Families of this build.
        known: String,
    },
    /// No family has random weights of this size.
    #[error("there are no random weights for '{size}', only for {known}")]
    UnknownSize {
        /// Size asked for.
        size: String,
        /// Sizes that exist.
        known: String,
    },
    /// The family could not load the checkpoint.
    #[error(transparent)]
    Model(#[from] izwi_nn::Error),
}

/// A warm-up did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum WarmUpError {
    /// The model rejects its own input: a limit is too low for it.
    #[error(transparent)]
    Input(#[from] izwi_types::InputError),
    /// A step failed.
    #[error(transparent)]
    Model(#[from] izwi_nn::Error),
}
