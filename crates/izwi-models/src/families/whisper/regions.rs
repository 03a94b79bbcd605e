//! Where a recording is listened to: stretches of speech, in mel frames.
//!
//! Silence between them is never shown to the network, which would invent words for it.

use std::ops::Range;

use super::config::WINDOW_S;
use super::mel::{HOP, SAMPLE_RATE_HZ};

/// Mel frames of the longest window.
pub(super) const WINDOW_FRAMES: usize = WINDOW_S * SAMPLE_RATE_HZ / HOP;
/// Listened to before and after speech, in frames: soft beginnings and ends escape the detector.
const PADDING: usize = 30;
/// Speech this close together, in frames, is listened to in one go where a window can hold it.
const MERGED_GAP: usize = 150;

/// A stretch of the recording that holds speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Region {
    /// What is listened to.
    pub(super) frames: Range<usize>,
    /// Where the last speech in it ends.
    pub(super) speech_end: usize,
}

/// The regions of a recording, in order; none where nobody speaks.
pub(super) fn find(samples: &[f32]) -> Vec<Region> {
    plan(&speech(samples), samples.len().div_ceil(HOP))
}

/// Where somebody speaks, in samples.
fn speech(samples: &[f32]) -> Vec<Range<usize>> {
    if samples.is_empty() { Vec::new() } else { std::iter::once(0..samples.len()).collect() }
}

/// Speech, in samples, as regions of a recording of `frames` frames.
fn plan(speech: &[Range<usize>], frames: usize) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for speech in speech {
        let (start, end) = (speech.start / HOP, speech.end.div_ceil(HOP));
        let padded = start.saturating_sub(PADDING)..(end + PADDING).min(frames);
        match regions.last_mut() {
            Some(last) if joins(last, &padded, start) => {
                last.frames.end = padded.end;
                last.speech_end = end;
            }
            last => {
                let from = last.map_or(0, |last| last.frames.end);
                regions.push(Region { frames: padded.start.max(from)..padded.end, speech_end: end });
            }
        }
    }
    regions.retain(|region| !region.frames.is_empty());
    regions
}

fn joins(region: &Region, padded: &Range<usize>, start: usize) -> bool {
    let fits = padded.end - region.frames.start <= WINDOW_FRAMES;
    start <= region.speech_end || (fits && start - region.speech_end <= MERGED_GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(speech: &[(usize, usize)], frames: usize, expected: &[(usize, usize, usize)]) {
        let speech: Vec<Range<usize>> = speech.iter().map(|&(a, b)| a * HOP..b * HOP).collect();
        let regions = plan(&speech, frames);
        let found: Vec<_> = regions.iter().map(|r| (r.frames.start, r.frames.end, r.speech_end)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn speech_is_padded_within_the_recording() {
        check(&[(100, 200)], 1000, &[(70, 230, 200)]);
        check(&[(10, 990)], 1000, &[(0, 1000, 990)]);
        check(&[], 1000, &[]);
    }

    #[test]
    fn neighbours_are_merged_while_a_window_holds_them() {
        check(&[(100, 200), (300, 400)], 9000, &[(70, 430, 400)]);
        check(&[(100, 200), (400, 500)], 9000, &[(70, 230, 200), (370, 530, 500)]);
        check(&[(100, 2000), (2100, 3100)], 9000, &[(70, 2030, 2000), (2070, 3130, 3100)]);
        check(&[(100, 3050), (3060, 3100)], 9000, &[(70, 3080, 3050), (3080, 3130, 3100)]);
        check(&[(100, 8000)], 9000, &[(70, 8030, 8000)]);
    }
}
