//! Why a book cannot be read, or no file be made of it.

use izwi_audio::encode::EncodeError;
use izwi_hub::IoError;

pub(crate) type Result<T, E = BindError> = std::result::Result<T, E>;

/// Why a book cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// Its contents cannot be used.
    #[error("{message}")]
    Unusable {
        /// What is wrong.
        message: String,
        /// What its reader can do.
        remedy: &'static str,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl BookError {
    pub(crate) fn unusable(message: impl Into<String>, remedy: &'static str) -> Self {
        Self::Unusable { message: message.into(), remedy }
    }

    /// The same, with the name of the book.
    pub(crate) fn within(self, name: &str) -> Self {
        match self {
            Self::Unusable { message, remedy } => {
                Self::Unusable { message: format!("cannot read {name}: {message}"), remedy }
            }
            other => other,
        }
    }
}

/// Why no file can be made of what is spoken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The format cannot hold the audio.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The audio cannot be measured or described.
    #[error("{0}")]
    Audio(String),
    /// The caller ended it.
    #[error("the work was stopped")]
    Stopped,
}

impl BindError {
    pub(crate) fn audio(what: &str, error: &dyn std::error::Error) -> Self {
        Self::Audio(format!("{what}: {error}"))
    }
}
