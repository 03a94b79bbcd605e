//! `output_format`: codec, sample rate and bit rate in one name. Knows no HTTP and no audio.

use izwi_audio::encode::{EncoderConfig, Format};
use izwi_server::ApiError;
use izwi_server::encoding::{self, EncodedUtterance};
use izwi_types::excerpt;

/// The format of a request that names none.
const DEFAULT: &str = "mp3_44100_128";
/// The names of `elevenlabs` 2.78.
const NAMES: [&str; 28] = [
    "alaw_8000",
    "mp3_22050_32",
    "mp3_24000_48",
    "mp3_44100_128",
    "mp3_44100_192",
    "mp3_44100_32",
    "mp3_44100_64",
    "mp3_44100_96",
    "opus_48000_128",
    "opus_48000_192",
    "opus_48000_32",
    "opus_48000_64",
    "opus_48000_96",
    "pcm_16000",
    "pcm_22050",
    "pcm_24000",
    "pcm_32000",
    "pcm_44100",
    "pcm_48000",
    "pcm_8000",
    "ulaw_8000",
    "wav_16000",
    "wav_22050",
    "wav_24000",
    "wav_32000",
    "wav_44100",
    "wav_48000",
    "wav_8000",
];

/// A format with its rates.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputFormat {
    name: &'static str,
    format: &'static Format,
    pub(super) media_type: &'static str,
    rate_hz: u32,
    bit_rate: Option<u32>,
}

impl OutputFormat {
    /// Reads `output_format`.
    pub(super) fn parse(name: Option<&str>) -> Result<Self, ApiError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT);
        let known = NAMES.iter().find(|known| **known == name);
        let known = known.ok_or_else(|| {
            let message =
                format!("output_format '{}' is unknown; use one of {}", excerpt(name), NAMES.join(", "));
            ApiError::invalid("output_format", message)
        })?;
        let mut parts = known.split('_');
        let codec = parts.next();
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        let (format, media_type) = encoding::for_http(codec)?;
        let rate_hz = number().unwrap_or_default();
        Ok(Self { name: known, format, media_type, rate_hz, bit_rate: number().map(|kbit| kbit * 1_000) })
    }

    /// Reads `output_format` of a session. A file header would stand before every generation.
    pub(super) fn parse_for_session(name: Option<&str>) -> Result<Self, ApiError> {
        let format = Self::parse(name)?;
        if format.is_file() {
            let message = format!(
                "output_format '{}' is not streamed over WebSockets; use pcm_{}",
                format.name, format.rate_hz
            );
            return Err(ApiError::invalid("output_format", message));
        }
        Ok(format)
    }

    /// Whether its header holds the length.
    pub(super) fn is_file(&self) -> bool {
        self.name.starts_with("wav_")
    }

    /// The encoder of one utterance; of known length if `samples` are given.
    pub(super) fn encode(
        &self,
        sample_rate_hz: u32,
        samples: Option<u64>,
    ) -> Result<EncodedUtterance, ApiError> {
        let config = EncoderConfig {
            output_rate_hz: Some(self.rate_hz),
            bit_rate: self.bit_rate,
            total_samples: samples,
            ..EncoderConfig::streamed(sample_rate_hz)
        };
        EncodedUtterance::with(self.format, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_of_the_package_has_an_encoder() {
        for name in NAMES {
            let format = OutputFormat::parse(Some(name)).unwrap();
            assert!((8_000..=48_000).contains(&format.rate_hz), "{name}");
            assert!(format.encode(24_000, None).is_ok(), "{name}");
            assert_eq!(
                OutputFormat::parse_for_session(Some(name)).is_err(),
                name.starts_with("wav"),
                "{name}"
            );
        }
        let default = OutputFormat::parse(None).unwrap();
        assert_eq!(
            (default.media_type, default.rate_hz, default.bit_rate),
            ("audio/mpeg", 44_100, Some(128_000))
        );
        let error = OutputFormat::parse(Some("mp3_44100_129")).unwrap_err();
        assert_eq!(error.param(), Some("output_format"));
    }
}
