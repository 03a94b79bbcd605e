//! Recordings as clients send them: encoded audio files.
//!
//! Must not know what a recording is for.

use bytes::Bytes;

/// An encoded recording.
#[derive(Debug, Clone, PartialEq)]
pub enum AudioInput {
    /// Base64 of an audio file, or a `data:` URL of one.
    Base64(String),
    /// An audio file.
    File(Bytes),
}

impl From<String> for AudioInput {
    fn from(base64: String) -> Self {
        Self::Base64(base64)
    }
}

impl From<&str> for AudioInput {
    fn from(base64: &str) -> Self {
        Self::Base64(base64.to_owned())
    }
}

impl From<Bytes> for AudioInput {
    fn from(file: Bytes) -> Self {
        Self::File(file)
    }
}

impl From<Vec<u8>> for AudioInput {
    fn from(file: Vec<u8>) -> Self {
        Self::File(file.into())
    }
}

impl AudioInput {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Base64(text) => text.is_empty(),
            Self::File(bytes) => bytes.is_empty(),
        }
    }
}
