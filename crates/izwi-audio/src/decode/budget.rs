//! How much work one recording may cost: samples, links, changes of the sample rate, bytes read.
//!
//! The duration limit alone does not bound the time of decoding: a file may have many channels, a high sample rate, or
//! thousands of links of a few samples each. Knows no container and no codec.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::DecodeError;

/// Work of any file: a minute of audio at high rates, and the setup of an unusual resampler.
const BASE_WORK: u64 = 24_000_000;
/// Work per second of the longest recording. 48 kHz stereo, decoded and mixed, takes 144,000.
const WORK_PER_SECOND: u64 = 200_000;
/// Work per byte of the file. Digital silence takes about 770 in FLAC, and 1,120 in Opus.
const WORK_PER_BYTE: u64 = 2_048;
/// Work of a packet besides its samples.
const PACKET_WORK: u64 = 256;
/// The most links of a chained file: recordings of radio stations have one per title.
const MAX_LINKS: u32 = 256;
/// The most changes of the sample rate.
const MAX_RATE_CHANGES: u32 = 32;
/// Bytes that may be read beyond [`READS_PER_BYTE`]: the demuxer searches the end of each link.
const BASE_READS: u64 = 256 << 20;
/// How often a file may be read.
const READS_PER_BYTE: u64 = 4;

/// The work that is left for one recording. A unit is about the work of one sample.
#[derive(Debug)]
pub(super) struct Budget {
    work: u64,
    links: u32,
    rate_changes: u32,
}

impl Budget {
    /// The budget of a file of `bytes`, whose audio may be as long as `longest`.
    pub(super) fn new(bytes: usize, longest: Duration) -> Self {
        let by_length = (longest.as_secs_f64() * WORK_PER_SECOND as f64) as u64;
        let by_size = WORK_PER_BYTE.saturating_mul(bytes as u64);
        let work = BASE_WORK.saturating_add(by_length.min(by_size));
        Self { work, links: MAX_LINKS, rate_changes: MAX_RATE_CHANGES }
    }

    /// Takes the work of `samples`, over all channels.
    pub(super) fn samples(&mut self, samples: usize) -> Result<(), DecodeError> {
        let left = self.work.checked_sub(samples as u64);
        self.work = left.ok_or_else(|| {
            DecodeError::TooComplex("it has too many samples for its size and length".to_owned())
        })?;
        Ok(())
    }

    /// Takes the work of one packet besides its samples.
    pub(super) fn packet(&mut self) -> Result<(), DecodeError> {
        self.samples(PACKET_WORK as usize)
    }

    /// Takes a link of a chained file.
    pub(super) fn link(&mut self) -> Result<(), DecodeError> {
        self.links = self.links.checked_sub(1).ok_or_else(|| {
            DecodeError::TooComplex(format!("it is a chain of more than {MAX_LINKS} streams"))
        })?;
        Ok(())
    }

    /// Takes a change of the sample rate.
    pub(super) fn rate_change(&mut self) -> Result<(), DecodeError> {
        self.rate_changes = self.rate_changes.checked_sub(1).ok_or_else(|| {
            DecodeError::TooComplex(format!("its sample rate changes more than {MAX_RATE_CHANGES} times"))
        })?;
        Ok(())
    }
}

/// The bytes that a demuxer may still read of one file. It may seek back and forth.
#[derive(Debug)]
pub(super) struct ReadMeter {
    left: AtomicU64,
}

impl ReadMeter {
    pub(super) fn new(bytes: usize) -> Self {
        let left = BASE_READS.saturating_add(READS_PER_BYTE.saturating_mul(bytes as u64));
        Self { left: AtomicU64::new(left) }
    }

    /// Takes `bytes`; false if there are too few.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(bytes as u64);
        self.left.store(left, Ordering::Relaxed);
        left > 0
    }

    /// An error if the demuxer has read more than it may.
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        if self.left.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(DecodeError::TooComplex("its packets lie in no order".to_owned()))
    }
}
