//! Voice activity detection: frame scores of a small network, made into spans by hysteresis, merging and padding.
//!
//! Tuned for an ASR model behind it: doubtful audio is kept, because the model cannot recover a dropped word. Music with
//! voice-like harmonics is detected as speech more often than by larger networks. Knows no file format and no model.

mod streaming;

use std::ops::Range;
use std::time::Duration;

use earshot::Detector;

pub use streaming::{StreamingVad, StreamingVadOptions, VadEvent};

/// The rate the network was trained at.
const RATE_HZ: f64 = 16_000.0;
/// Samples per score: 16 ms.
pub const FRAME_SAMPLES: usize = 256;
/// A span ends only where scores stay this far below the threshold, so that it does not flicker.
const HYSTERESIS: f32 = 0.15;
/// The network starts from silence, so noise at the start of a recording scores as speech for up to 18 frames; a span
/// that begins within the first frames needs more of them.
const START_FRAMES: usize = 3;
const MIN_SPEECH_FRAMES_AT_START: usize = 20;

/// The network detects speech best near this level: frame RMS, 1.0 is full scale.
const TARGET_RMS: f32 = 0.1;
/// Quantile of the frame levels that is amplified to [`TARGET_RMS`]: high, because speech may be a small part of a
/// recording, and below 1, because single loud frames (a knock on the microphone) are not its level.
const LOUD_QUANTILE: f64 = 0.97;
/// Limit of the amplification: more would turn the dither of digital silence into noise.
const MAX_GAIN: f32 = 200.0;

/// Parameters of the detection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VadOptions {
    /// Score at which speech begins, 0..=1.
    pub threshold: f32,
    /// Spans with less speech than this, without their gaps, are dropped.
    pub min_speech: Duration,
    /// Gaps shorter than this are part of the span around them.
    pub min_silence: Duration,
    /// Padding before and after each span.
    pub pad: Duration,
}

impl Default for VadOptions {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            min_speech: Duration::from_millis(208),
            min_silence: Duration::from_millis(400),
            pad: Duration::from_millis(200),
        }
    }
}

/// The spans of `samples_16k` (mono, 16 kHz) that contain speech, as sample indices: sorted, disjoint, within bounds.
pub fn speech_spans(samples_16k: &[f32], options: &VadOptions) -> Vec<Range<usize>> {
    let gain = level_gain(samples_16k);
    let mut detector = Detector::default();
    let scores: Vec<f32> =
        samples_16k.chunks(FRAME_SAMPLES).map(|frame| score(&mut detector, frame, gain)).collect();
    spans_of(&scores, samples_16k.len(), options)
}

/// The score of the next frame of a detector. A short frame is filled with silence.
fn score(detector: &mut Detector, samples: &[f32], gain: f32) -> f32 {
    let mut frame = [0.0; FRAME_SAMPLES];
    for (to, &from) in frame.iter_mut().zip(samples) {
        *to = if from.is_finite() { (from * gain).clamp(-1.0, 1.0) } else { 0.0 };
    }
    detector.predict_f32(&frame)
}

fn frame_rms(frame: &[f32]) -> f32 {
    let power: f32 = frame.iter().filter(|s| s.is_finite()).map(|s| s * s).sum();
    (power / frame.len() as f32).sqrt()
}

/// The nearest number of frames.
fn frames_of(time: Duration) -> usize {
    (time.as_secs_f64() * RATE_HZ / FRAME_SAMPLES as f64).round() as usize
}

/// The gain that brings the recording to the level the network was trained at; quiet and distant speakers need it.
fn level_gain(samples: &[f32]) -> f32 {
    let mut levels: Vec<f32> = samples.chunks(FRAME_SAMPLES).map(frame_rms).collect();
    if levels.is_empty() {
        return 1.0;
    }
    let at = ((levels.len() - 1) as f64 * LOUD_QUANTILE) as usize;
    let (_, loud, _) = levels.select_nth_unstable_by(at, f32::total_cmp);
    if *loud > 0.0 { (TARGET_RMS / *loud).min(MAX_GAIN) } else { 1.0 }
}

