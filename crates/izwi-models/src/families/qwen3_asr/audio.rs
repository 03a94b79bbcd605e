//! A recording as the audio tower takes it: chunks of 1 s in windows. Cuts long recordings where it is quiet.
//!
//! Source: the Python package `qwen-asr` 0.0.6. Knows no tensor.

use std::ops::Range;

use super::config::{CHUNK_FRAMES, rows};
use crate::log_mel::{FrontEnd, SAMPLE_RATE_HZ};
use izwi_nn::sampling::mix;

/// Shorter pieces of a longer recording are padded with silence.
const MIN_PIECE: usize = SAMPLE_RATE_HZ / 2;

/// How far a cut may be moved to where it is quiet, and what must be quiet together.
const REACH: usize = 5 * SAMPLE_RATE_HZ;
const QUIET: usize = SAMPLE_RATE_HZ / 10;

/// Chunks of a recording that the tower sees together and apart from all others.
#[derive(Debug)]
pub(super) struct Window {
    /// Normalised log-mel frames, `[chunks, length, bins]`; the last chunk ends with zeros.
    pub(super) mel: Vec<f32>,
    pub(super) chunks: usize,
    /// Frames of each chunk.
    pub(super) length: usize,
    /// Its rows, among those of the recording.
    pub(super) rows: Range<usize>,
    /// Hash of all that.
    pub(super) key: u64,
}

/// The windows of `samples`, `chunks` chunks each; none of fewer samples than a frame takes.
pub(super) fn windows(front_end: &FrontEnd, samples: &[f32], bins: usize, chunks: usize) -> Vec<Window> {
    let mel = front_end.reflected(samples);
    let frames = mel.len();
    let values = mel.network_input(0..frames, frames, mel.peak());
    // Chunks are padded to the longest one.
    windows_of(&values, bins, frames.min(CHUNK_FRAMES), chunks)
}

/// The windows of frames `[frames, bins]`, cut into chunks of `length` frames.
pub(super) fn windows_of(values: &[f32], bins: usize, length: usize, chunks: usize) -> Vec<Window> {
    let mut start = 0;
    let window = |values: &[f32]| {
        let frames = values.len() / bins;
        let chunks = frames.div_ceil(length);
        let mut mel = values.to_vec();
        mel.resize(chunks * length * bins, 0.0);
        let hash = |key: u64, value: &f32| mix(key ^ u64::from(value.to_bits()));
        let key = mel.iter().fold(mix(frames as u64), hash);
        start += rows(frames);
        Window { mel, chunks, length, rows: start - rows(frames)..start, key }
    };
    if length == 0 { Vec::new() } else { values.chunks(chunks * length * bins).map(window).collect() }
}

/// The pieces of `samples`, none longer than `longest`.
pub(super) fn pieces(samples: &[f32], longest: usize) -> Vec<Range<usize>> {
    let reach = REACH.min(longest / 4);
    let cuts = Cuts { longest: longest - reach, reach, quiet: QUIET };
    if samples.len() > longest { cuts.pieces(samples) } else { std::iter::once(0..samples.len()).collect() }
}

/// How a long recording is cut, in samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    /// The longest piece, but for what a cut is moved.
    pub(super) longest: usize,
    /// How far a cut may be moved to where it is quiet.
    pub(super) reach: usize,
    /// Samples that must be quiet together.
    pub(super) quiet: usize,
}

impl Cuts {
    /// The pieces of a recording: nothing is lost, nothing is in two.
    pub(super) fn pieces(self, samples: &[f32]) -> Vec<Range<usize>> {
        let (mut start, end) = (0, samples.len());
        let mut pieces = Vec::new();
        while end - start > self.longest {
            let cut = start + self.longest;
            let region = cut.saturating_sub(self.reach).max(start)..(cut + self.reach).min(end);
            let boundary = if region.len() <= self.quiet { cut } else { self.boundary(samples, region) };
            let boundary = boundary.clamp(start + 1, end);
            pieces.push(start..boundary);
            start = boundary;
        }
        pieces.push(start..end);
        pieces
    }

    /// The quietest sample of the quietest stretch of `region`, the first of equals.
    fn boundary(self, samples: &[f32], region: Range<usize>) -> usize {
        let loudness = |sample: &f32| f64::from(sample.abs());
        let heard = &samples[region.clone()];
        let mut sum: f64 = heard[..self.quiet].iter().map(loudness).sum();
        let (mut least, mut at) = (sum, 0);
        for (from, (gone, new)) in heard.iter().zip(&heard[self.quiet..]).enumerate() {
            sum += loudness(new) - loudness(gone);
            if sum < least {
                (least, at) = (sum, from + 1);
            }
        }
        let quietest = heard[at..at + self.quiet].iter().enumerate();
        let quietest =
            quietest.min_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).map_or(0, |(offset, _)| offset);
        region.start + at + quietest
    }
}

/// A piece of a longer recording: silence pads it to half a second.
pub(super) fn padded(samples: &[f32]) -> Vec<f32> {
    let mut samples = samples.to_vec();
    samples.resize(samples.len().max(MIN_PIECE), 0.0);
    samples
}
