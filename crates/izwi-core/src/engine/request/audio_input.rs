//! Recordings as clients send them: encoded audio files, and samples without a header.
//!
//! Must not know what a recording is for.

use std::sync::Arc;

use bytes::Bytes;
use izwi_audio::decode::{self, DecodeError, DecodeLimits, Watch};
use izwi_audio::pcm_format::PcmFormat;

/// A recording.
#[derive(Debug, Clone, PartialEq)]
pub enum AudioInput {
    /// Base64 of an audio file, or a `data:` URL of one.
    Base64(String),
    /// An audio file.
    File(Bytes),
    /// Samples of one channel without a header.
    Pcm(Bytes, PcmFormat),
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
    /// Decodes to mono samples at `rate_hz`, which `watch` counts and may end.
    ///
    /// # Errors
    /// As [`decode::decode_watched`] and [`decode::from_base64`].
    pub fn decode(
        self,
        rate_hz: u32,
        limits: &DecodeLimits,
        watch: &mut Watch<'_>,
    ) -> Result<Arc<[f32]>, DecodeError> {
        let (bytes, format) = match self {
            Self::Base64(text) => (decode::from_base64(&text, limits.max_bytes)?.into(), None),
            Self::File(file) => (file, None),
            Self::Pcm(samples, format) => (samples, Some(format)),
        };
        decode::decode_watched(bytes, format, rate_hz, limits, watch)
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Base64(text) => text.is_empty(),
            Self::File(bytes) | Self::Pcm(bytes, _) => bytes.is_empty(),
        }
    }
}
