//! Regions of speech in a recording, in frames of 10 ms, for ASR models.
//!
//! Silence between them is never decoded: models hallucinate words there. Knows no model.

use std::ops::Range;
use std::time::Duration;

use izwi_audio::vad::{VadModel, VadOptions};
use izwi_types::{InputError, SpeechDetection};

/// Rate of the recordings.
const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples of a frame.
pub(crate) const HOP: usize = SAMPLE_RATE_HZ / 100;
/// Frames of the longest window: models are trained on windows of 30 s.
pub(crate) const WINDOW_FRAMES: usize = 30 * SAMPLE_RATE_HZ / HOP;
/// Padding around speech, in frames: the detector misses soft onsets and ends.
const PADDING: usize = 40;
/// Longest pause inside a region, in frames, if a window can hold the region.
const MERGED_GAP: usize = 200;

/// A region this close to an end of the recording, in frames, extends to it.
const EDGE: usize = 100;

/// A part of the recording that contains speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    /// Frames to transcribe.
    pub(crate) frames: Range<usize>,
    /// End of its last speech.
    pub(crate) speech_end: usize,
    /// Its speech, in order.
    pub(crate) speech: Vec<Range<usize>>,
}

impl Region {
    /// The part of `frames` that is speech, 0.0 to 1.0; 1.0 for no frames.
    pub(crate) fn activity(&self, frames: &Range<usize>) -> f32 {
        let shared =
            |speech: &Range<usize>| speech.end.min(frames.end).saturating_sub(speech.start.max(frames.start));
        let spoken: usize = self.speech.iter().map(shared).sum();
        if frames.is_empty() { 1.0 } else { spoken as f32 / frames.len() as f32 }
    }
}

/// How speech becomes regions, in frames.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Padding before speech.
    before: usize,
    /// Longest pause inside a region.
    merged_gap: usize,
    /// Whether regions extend to the near ends of the recording.
    reaches_edges: bool,
}

const DEFAULT: Rules = Rules { before: PADDING, merged_gap: MERGED_GAP, reaches_edges: true };

/// The regions of a recording, in order; empty without speech. With a `detection` of the user's own each stretch of speech
/// that it finds is a region, as far as a window holds it.
pub(crate) fn find(vad: &VadModel, samples: &[f32], detection: Option<&SpeechDetection>) -> Vec<Region> {
    let plain = VadOptions { pad: Duration::ZERO, ..VadOptions::default() };
    let frames = samples.len().div_ceil(HOP);
    let Some(detection) = detection else { return plan(&vad.speech_spans(samples, &plain), frames, DEFAULT) };
    let options = VadOptions { threshold: detection.threshold, min_silence: detection.silence, ..plain };
    let count = |time: Duration| (time.as_millis() / 10) as usize;
    let before = count(detection.prefix_padding);
    let rules = Rules { before, merged_gap: count(detection.silence), reaches_edges: false };
    plan(&vad.speech_spans(samples, &options), frames, rules)
}

/// The whole recording as one region.
pub(crate) fn whole(samples: &[f32]) -> Vec<Region> {
    let frames = samples.len().div_ceil(HOP);
    vec![Region { frames: 0..frames, speech_end: frames, speech: std::iter::once(0..frames).collect() }]
}

/// The regions of a recording that is aligned with a text: one, if a window holds them all.
///
/// # Errors
/// There is no speech.
pub(crate) fn joined(regions: Vec<Region>) -> Result<Vec<Region>, InputError> {
    let [first, .., last] = &regions[..] else {
        if regions.is_empty() {
            let message = "the recording has no speech; send one in which the text is said".to_owned();
            return Err(InputError { param: "audio", message });
        }
        return Ok(regions);
    };
    let (frames, speech_end) = (first.frames.start..last.frames.end, last.speech_end);
    if frames.len() > WINDOW_FRAMES {
        return Ok(regions);
    }
    let speech = regions.into_iter().flat_map(|region| region.speech).collect();
    Ok(vec![Region { frames, speech_end, speech }])
}

