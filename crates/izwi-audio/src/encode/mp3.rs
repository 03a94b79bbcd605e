//! MP3: MPEG-1, 2 and 2.5 Layer III, mono, behind the tag frame of LAME that tells decoders the encoder's delay.
//!
//! A file has the tag completed with its length, so that it decodes to exactly its samples. A stream sends the tag before its
//! length is known: it decodes to exactly its samples from the start on, followed by less than one frame of silence.

use rusty_mp3::{Error, Mp3Encoder, Mp3EncoderConfig};

use super::encoder::{EncodeError, Encoder, EncoderConfig, Format};
use crate::pcm;

/// MPEG Layer III.
pub const MP3: Format = Format {
    name: "mp3",
    encoding: "mp3",
    media_type: Some("audio/mpeg"),
    extensions: &["mp3"],
    sample_bytes: None,
    streams: true,
    sample_rates_hz: &[8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000],
    keeps_rate: false,
    bit_rates: Some(8_000..=320_000),
    new_encoder: |config| Ok(Box::new(Mp3::new(config)?)),
};

/// Bits per second without a request for a bit rate.
const DEFAULT_BIT_RATE: u32 = 96_000;
/// The lowest sample rate of MPEG-1, whose frames use a bit reservoir.
const MPEG_1_MIN_RATE_HZ: u32 = 32_000;
/// The lowest sample rate of MPEG-2; lower ones are MPEG-2.5, of which decoders expect at most 64 kbit/s.
const MPEG_2_MIN_RATE_HZ: u32 = 16_000;
const MPEG_2_5_MAX_BIT_RATE: u32 = 64_000;

struct Mp3 {
    encoder: Mp3Encoder,
    sample_rate_hz: u32,
    /// Whether the bytes wait for the end, where the tag is completed.
    is_file: bool,
    samples: Vec<f32>,
}

impl std::fmt::Debug for Mp3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mp3")
            .field("sample_rate_hz", &self.sample_rate_hz)
            .field("is_file", &self.is_file)
            .finish_non_exhaustive()
    }
}

impl Mp3 {
    fn new(config: &EncoderConfig) -> Result<Self, EncodeError> {
        let sample_rate_hz = config.sample_rate_hz;
        let mut bit_rate = config.bit_rate.unwrap_or(DEFAULT_BIT_RATE);
        if sample_rate_hz < MPEG_2_MIN_RATE_HZ {
            bit_rate = bit_rate.min(MPEG_2_5_MAX_BIT_RATE);
        }
        let bitrate_kbps = bit_rate / 1000;
        // At a constant bit rate, frames of MPEG-1 leave the encoder at the end of the stream; at a variable one at once.
        let is_variable = sample_rate_hz >= MPEG_1_MIN_RATE_HZ;
        let vbr_quality = is_variable.then_some(bitrate_kbps as f32);
        let mut encoder = Mp3Encoder::new(Mp3EncoderConfig { bitrate_kbps, vbr_quality });
        encoder.push_pcm_f32(&[], 1, sample_rate_hz).map_err(failed)?;
        let is_file = config.total_samples.is_some();
        Ok(Self { encoder, sample_rate_hz, is_file, samples: Vec::new() })
    }

    fn take(&mut self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::new();
        loop {
            match self.encoder.next_packet() {
                Ok(packet) => bytes.extend(packet),
                Err(Error::Again | Error::Eof) => return Ok(bytes),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl Encoder for Mp3 {
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        self.samples.clear();
        self.samples.extend(samples.iter().map(|&sample| pcm::bounded(sample)));
        self.encoder.push_pcm_f32(&self.samples, 1, self.sample_rate_hz).map_err(failed)?;
        if self.is_file { Ok(Vec::new()) } else { self.take() }
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        self.encoder.finish();
        self.take()
    }
}

fn failed(error: Error) -> EncodeError {
    EncodeError::Codec { format: MP3.name, reason: error.to_string() }
}
