//! Response formats: which of the formats of `izwi-audio` a client can ask for, and one utterance encoded chunk by
//! chunk. Knows no bytes of any format.

use bytes::Bytes;
use izwi_audio::encode::{EncodeError, Encoder, EncoderConfig, FORMATS, Format};
use izwi_core::engine::StreamingOutput;

use crate::error::{ApiError, truncated};

/// Formats without a request for one.
const HTTP_DEFAULT: &str = "wav";
const SESSION_DEFAULT: &str = "pcm";

/// Reads `response_format` of an HTTP request and returns the format with its media type.
pub(crate) fn for_http(name: Option<&str>) -> Result<(&'static Format, &'static str), ApiError> {
    let format = find(name.unwrap_or(HTTP_DEFAULT), |format| format.media_type.is_some())?;
    Ok((format, format.media_type.unwrap_or_default()))
}

/// Reads `response_format` of a WebSocket session.
pub(crate) fn for_session(name: Option<&str>) -> Result<&'static Format, ApiError> {
    find(name.unwrap_or(SESSION_DEFAULT), |_| true)
}

fn find(name: &str, is_offered: impl Fn(&Format) -> bool) -> Result<&'static Format, ApiError> {
    let mut offered = FORMATS.iter().filter(|format| format.streams && is_offered(format));
    offered.clone().find(|format| format.name == name).ok_or_else(|| {
        let names = offered.by_ref().map(|format| format.name).collect::<Vec<_>>().join(", ");
        let message = format!("response_format '{}' is not supported; use one of {names}", truncated(name));
        ApiError::invalid("response_format", message)
    })
}

/// The encoded stream of one utterance.
#[derive(Debug)]
pub(crate) struct EncodedUtterance(Box<dyn Encoder>);

impl EncodedUtterance {
    /// An utterance of unknown length.
    pub(crate) fn new(format: &Format, sample_rate_hz: u32) -> Result<Self, ApiError> {
        let encoder = format.encoder(&EncoderConfig { sample_rate_hz, total_samples: None });
        encoder.map(Self).map_err(|error| ApiError::invalid("response_format", error.to_string()))
    }

    /// The bytes of the next chunk; with the final chunk the end of the stream.
    pub(crate) fn encode(&mut self, chunk: &StreamingOutput) -> Result<Bytes, EncodeError> {
        let mut bytes = self.0.push(&chunk.samples)?;
        if chunk.is_final {
            bytes.extend(self.0.finish()?);
        }
        Ok(bytes.into())
    }
}