/// Converts frame scores to sample spans.
fn spans_of(scores: &[f32], samples: usize, options: &VadOptions) -> Vec<Range<usize>> {
    let min_silence = frames_of(options.min_silence);
    let min_speech = frames_of(options.min_speech).max(1);
    let pad = (options.pad.as_secs_f64() * RATE_HZ) as usize;

    // Frame ranges, each with its number of speech frames.
    let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
    let mut is_speech = false;
    for (i, &score) in scores.iter().enumerate() {
        let level = if is_speech { options.threshold - HYSTERESIS } else { options.threshold };
        is_speech = score >= level;
        if !is_speech {
            continue;
        }
        match runs.last_mut() {
            Some((run, speech)) if i - run.end < min_silence.max(1) => {
                run.end = i + 1;
                *speech += 1;
            }
            _ => runs.push((i..i + 1, 1)),
        }
    }

    let mut spans: Vec<Range<usize>> = Vec::new();
    for (run, speech) in runs {
        let at_start = run.start < START_FRAMES;
        if speech < if at_start { MIN_SPEECH_FRAMES_AT_START.max(min_speech) } else { min_speech } {
            continue;
        }
        let start = (run.start * FRAME_SAMPLES).saturating_sub(pad);
        let end = (run.end * FRAME_SAMPLES).saturating_add(pad).min(samples);
        match spans.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => spans.push(start..end),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const F: usize = FRAME_SAMPLES;

    fn frames(count: u64) -> Duration {
        Duration::from_millis(16 * count)
    }

    /// Checks spans in frames, after a silent start.
    fn check(scores: &[f32], options: VadOptions, expected: &[(usize, usize)]) {
        const LEAD: usize = START_FRAMES + 2;
        let later = [&[0.0; LEAD], scores].concat();
        let expected: Vec<_> = expected.iter().map(|(a, b)| (a + LEAD) * F..(b + LEAD) * F).collect();
        assert_eq!(spans_of(&later, later.len() * F, &options), expected, "{scores:?}");
    }

    #[test]
    fn a_span_at_the_start_needs_more_speech() {
        let options = VadOptions { pad: Duration::ZERO, ..VadOptions::default() };
        for (frames, kept) in [(19, false), (20, true)] {
            let scores = [vec![0.9; frames], vec![0.0; 50]].concat();
            assert_eq!(!spans_of(&scores, scores.len() * F, &options).is_empty(), kept);
        }
    }

    #[test]
    fn hysteresis_merging_dropping_and_padding() {
        let plain =
            VadOptions { threshold: 0.5, min_speech: frames(1), min_silence: frames(1), pad: Duration::ZERO };
        check(&[], plain, &[]);
        check(&[0.4, 0.4], plain, &[]);
        check(&[0.4, 0.6, 0.4, 0.34, 0.4], plain, &[(1, 3)]);
        check(&[0.9, 0.0, 0.9], plain, &[(0, 1), (2, 3)]);
        check(&[0.9, 0.0, 0.9], VadOptions { min_silence: frames(2), ..plain }, &[(0, 3)]);
        check(&[0.9, 0.0, 0.0, 0.9], VadOptions { min_silence: frames(2), ..plain }, &[(0, 1), (3, 4)]);
        let short = VadOptions { min_speech: frames(2), min_silence: frames(2), ..plain };
        check(&[0.9, 0.0, 0.0, 0.9, 0.0, 0.9], short, &[(3, 6)]);
        let padded = VadOptions { pad: frames(1), ..plain };
        check(&[0.0, 0.0, 0.9, 0.0, 0.0], padded, &[(1, 4)]);
        check(&[0.0, 0.9, 0.0, 0.0, 0.9], padded, &[(0, 5)]);
        check(&[0.0, 0.9, 0.0, 0.0, 0.0, 0.9], padded, &[(0, 3), (4, 6)]);
    }

    proptest! {
        #[test]
        fn spans_are_sorted_disjoint_and_within_bounds(
            scores in prop::collection::vec(0f32..1.0, 0..200),
            threshold in 0f32..1.0,
            times in prop::array::uniform3(0u64..500),
            cut in 0usize..F,
        ) {
            let [min_speech, min_silence, pad] = times.map(Duration::from_millis);
            let samples = (scores.len() * F).saturating_sub(cut);
            let spans = spans_of(&scores, samples, &VadOptions { threshold, min_speech, min_silence, pad });
            prop_assert!(spans.iter().all(|s| s.start < s.end && s.end <= samples));
            prop_assert!(spans.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn any_samples_give_spans_within_bounds(samples in prop::collection::vec(any::<f32>(), 0..2000)) {
            let spans = speech_spans(&samples, &VadOptions::default());
            prop_assert!(spans.iter().all(|s| s.end <= samples.len()));
        }
    }
}
