//! Voice activity detection: frame scores of a small network, made into spans by hysteresis, merging and padding.
//!
//! Tuned for an ASR model behind it: doubtful audio is kept, because the model cannot recover a dropped word. Knows no file
//! format and no model.

mod model;
mod silero;
mod streaming;

use std::ops::Range;
use std::time::Duration;

pub use model::VadModel;
pub use silero::WeightsError;
pub use streaming::{StreamingVad, StreamingVadOptions, VadEvent};

/// The rate the networks were trained at.
const RATE_HZ: f64 = 16_000.0;
/// A span ends only where scores stay this far below the threshold, so that it does not flicker.
const HYSTERESIS: f32 = 0.15;

/// Speech is detected best near this level: frame RMS, 1.0 is full scale.
const TARGET_RMS: f32 = 0.1;
/// Samples whose level is measured together: 16 ms.
const LEVEL_SAMPLES: usize = 256;
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

/// How the scores of a network are read.
#[derive(Debug, Clone, Copy)]
struct ScoreRules {
    /// Samples per score.
    frame: usize,
    /// A span that begins within the first `start_frames` needs `min_speech_at_start` frames of speech: a network may start
    /// from silence, so that noise at the start of a recording scores as speech.
    start_frames: usize,
    min_speech_at_start: usize,
}

impl ScoreRules {
    /// The nearest number of frames.
    fn frames_of(self, time: Duration) -> usize {
        (time.as_secs_f64() * RATE_HZ / self.frame as f64).round() as usize
    }
}

fn frame_rms(frame: &[f32]) -> f32 {
    let power: f32 = frame.iter().filter(|s| s.is_finite()).map(|s| s * s).sum();
    (power / frame.len() as f32).sqrt()
}

/// The gain that brings the recording to the level where speech is detected best; quiet and distant speakers need it.
fn level_gain(samples: &[f32]) -> f32 {
    let mut levels: Vec<f32> = samples.chunks(LEVEL_SAMPLES).map(frame_rms).collect();
    if levels.is_empty() {
        return 1.0;
    }
    let at = ((levels.len() - 1) as f64 * LOUD_QUANTILE) as usize;
    let (_, loud, _) = levels.select_nth_unstable_by(at, f32::total_cmp);
    if *loud > 0.0 { (TARGET_RMS / *loud).min(MAX_GAIN) } else { 1.0 }
}

/// Converts frame scores to sample spans.
fn spans_of(scores: &[f32], rules: ScoreRules, samples: usize, options: &VadOptions) -> Vec<Range<usize>> {
    let min_silence = rules.frames_of(options.min_silence);
    let min_speech = rules.frames_of(options.min_speech).max(1);
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
        let at_start = run.start < rules.start_frames;
        if speech < if at_start { rules.min_speech_at_start.max(min_speech) } else { min_speech } {
            continue;
        }
        let start = (run.start * rules.frame).saturating_sub(pad);
        let end = (run.end * rules.frame).saturating_add(pad).min(samples);
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

    const F: usize = 256;
    const RULES: ScoreRules = ScoreRules { frame: F, start_frames: 3, min_speech_at_start: 20 };

    fn frames(count: u64) -> Duration {
        Duration::from_millis(16 * count)
    }

    /// Checks spans in frames, after a silent start.
    fn check(scores: &[f32], options: VadOptions, expected: &[(usize, usize)]) {
        const LEAD: usize = RULES.start_frames + 2;
        let later = [&[0.0; LEAD], scores].concat();
        let expected: Vec<_> = expected.iter().map(|(a, b)| (a + LEAD) * F..(b + LEAD) * F).collect();
        assert_eq!(spans_of(&later, RULES, later.len() * F, &options), expected, "{scores:?}");
    }

    #[test]
    fn a_span_at_the_start_needs_more_speech() {
        let options = VadOptions { pad: Duration::ZERO, ..VadOptions::default() };
        for (frames, kept) in [(19, false), (20, true)] {
            let scores = [vec![0.9; frames], vec![0.0; 50]].concat();
            assert_eq!(!spans_of(&scores, RULES, scores.len() * F, &options).is_empty(), kept);
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
            let spans = spans_of(&scores, RULES, samples, &VadOptions { threshold, min_speech, min_silence, pad });
            prop_assert!(spans.iter().all(|s| s.start < s.end && s.end <= samples));
            prop_assert!(spans.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn any_samples_give_spans_within_bounds(samples in prop::collection::vec(any::<f32>(), 0..2000)) {
            for model in [VadModel::default(), silero::tests::random_model()] {
                let spans = model.speech_spans(&samples, &VadOptions { threshold: 0.4, ..VadOptions::default() });
                prop_assert!(spans.iter().all(|s| s.end <= samples.len()));
            }
        }
    }
}
