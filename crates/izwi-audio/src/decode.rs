//! Decodes recordings of any common container to mono samples at a given rate, within limits.
//!
//! Owns the limits, the errors and the order of the stages. Knows no request and no model.

mod budget;
mod bytes;
mod container;
mod foreign;
mod opus;
mod pieces;
mod sink;
mod text;
mod wav_header;

use std::fs::File;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use budget::{Budget, ReadMeter};
use bytes::{Bytes, Memory, OpenFile};
use pieces::Pieces;

use crate::pcm_format::PcmFormat;
use crate::resample::ResampleError;

/// Bounds on one recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Largest file, in bytes.
    pub max_bytes: usize,
    /// Longest recording; decoding stops as soon as it is exceeded.
    pub max_duration: Duration,
}

/// Why a recording cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not base64, or is a data URL without base64.
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
    /// The recording costs more work than its size and the longest recording allow.
    #[error("audio takes too much work to decode: {0}; convert it to one mono stream, e.g. wav at 16 kHz")]
    TooComplex(String),
    /// The caller ended it.
    #[error("decoding was stopped")]
    Stopped,
    /// The container or the codec is not supported.
    #[error("audio has no supported format ({0}); send wav, flac, mp3, ogg, m4a or webm")]
    UnknownFormat(String),
    /// The format is supported, and the file does not follow it.
    #[error("audio is damaged: {0}")]
    Damaged(String),
    /// The file contains no samples.
    #[error("audio decodes to no samples; send a recording")]
    Empty,
}