/// Speech, in samples, as regions of a recording of `frames` frames.
fn plan(speech: &[Range<usize>], frames: usize, rules: Rules) -> Vec<Region> {
    let speech: Vec<Range<usize>> =
        speech.iter().map(|speech| speech.start / HOP..speech.end.div_ceil(HOP)).collect();
    let mut regions: Vec<Region> = Vec::new();
    let mut rest = speech.as_slice();
    while let [first, ..] = rest {
        let from = regions.last().map_or(0, |last| last.frames.end);
        let count = together(rest, rules);
        let end = rest[count - 1].end;
        let speech = rest[..count].to_vec();
        rest = &rest[count..];
        // Padding never overlaps the following speech.
        let next = rest.first().map_or(frames, |next| next.start.max(end));
        let start = first.start.saturating_sub(rules.before).max(from);
        let frames = start..(end + PADDING).min(next).min(frames);
        regions.push(Region { frames, speech_end: end, speech });
    }
    regions.retain(|region| !region.frames.is_empty());
    if rules.reaches_edges {
        reach_edges(&mut regions, frames);
    }
    regions
}

/// Extends the first and the last region to the near ends of the recording if a window can hold them: a short recording
/// is then transcribed as a whole.
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

/// Number of leading spans that form one region: up to the first long pause if a window holds them, else up to the
/// longest pause in the second half of the window, which is rarely inside a sentence.
fn together(speech: &[Range<usize>], rules: Rules) -> usize {
    let start = speech[0].start.saturating_sub(rules.before);
    let pause = |at: usize| speech[at].start.saturating_sub(speech[at - 1].end);
    let near = (1..speech.len()).take_while(|&at| pause(at) <= rules.merged_gap).count() + 1;
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

    #[test]
    fn activity_is_the_part_of_a_range_that_is_speech() {
        let regions = plan(&[100 * HOP..200 * HOP, 300 * HOP..400 * HOP], 500, DEFAULT);
        let activity = |frames: Range<usize>| regions[0].activity(&frames);
        assert_eq!([activity(100..200), activity(200..300), activity(150..350)], [1.0, 0.0, 0.5]);
        assert_eq!([activity(0..500), activity(7..7)], [0.4, 1.0]);
        assert_eq!(whole(&[0.0; 10 * HOP])[0].activity(&(3..8)), 1.0, "nobody looked for speech");
    }

    fn check(speech: &[(usize, usize)], frames: usize, expected: &[(usize, usize, usize)]) {
        check_with(speech, frames, DEFAULT, expected);
    }

    fn check_with(
        speech: &[(usize, usize)],
        frames: usize,
        rules: Rules,
        expected: &[(usize, usize, usize)],
    ) {
        let speech: Vec<Range<usize>> = speech.iter().map(|&(a, b)| a * HOP..b * HOP).collect();
        let regions = plan(&speech, frames, rules);
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
    fn close_speech_is_merged_within_a_window() {
        check(&[(100, 200), (300, 400)], 9000, &[(0, 440, 400)]);
        check(&[(100, 200), (450, 500)], 9000, &[(0, 240, 200), (410, 540, 500)]);
        check(&[(100, 2000), (2100, 3100)], 9000, &[(0, 2040, 2000), (2060, 3140, 3100)]);
        check(&[(100, 3050), (3060, 3100)], 9000, &[(60, 3060, 3050), (3060, 3140, 3100)]);
        check(&[(100, 8000)], 9000, &[(60, 8040, 8000)]);
    }

    #[test]
    fn the_users_own_detection_sets_padding_and_pauses() {
        let rules = Rules { before: 10, merged_gap: 50, reaches_edges: false };
        let speech = [(100, 200), (240, 300), (360, 400)];
        check_with(&speech, 1000, rules, &[(90, 340, 300), (350, 440, 400)]);
        check_with(&speech, 1000, Rules { before: 500, ..rules }, &[(0, 340, 300), (340, 440, 400)]);
        check_with(&speech, 1000, Rules { merged_gap: 60, ..rules }, &[(90, 440, 400)]);
    }

    #[test]
    fn regions_longer_than_a_window_split_at_the_longest_late_pause() {
        let speech = [(100, 900), (1090, 1700), (1860, 2400), (2460, 2900), (2980, 3300)];
        check(&speech, 9000, &[(0, 1740, 1700), (1820, 3340, 3300)]);
    }
}
