//! Formats of audio: encodings and rates, as clients name them.

use izwi_audio::encode::{ALAW, EncoderConfig, S16LE, ULAW};
use izwi_server::ApiError;
use izwi_server::encoding::EncodedUtterance;
use izwi_server::extract::check_range;
use izwi_server::turns::{PcmEncoding, PcmInput};
use izwi_types::excerpt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::Refusal;

/// Rate of `audio/pcm` without one, in Hz.
const DEFAULT_RATE_HZ: u32 = 24_000;
/// Rate of `audio/pcmu` and `audio/pcma`.
const TELEPHONE_RATE_HZ: u32 = 8_000;

/// An encoding and its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AudioFormat {
    pub(super) encoding: PcmEncoding,
    pub(super) rate_hz: u32,
}

impl AudioFormat {
    pub(super) const PCM: Self = Self { encoding: PcmEncoding::S16Le, rate_hz: DEFAULT_RATE_HZ };

    /// The encoder of a response.
    pub(super) fn encoder(self, sample_rate_hz: u32) -> Result<EncodedUtterance, ApiError> {
        let format = match self.encoding {
            PcmEncoding::S16Le => &S16LE,
            PcmEncoding::MuLaw => &ULAW,
            PcmEncoding::ALaw => &ALAW,
        };
        let output_rate_hz = Some(self.rate_hz);
        EncodedUtterance::with(
            format,
            EncoderConfig { output_rate_hz, ..EncoderConfig::streamed(sample_rate_hz) },
        )
    }

    pub(super) fn view(self) -> Value {
        match self.encoding {
            PcmEncoding::S16Le => json!({"type": "audio/pcm", "rate": self.rate_hz}),
            PcmEncoding::MuLaw => json!({"type": "audio/pcmu"}),
            PcmEncoding::ALaw => json!({"type": "audio/pcma"}),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct FormatPatch {
    #[serde(rename = "type")]
    kind: Option<String>,
    rate: Option<u32>,
}

impl FormatPatch {
    pub(super) fn checked(&self, param: &str, before: AudioFormat) -> Result<AudioFormat, Refusal> {
        let encoding = match self.kind.as_deref() {
            None => before.encoding,
            Some("audio/pcm") => PcmEncoding::S16Le,
            Some("audio/pcmu") => PcmEncoding::MuLaw,
            Some("audio/pcma") => PcmEncoding::ALaw,
            Some(other) => {
                let other = excerpt(other);
                let message = format!("{param}.type is '{other}'; use audio/pcm, audio/pcmu or audio/pcma");
                return Err(Refusal::invalid(&format!("{param}.type"), message));
            }
        };
        let rate_hz = match encoding {
            PcmEncoding::S16Le => self.rate.unwrap_or(DEFAULT_RATE_HZ),
            PcmEncoding::MuLaw | PcmEncoding::ALaw => TELEPHONE_RATE_HZ,
        };
        check_range(&format!("{param}.rate"), rate_hz, &PcmInput::RATES_HZ)?;
        Ok(AudioFormat { encoding, rate_hz })
    }
}