impl From<ResampleError> for DecodeError {
    fn from(error: ResampleError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Decodes raw base64 or a `data:…;base64,` URL.
///
/// Accepts both alphabets, with or without padding; skips white space.
///
/// # Errors
/// [`DecodeError::Base64`] with the position of the error, or [`DecodeError::TooLarge`] before anything is decoded.
pub fn from_base64(text: &str, max_bytes: usize) -> Result<Vec<u8>, DecodeError> {
    text::decode(text, max_bytes)
}

/// Called before each packet, with 0, and before the result grows, with the number of samples. Ends a decoding.
pub type Watch<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// Decodes a file to mono samples at `rate_hz`, each finite and in −1.0..=1.0.
///
/// Reads wav, flac, mp3, ogg (vorbis, opus, flac), mp4/m4a (aac-lc, alac), mkv/webm, aiff and caf. Channels are
/// averaged. No allocation depends on the sizes in a header: besides the result, memory holds one packet and one block
/// of the resampler. A truncated file gives the samples it has; a limited number of packets that cannot be decoded is
/// skipped. The work is bounded by the size of the file and the longest recording.
///
/// # Errors
/// The file is not audio, is damaged beyond use, exceeds a limit, or contains no samples.
pub fn decode<B>(file: B, rate_hz: u32, limits: &DecodeLimits) -> Result<Vec<f32>, DecodeError>
where
    B: AsRef<[u8]> + Send + Sync + 'static,
{
    let samples = decode_watched(file, None, rate_hz, limits, &mut |_| ControlFlow::Continue(()))?;
    Ok(samples.to_vec())
}

/// As [`decode`], while `watch` counts what is decoded and may end it. A `format` is that of samples without a header.
///
/// # Errors
/// As [`decode`]; [`DecodeError::Stopped`] if `watch` ended it.
pub fn decode_watched<B>(
    file: B,
    format: Option<PcmFormat>,
    rate_hz: u32,
    limits: &DecodeLimits,
    watch: &mut Watch<'_>,
) -> Result<Arc<[f32]>, DecodeError>
where
    B: AsRef<[u8]> + Send + Sync + 'static,
{
    let mut pieces = Pieces::default();
    let mut keep = |samples: &[f32]| {
        pieces.extend(samples);
        ControlFlow::Continue(())
    };
    run(Memory(file), format, rate_hz, limits, watch, &mut keep)?;
    Ok(pieces.into_shared())
}

/// Takes the samples of a recording block by block, and may end its decoding.
pub type Blocks<'a> = dyn FnMut(&[f32]) -> ControlFlow<()> + 'a;

/// As [`decode`], of a file that is read while it is decoded: memory holds a block of it at a time. Nobody may change the file
/// meanwhile.
///
/// # Errors
/// As [`decode`]; [`DecodeError::Stopped`] if `blocks` ended it.
pub fn decode_blocks(
    file: File,
    rate_hz: u32,
    limits: &DecodeLimits,
    blocks: &mut Blocks<'_>,
) -> Result<(), DecodeError> {
    let file =
        OpenFile::new(file).map_err(|error| DecodeError::Damaged(format!("it cannot be read: {error}")))?;
    run(file, None, rate_hz, limits, &mut |_| ControlFlow::Continue(()), blocks)
}

fn run(
    file: impl Bytes,
    format: Option<PcmFormat>,
    rate_hz: u32,
    limits: &DecodeLimits,
    watch: &mut Watch<'_>,
    blocks: &mut Blocks<'_>,
) -> Result<(), DecodeError> {
    let length = file.len();
    if length > limits.max_bytes {
        return Err(DecodeError::TooLarge { limit: limits.max_bytes });
    }
    if length == 0 {
        return Err(DecodeError::Empty);
    }
    check_rate(rate_hz)?;
    let budget = Budget::new(length, limits.max_duration);
    let meter = Arc::new(ReadMeter::new(length));
    let source = open(file, format, &meter)?;
    let sink = sink::Sink::new(rate_hz, limits.max_duration, budget, watch, blocks);
    // Mutated headers make symphonia 0.6.1 overflow (seen by fuzzing: format-caf demuxer.rs, format-riff common.rs for
    // AIFF, codec-adpcm codec_ms.rs). Builds without overflow checks wrap there; builds with them must not abort.
    let read = AssertUnwindSafe(|| container::read(source, sink));
    let result = catch_unwind(read).unwrap_or_else(|_| {
        Err(DecodeError::Damaged("its headers contradict each other; record or convert it again".to_owned()))
    });
    // A demuxer may take the error of the meter for the end of the file.
    meter.check()?;
    result
}

/// The file as a stream, with its header repaired, or the samples of a format with one.
fn open<B: Bytes>(
    mut file: B,
    format: Option<PcmFormat>,
    meter: &Arc<ReadMeter>,
) -> Result<wav_header::Source<B>, DecodeError> {
    let meter = Arc::clone(meter);
    if let Some(format) = format {
        let wav = wav_header::of_pcm(format, file.len())?;
        return wav_header::Source::new(wav.head, file, wav.body, meter);
    }
    let opening = file.part(0, OPENING_BYTES).unwrap_or_default();
    if let Some(name) = foreign::name(&opening) {
        return Err(DecodeError::UnknownFormat(format!("it is {name}, which is not read")));
    }
    match wav_header::repair(&mut file)? {
        Some(wav) => wav_header::Source::new(wav.head, file, wav.body, meter),
        None => {
            let all = 0..file.len();
            wav_header::Source::new(Vec::new(), file, all, meter)
        }
    }
}

/// What tells the container.
const OPENING_BYTES: usize = 4 << 10;

/// Checks for the sample rates that recordings have; others are a damaged header or an attack on the resampler.
fn check_rate(rate_hz: u32) -> Result<(), DecodeError> {
    if (1_000..=768_000).contains(&rate_hz) {
        return Ok(());
    }
    Err(DecodeError::Damaged(format!("a sample rate of {rate_hz} Hz is outside 1000..=768000")))
}

/// Maximum number of channels.
const MAX_CHANNELS: usize = 32;

fn check_channels(channels: usize) -> Result<(), DecodeError> {
    if (1..=MAX_CHANNELS).contains(&channels) {
        return Ok(());
    }
    Err(DecodeError::Damaged(format!("{channels} channels are outside 1..={MAX_CHANNELS}")))
}

#[cfg(test)]
mod tests;
