//! Response formats: which of the formats of `izwi-audio` a client can ask for, and one utterance encoded chunk by
//! chunk. Knows no bytes of any format.

use bytes::Bytes;
use izwi_audio::encode::{EncodeError, Encoder, EncoderConfig, FORMATS, Format};
use izwi_core::engine::StreamingOutput;
use izwi_types::excerpt;

use crate::error::ApiError;

/// Formats without a request for one.
pub(crate) const HTTP_DEFAULT: &str = "wav";
const SESSION_DEFAULT: &str = "pcm";

/// Reads `response_format` of an HTTP request: a format with its media type.
pub(crate) fn for_http(name: Option<&str>) -> Result<(&'static Format, &'static str), ApiError> {
    let offered = http_formats();
    let found = offered.clone().find(|(format, _)| format.name == name.unwrap_or(HTTP_DEFAULT));
    found.ok_or_else(|| unsupported(name, offered.map(|(format, _)| format)))
}

/// The formats that an HTTP request can ask for, with their media types.
pub(crate) fn http_formats() -> impl Iterator<Item = (&'static Format, &'static str)> + Clone {
    streamed().filter_map(|format| Some((format, format.media_type?)))
}

/// Reads `response_format` of a WebSocket session.
pub(crate) fn for_session(name: Option<&str>) -> Result<&'static Format, ApiError> {
    let found = streamed().find(|format| format.name == name.unwrap_or(SESSION_DEFAULT));
    found.ok_or_else(|| unsupported(name, streamed()))
}

/// The formats that can be sent while audio is generated.
fn streamed() -> impl Iterator<Item = &'static Format> + Clone {
    FORMATS.iter().filter(|format| format.streams)
}

fn unsupported(name: Option<&str>, offered: impl Iterator<Item = &'static Format>) -> ApiError {
    let name = excerpt(name.unwrap_or_default());
    let offered = offered.map(|format| format.name).collect::<Vec<_>>().join(", ");
    let message = format!("response_format '{name}' is not supported; use one of {offered}");
    ApiError::invalid("response_format", message)
}

/// The encoded stream of one utterance.
#[derive(Debug)]
pub(crate) struct EncodedUtterance(Box<dyn Encoder>);

impl EncodedUtterance {
    /// An utterance whose samples have the rate of `config`.
    pub(crate) fn with(format: &Format, config: EncoderConfig) -> Result<Self, ApiError> {
        let encoder = format.encoder(&config);
        encoder.map(Self).map_err(|error| {
            let param = match error {
                EncodeError::SampleRate { .. } => "sample_rate",
                EncodeError::BitRate { .. } => "bit_rate",
                _ => "response_format",
            };
            ApiError::invalid(param, error.to_string())
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_offers_formats_with_a_media_type() {
        let (format, media_type) = for_http(None).unwrap();
        assert_eq!((format.name, media_type), ("wav", "audio/wav"));
        assert_eq!(for_http(Some("pcm")).unwrap().1, "audio/pcm");
        let error = for_http(Some("pcm_f32")).unwrap_err().to_string();
        assert!(error.ends_with("use one of wav, pcm, ulaw, alaw"), "{error}");
    }

    #[test]
    fn a_session_offers_every_format_and_16_bit_pcm_by_default() {
        assert_eq!(for_session(None).unwrap().encoding, "pcm_s16le");
        assert_eq!(for_session(Some("pcm_f32")).unwrap().encoding, "pcm_f32le");
        let error = for_session(Some("mp3")).unwrap_err();
        assert_eq!(error.param(), Some("response_format"));
    }
}
