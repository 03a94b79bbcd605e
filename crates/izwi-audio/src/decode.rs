//! Recordings in, whatever their container: decoded, mixed to mono, resampled, and bounded while that happens.

use std::io::Cursor;
use std::time::Duration;

use base64::Engine as _;

/// Bounds on one recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The most bytes of a file.
    pub max_bytes: usize,
    /// The longest recording; decoding stops as soon as it is passed.
    pub max_duration: Duration,
}

/// Audio that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not base64, or a data URL that is not.
    #[error("audio is not base64: {0}; send standard base64, or a data: URL with ;base64")]
    Base64(String),
    /// The file is larger than the limit.
    #[error("audio has more than {limit} bytes; send a shorter or compressed recording")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The recording is longer than the limit.
    #[error("audio is longer than {limit_s} s; send it in parts")]
    TooLong {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// No known container or codec.
    #[error("audio is of no known format ({0}); send wav, flac, mp3, ogg, m4a or webm")]
    UnknownFormat(String),
    /// A known format that cannot be read.
    #[error("audio is damaged: {0}")]
    Damaged(String),
    /// Nothing to hear.
    #[error("audio decodes to no samples; send a recording")]
    Empty,
}

/// The bytes behind raw base64 or a `data:…;base64,` URL. White space is passed over.
///
/// # Errors
/// [`DecodeError::Base64`], or [`DecodeError::TooLarge`] before anything is decoded.
pub fn from_base64(text: &str, max_bytes: usize) -> Result<Vec<u8>, DecodeError> {
    let payload = match text.split_once(',') {
        Some((head, payload)) if head.starts_with("data:") => payload,
        _ => text,
    };
    if payload.len() / 4 * 3 > max_bytes + 2 {
        return Err(DecodeError::TooLarge { limit: max_bytes });
    }
    let engine = base64::engine::general_purpose::STANDARD;
    engine.decode(payload.trim()).map_err(|error| DecodeError::Base64(error.to_string()))
}

/// Decodes a file to mono samples at `rate_hz`.
///
/// # Errors
/// The file is not audio, is damaged beyond use, passes a limit, or holds no samples.
pub fn decode<B>(file: B, rate_hz: u32, limits: &DecodeLimits) -> Result<Vec<f32>, DecodeError>
where
    B: AsRef<[u8]> + Send + Sync + 'static,
{
    let damaged = |error: hound::Error| DecodeError::Damaged(error.to_string());
    let mut reader = hound::WavReader::new(Cursor::new(file)).map_err(damaged)?;
    if reader.spec().sample_rate != rate_hz {
        return Err(DecodeError::UnknownFormat(format!("{} Hz", reader.spec().sample_rate)));
    }
    let most = (limits.max_duration.as_secs_f64() * f64::from(rate_hz)) as usize;
    let samples: Result<Vec<f32>, _> =
        reader.samples::<i16>().map(|s| s.map(|s| f32::from(s) / 32768.0)).take(most).collect();
    let samples = samples.map_err(damaged)?;
    if samples.is_empty() { Err(DecodeError::Empty) } else { Ok(samples) }
}
