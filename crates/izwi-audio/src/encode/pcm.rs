//! Raw PCM without a header: 16-bit integer and 32-bit float, little-endian.

use super::SAMPLE_RATES_HZ;
use super::encoder::{EncodeError, Encoder};
use super::format::Format;
use crate::pcm;

/// Signed 16-bit.
pub const S16LE: Format = Format {
    name: "pcm",
    encoding: "pcm_s16le",
    media_type: Some("audio/pcm"),
    extensions: &[],
    sample_bytes: Some(2),
    streams: true,
    sample_rates_hz: SAMPLE_RATES_HZ,
    keeps_rate: true,
    bit_rates: None,
    new_encoder: |_| Ok(Box::new(RawPcm { write: pcm::write_i16_le })),
};

/// 32-bit float. `audio/pcm` means 16-bit samples to clients, so it has no media type.
pub const F32LE: Format = Format {
    name: "pcm_f32",
    encoding: "pcm_f32le",
    media_type: None,
    extensions: &[],
    sample_bytes: Some(4),
    streams: true,
    sample_rates_hz: SAMPLE_RATES_HZ,
    keeps_rate: true,
    bit_rates: None,
    new_encoder: |_| Ok(Box::new(RawPcm { write: pcm::write_f32_le })),
};

#[derive(Debug)]
struct RawPcm {
    write: fn(&[f32], &mut Vec<u8>),
}

impl Encoder for RawPcm {
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::new();
        (self.write)(samples, &mut bytes);
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        Ok(Vec::new())
    }
}
