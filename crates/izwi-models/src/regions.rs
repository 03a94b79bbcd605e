//! Where a recording is listened to: stretches of speech, in frames of 10 ms.
//!
//! Silence between them is never shown to a network, which would invent words for it.

use std::ops::Range;
use std::time::Duration;

use izwi_audio::vad::{VadOptions, speech_spans};

/// Rate of the recordings.
const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples of a frame.
pub(crate) const HOP: usize = SAMPLE_RATE_HZ / 100;
/// Frames of the longest window: networks learn from windows of 30 s.
pub(crate) const WINDOW_FRAMES: usize = 30 * SAMPLE_RATE_HZ / HOP;
/// Listened to before and after speech, in frames: soft beginnings and ends escape the detector.
const PADDING: usize = 40;
/// Speech this close together, in frames, is listened to in one go where a window can hold it.
const MERGED_GAP: usize = 200;

/// Ends of the recording this near, in frames, are listened to as well.
const EDGE: usize = 100;

/// A stretch of the recording that holds speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    /// What is listened to.
    pub(crate) frames: Range<usize>,
    /// Where the last speech in it ends.
    pub(crate) speech_end: usize,
}

/// The regions of a recording, in order; none where nobody speaks.
pub(crate) fn find(samples: &[f32]) -> Vec<Region> {
    let options = VadOptions { pad: Duration::ZERO, ..VadOptions::default() };
    plan(&speech_spans(samples, &options), samples.len().div_ceil(HOP))
}

/// The whole recording as one region.
pub(crate) fn whole(samples: &[f32]) -> Vec<Region> {
    let frames = samples.len().div_ceil(HOP);
    vec![Region { frames: 0..frames, speech_end: frames }]
}

/// Speech, in samples, as regions of a recording of `frames` frames.
fn plan(speech: &[Range<usize>], frames: usize) -> Vec<Region> {
    let speech: Vec<Range<usize>> =
        speech.iter().map(|speech| speech.start / HOP..speech.end.div_ceil(HOP)).collect();
    let mut regions: Vec<Region> = Vec::new();
    let mut rest = speech.as_slice();
    while let [first, ..] = rest {
        let from = regions.last().map_or(0, |last| last.frames.end);
        let count = together(rest);
        let end = rest[count - 1].end;
        rest = &rest[count..];
        // Padding never reaches into the speech behind it.
        let next = rest.first().map_or(frames, |next| next.start.max(end));
        let start = first.start.saturating_sub(PADDING).max(from);
        regions.push(Region { frames: start..(end + PADDING).min(next).min(frames), speech_end: end });
    }
    regions.retain(|region| !region.frames.is_empty());
    reach_edges(&mut regions, frames);
    regions
}

/// Lets the first and the last region reach the near ends of the recording, where a window holds that: a short
/// recording is then listened to as its maker cut it.
fn reach_edges(regions: &mut [Region], frames: usize) {
    if let Some(first) = regions.first_mut()
        && first.frames.start <= EDGE
        && first.frames.end <= WINDOW_FRAMES
    {
        first.frames.start = 0;
    }
    if let Some(last) = regions.last_mut()
        && frames - last.frames.end <= EDGE
        && frames - last.frames.start <= WINDOW_FRAMES
    {
        last.frames.end = frames;
    }
}

/// How many of the spans, from the first on, are listened to in one go: as many as a window holds, up to the first
/// long pause; where a window is too short for that, up to the longest pause in its latter half, which rarely lies
/// within a sentence.
fn together(speech: &[Range<usize>]) -> usize {
    let start = speech[0].start.saturating_sub(PADDING);
    let pause = |at: usize| speech[at].start.saturating_sub(speech[at - 1].end);
    let near = (1..speech.len()).take_while(|&at| pause(at) <= MERGED_GAP).count() + 1;
    let held = speech[..near].iter().take_while(|span| span.end + PADDING <= start + WINDOW_FRAMES).count();
    if held == near {
        return near;
    }
    let late = |at: &usize| speech[at - 1].end >= start + WINDOW_FRAMES / 2;
    (1..=held).filter(late).max_by_key(|&at| pause(at)).unwrap_or(held.max(1))
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
        check(&[(100, 200)], 1000, &[(0, 240, 200)]);
        check(&[(10, 990)], 1000, &[(0, 1000, 990)]);
        check(&[], 1000, &[]);
    }

    #[test]
    fn neighbours_are_merged_while_a_window_holds_them() {
        check(&[(100, 200), (300, 400)], 9000, &[(0, 440, 400)]);
        check(&[(100, 200), (450, 500)], 9000, &[(0, 240, 200), (410, 540, 500)]);
        check(&[(100, 2000), (2100, 3100)], 9000, &[(0, 2040, 2000), (2060, 3140, 3100)]);
        check(&[(100, 3050), (3060, 3100)], 9000, &[(60, 3060, 3050), (3060, 3140, 3100)]);
        check(&[(100, 8000)], 9000, &[(60, 8040, 8000)]);
    }

    #[test]
    fn what_a_window_does_not_hold_is_cut_at_its_longest_late_pause() {
        let speech = [(100, 900), (1090, 1700), (1860, 2400), (2460, 2900), (2980, 3300)];
        check(&speech, 9000, &[(0, 1740, 1700), (1820, 3340, 3300)]);
    }
}
