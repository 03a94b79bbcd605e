//! How samples leave the process: the encodings a client can choose, and their bytes.

use bytes::Bytes;
use izwi_audio::{pcm, wav};

use crate::error::ApiError;
use crate::near;

/// An encoding of mono audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// 16-bit PCM behind the header of a stream of unknown length.
    Wav,
    /// 16-bit little-endian PCM.
    Pcm,
    /// 32-bit float little-endian PCM.
    PcmF32,
}

impl Encoding {
    /// Reads `response_format` of an HTTP request; WAV without one.
    pub(crate) fn for_http(name: Option<&str>) -> Result<Self, ApiError> {
        match name {
            None | Some("wav") => Ok(Self::Wav),
            Some("pcm") => Ok(Self::Pcm),
            Some(other) => Err(unsupported(other, "wav, pcm")),
        }
    }

    /// Reads `response_format` of a WebSocket session; 16-bit PCM without one.
    pub(crate) fn for_session(name: Option<&str>) -> Result<Self, ApiError> {
        match name {
            None | Some("pcm") => Ok(Self::Pcm),
            Some("pcm_f32") => Ok(Self::PcmF32),
            Some("wav") => Ok(Self::Wav),
            Some(other) => Err(unsupported(other, "pcm, pcm_f32, wav")),
        }
    }

    /// Media type of a body in this encoding.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Pcm | Self::PcmF32 => "audio/pcm",
        }
    }

    /// Name in `session.created`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Pcm => "pcm_s16le",
            Self::PcmF32 => "pcm_f32le",
        }
    }

    /// The bytes of one chunk; the first of a signal has the header, where there is one.
    pub(crate) fn encode(self, samples: &[f32], sample_rate_hz: u32, is_first: bool) -> Bytes {
        let mut bytes = Vec::with_capacity(44 + samples.len() * 4);
        if self == Self::Wav && is_first {
            bytes.extend_from_slice(&wav::streaming_header(sample_rate_hz));
        }
        match self {
            Self::Wav | Self::Pcm => pcm::write_i16_le(samples, &mut bytes),
            Self::PcmF32 => pcm::write_f32_le(samples, &mut bytes),
        }
        bytes.into()
    }
}

fn unsupported(name: &str, supported: &str) -> ApiError {
    let message = format!("response_format '{}' is not supported; use one of {supported}", near::shown(name));
    ApiError::invalid("response_format", message)
}
