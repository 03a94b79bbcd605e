//! MP3: MPEG-1, 2 and 2.5 Layer III, mono, after the tag frame of LAME that tells decoders the encoder's delay.
//!
//! A file has the tag completed with its length, so that it decodes to exactly its samples. A stream sends the tag before its
//! length is known: it decodes to exactly its samples from the start on, followed by less than one frame of silence.

use rusty_mp3::encode::lametag::crc16;
use rusty_mp3::{Error, Mp3Encoder, Mp3EncoderConfig};

use super::encoder::{EncodeError, Encoder, EncoderConfig};
use super::format::Format;
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
    /// Whether the tag was sent.
    has_begun: bool,
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
        Ok(Self { encoder, sample_rate_hz, is_file, has_begun: false, samples: Vec::new() })
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
        if self.is_file {
            return Ok(Vec::new());
        }
        let mut bytes = self.take()?;
        if !self.has_begun && !bytes.is_empty() {
            forget_length(&mut bytes);
            self.has_begun = true;
        }
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        self.encoder.finish();
        self.take()
    }
}

/// Positions in the tag, from its name on: name, flags, frames, bytes, table of contents, quality, then LAME's part.
const FLAGS_AT: usize = 4;
const BYTES_AT: usize = 12;
const LAME_AT: usize = 120;
const LAME_BYTES: usize = 36;
/// Positions in LAME's part.
const PADDING_AT: usize = 22;
const MUSIC_BYTES_AT: usize = 28;
const CRC_AT: usize = 34;
/// The flag that the tag has the number of bytes. FFmpeg skips a tag frame only if it has this number or that of frames.
const HAS_BYTES: u32 = 2;

/// Takes the number of frames, which is 0 so far, and the padding out of the tag frame at the start of a stream: decoders would
/// take them for the length.
fn forget_length(stream: &mut [u8]) {
    // Header and side information of a mono frame; the version is MPEG-1 if both of its bits are set.
    let is_mpeg_1 = stream.get(1).is_some_and(|byte| byte & 0x18 == 0x18);
    let tag_at = 4 + if is_mpeg_1 { 17 } else { 9 };
    let (start, end) = (tag_at + LAME_AT, tag_at + LAME_AT + LAME_BYTES);
    let Some(lame) = stream.get(start..end) else { return };
    let mut lame = lame.to_vec();
    // 12 bits of delay, 12 of padding.
    lame[PADDING_AT] &= 0xf0;
    lame[PADDING_AT + 1] = 0;
    lame[MUSIC_BYTES_AT..CRC_AT].fill(0);
    let mut tag = HAS_BYTES.to_be_bytes().to_vec();
    tag.extend(&stream[tag_at + BYTES_AT..tag_at + BYTES_AT + 4]);
    tag.extend(&lame[..CRC_AT]);
    let tag_end = tag_at + FLAGS_AT + tag.len();
    stream[tag_at + FLAGS_AT..tag_end].copy_from_slice(&tag);
    let crc = crc16(0, &stream[..tag_end]);
    stream[tag_end..tag_end + 2].copy_from_slice(&crc.to_be_bytes());
    stream[tag_end + 2..end].fill(0);
}

fn failed(error: Error) -> EncodeError {
    EncodeError::Codec { format: MP3.name, reason: error.to_string() }
}
