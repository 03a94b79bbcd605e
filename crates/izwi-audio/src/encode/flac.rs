//! FLAC: mono 16-bit, without losses, frame by frame.
//!
//! Layout: RFC 9639. A stream tells neither its length nor a digest: both fields are 0, which means unknown.

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr as _, Stream, StreamInfo};
use flacenc::config;
use flacenc::error::{Verified, Verify as _};
use flacenc::source::{Fill as _, FrameBuf};

use super::SAMPLE_RATES_HZ;
use super::comments::vorbis_comments;
use super::encoder::{EncodeError, Encoder, EncoderConfig};
use super::format::Format;
use crate::pcm;

/// Free lossless audio codec.
pub const FLAC: Format = Format {
    name: "flac",
    encoding: "flac",
    media_type: Some("audio/flac"),
    extensions: &["flac"],
    sample_bytes: None,
    streams: true,
    sample_rates_hz: SAMPLE_RATES_HZ,
    keeps_rate: true,
    bit_rates: None,
    new_encoder: |config| Ok(Box::new(Flac::new(config)?)),
};

/// Samples of a frame: 43 ms at 24 kHz.
const BLOCK_SAMPLES: usize = 1024;
const BITS_PER_SAMPLE: usize = 16;
/// The largest length that the header holds, in samples.
const MAX_SAMPLES: u64 = (1 << 36) - 1;

/// Where the type of the first block stands in the header, behind the signature (RFC 9639 §8.1).
const FIRST_BLOCK_AT: usize = 4;
const LAST_BLOCK: u8 = 0x80;
const COMMENT_BLOCK: u8 = 4;
/// A block tells its length in 24 bits.
const MAX_BLOCK_BYTES: usize = 1 << 24;

#[derive(Debug)]
struct Flac {
    config: Verified<config::Encoder>,
    info: StreamInfo,
    /// `None` once it was written.
    header: Option<Vec<u8>>,
    /// Samples of the frame that is being filled.
    pending: Vec<i32>,
    frames: usize,
}

impl Flac {
    fn new(config: &EncoderConfig) -> Result<Self, EncodeError> {
        let mut info = StreamInfo::new(config.sample_rate_hz as usize, 1, BITS_PER_SAMPLE).map_err(failed)?;
        info.set_block_sizes(BLOCK_SAMPLES, BLOCK_SAMPLES).map_err(failed)?;
        info.set_frame_sizes(0, 0).map_err(failed)?;
        if let Some(samples) = config.total_samples {
            if samples > MAX_SAMPLES {
                return Err(EncodeError::TooLong { format: FLAC.name, samples });
            }
            info.set_total_samples(samples as usize);
        }
        let mut sink = ByteSink::new();
        Stream::with_stream_info(info.clone()).write(&mut sink).map_err(failed)?;
        let mut settings = config::Encoder::default();
        settings.block_size = BLOCK_SAMPLES;
        settings.multithread = false;
        let settings = settings.into_verified().map_err(|(_, error)| failed(error))?;
        let (header, pending) = (Some(sink.into_inner()), Vec::new());
        Ok(Self { config: settings, info, header, pending, frames: 0 })
    }

    fn write_frame(&mut self, samples: &[i32], bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut block = FrameBuf::with_size(1, BLOCK_SAMPLES).map_err(failed)?;
        block.fill_interleaved(samples).map_err(failed)?;
        let frame = flacenc::encode_fixed_size_frame(&self.config, &block, self.frames, &self.info);
        let mut sink = ByteSink::new();
        frame.map_err(failed)?.write(&mut sink).map_err(failed)?;
        bytes.extend(sink.as_slice());
        self.frames += 1;
        Ok(())
    }
}

impl Encoder for Flac {
    fn set_comments(&mut self, comments: &[(String, String)]) {
        let block = vorbis_comments(comments);
        let Some(header) = self.header.as_mut().filter(|_| block.len() < MAX_BLOCK_BYTES) else { return };
        // The stream information is no longer the last block; the comments are.
        header[FIRST_BLOCK_AT] &= !LAST_BLOCK;
        header.push(LAST_BLOCK | COMMENT_BLOCK);
        header.extend(&(block.len() as u32).to_be_bytes()[1..]);
        header.extend(block);
    }

    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = self.header.take().unwrap_or_default();
        self.pending.extend(samples.iter().map(|&sample| i32::from(pcm::to_i16(sample))));
        let pending = std::mem::take(&mut self.pending);
        let blocks = pending.chunks_exact(BLOCK_SAMPLES);
        self.pending = blocks.remainder().to_vec();
        for block in blocks {
            self.write_frame(block, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = self.header.take().unwrap_or_default();
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            self.write_frame(&rest, &mut bytes)?;
        }
        Ok(bytes)
    }
}

fn failed(error: impl std::fmt::Display) -> EncodeError {
    EncodeError::Codec { format: FLAC.name, reason: error.to_string() }
}
