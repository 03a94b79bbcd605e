//! Voice activity of a live stream: spans of speech are reported as they begin and end.
//!
//! The state is a few kilobytes, whatever the length of the stream. Any slicing of it gives the same events.

use std::time::Duration;

use super::model::{StreamScorer, VadModel};
use super::{HYSTERESIS, ScoreRules};

/// Silence after which a beginning that was too short is dropped.
const MAX_ONSET_GAP: Duration = Duration::from_millis(160);

/// Parameters of the detection.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamingVadOptions {
    /// Score at which speech begins, 0..=1.
    pub threshold: f32,
    /// Speech that is needed before a span begins, without its gaps.
    pub min_speech: Duration,
    /// Silence that ends a span.
    pub min_silence: Duration,
    /// Lengths of silence within a span that are told as pauses.
    pub pauses: Vec<Duration>,
}

impl Default for StreamingVadOptions {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            min_speech: Duration::from_millis(128),
            min_silence: Duration::from_millis(500),
            pauses: Vec::new(),
        }
    }
}

/// A change between silence and speech. Positions are samples from the start of the stream, at the ends of
/// frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VadEvent {
    /// Speech has begun.
    Started {
        /// Its first sample.
        start: u64,
        /// After the last sample that was needed to tell.
        at: u64,
    },
    /// Speech pauses. The span goes on.
    Paused {
        /// After its last sample.
        end: u64,
        /// Which of the lengths the silence has.
        length: Duration,
    },
    /// Speech goes on after a silence that was told as a pause.
    Resumed,
    /// Speech has ended.
    Stopped {
        /// After its last sample.
        end: u64,
        /// After the last sample that was needed to tell.
        at: u64,
    },
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Silence,
    /// Speech that may be too short, in frames.
    Onset {
        start: u64,
        end: u64,
        speech: u64,
    },
    Speech {
        end: u64,
    },
}

/// The detector of one stream of mono samples at 16 kHz.
pub struct StreamingVad {
    threshold: f32,
    min_speech: u64,
    min_silence: u64,
    /// Each in frames.
    pauses: Vec<(u64, Duration)>,
    max_onset_gap: u64,
    rules: ScoreRules,
    scorer: StreamScorer,
    /// The start of a frame.
    pending: Vec<f32>,
    /// Frames that were scored.
    frames: u64,
    is_speech: bool,
    phase: Phase,
}

impl std::fmt::Debug for StreamingVad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamingVad")
            .field("frames", &self.frames)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl StreamingVad {
    /// A detector at the start of a stream.
    pub fn new(model: &VadModel, options: &StreamingVadOptions) -> Self {
        let rules = model.rules();
        let frames = |time| (rules.frames_of(time) as u64).max(1);
        Self {
            threshold: options.threshold,
            min_speech: frames(options.min_speech),
            min_silence: frames(options.min_silence),
            pauses: options.pauses.iter().map(|&length| (frames(length), length)).collect(),
            max_onset_gap: frames(MAX_ONSET_GAP),
            rules,
            scorer: StreamScorer::new(model),
            pending: Vec::with_capacity(rules.frame),
            frames: 0,
            is_speech: false,
            phase: Phase::Silence,
        }
    }

    /// Samples of a frame: events are at the ends of frames.
    pub fn frame_samples(&self) -> usize {
        self.rules.frame
    }

    /// The first sample that a later [`VadEvent::Started`] may name.
    pub fn next_start(&self) -> u64 {
        let frame = if let Phase::Onset { start, .. } = self.phase { start } else { self.frames };
        frame * self.rules.frame as u64
    }

    /// Adds samples in −1.0..=1.0, and appends what they tell to `events`.
    pub fn push(&mut self, mut samples: &[f32], events: &mut Vec<VadEvent>) {
        while self.pending.len() + samples.len() >= self.rules.frame {
            let (head, rest) = samples.split_at(self.rules.frame - self.pending.len());
            self.pending.extend_from_slice(head);
            samples = rest;
            let score = self.scorer.score(&mut self.pending);
            self.pending.clear();
            events.extend(self.advance(score));
        }
        self.pending.extend_from_slice(samples);
    }

    /// Ends a span without waiting for silence. What follows may begin another.
    pub fn end_span(&mut self) {
        self.phase = Phase::Silence;
    }

    /// Takes the score of the next frame.
    fn advance(&mut self, score: f32) -> Option<VadEvent> {
        let frame = self.frames;
        self.frames += 1;
        let level = if self.is_speech { self.threshold - HYSTERESIS } else { self.threshold };
        self.is_speech = score >= level;
        let at = self.frames * self.rules.frame as u64;
        match &mut self.phase {
            Phase::Speech { end } if self.is_speech => {
                let silence = frame - std::mem::replace(end, self.frames);
                return self.pauses.iter().any(|(frames, _)| *frames <= silence).then_some(VadEvent::Resumed);
            }
            Phase::Speech { end } => {
                let end = *end;
                if self.frames - end >= self.min_silence {
                    self.phase = Phase::Silence;
                    return Some(VadEvent::Stopped { end: end * self.rules.frame as u64, at });
                }
                let silence = self.frames - end;
                if let Some(&(_, length)) = self.pauses.iter().find(|(frames, _)| *frames == silence) {
                    return Some(VadEvent::Paused { end: end * self.rules.frame as u64, length });
                }
            }
            Phase::Silence if self.is_speech => {
                self.phase = Phase::Onset { start: frame, end: self.frames, speech: 1 };
            }
            Phase::Silence => {}
            Phase::Onset { end, speech, .. } if self.is_speech => {
                *end = self.frames;
                *speech += 1;
            }
            Phase::Onset { end, .. } => {
                if self.frames - *end >= self.max_onset_gap {
                    self.phase = Phase::Silence;
                }
            }
        }
        let Phase::Onset { start, end, speech } = self.phase else { return None };
        if speech < self.min_speech {
            return None;
        }
        self.phase = Phase::Speech { end };
        Some(VadEvent::Started { start: start * self.rules.frame as u64, at })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const F: u64 = 256;

    fn model() -> VadModel {
        VadModel::default()
    }

    fn frames(count: u64) -> Duration {
        Duration::from_millis(16 * count)
    }

    /// The events of scores after a silent start, in frames from its end.
    fn events(scores: &[f32], min_speech: u64, min_silence: u64) -> Vec<VadEvent> {
        const LEAD: usize = 5;
        let options = StreamingVadOptions {
            threshold: 0.5,
            min_speech: frames(min_speech),
            min_silence: frames(min_silence),
            pauses: [2, 3].into_iter().filter(|&pause| pause < min_silence).map(frames).collect(),
        };
        let mut vad = StreamingVad::new(&model(), &options);
        let all: Vec<f32> = [&[0.0; LEAD], scores].concat();
        let lead = LEAD as u64;
        let relative = |event| match event {
            VadEvent::Started { start, at } => {
                VadEvent::Started { start: start / F - lead, at: at / F - lead }
            }
            VadEvent::Paused { end, length } => VadEvent::Paused { end: end / F - lead, length },
            VadEvent::Resumed => VadEvent::Resumed,
            VadEvent::Stopped { end, at } => VadEvent::Stopped { end: end / F - lead, at: at / F - lead },
        };
        all.iter().filter_map(|&score| vad.advance(score)).map(relative).collect()
    }

    #[test]
    fn a_span_begins_with_enough_speech_and_ends_with_enough_silence() {
        let started = |start, at| VadEvent::Started { start, at };
        let stopped = |end, at| VadEvent::Stopped { end, at };
        assert_eq!(events(&[0.9, 0.9, 0.0, 0.0, 0.0], 2, 2), [started(0, 2), stopped(2, 4)]);
        assert_eq!(events(&[0.9, 0.0, 0.9, 0.0, 0.9, 0.0, 0.0], 2, 2), [started(0, 3), stopped(5, 7)]);
        assert_eq!(events(&[0.4, 0.6, 0.4, 0.34, 0.0], 1, 1), [started(1, 2), stopped(3, 4)], "hysteresis");
        let short = [vec![0.9], vec![0.0; 10], vec![0.9]].concat();
        assert_eq!(events(&short, 2, 2), [], "too short, twice");
    }

    #[test]
    fn each_pause_of_a_span_is_told_once() {
        let started = VadEvent::Started { start: 0, at: 1 };
        let paused = |end, length| VadEvent::Paused { end, length: frames(length) };
        let stopped = VadEvent::Stopped { end: 4, at: 8 };
        let scores = [0.9, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0];
        let resumed = VadEvent::Resumed;
        let expected = [started, paused(1, 2), resumed, paused(4, 2), paused(4, 3), stopped];
        assert_eq!(events(&scores, 1, 4), expected);
        assert_eq!(events(&[0.9, 0.0, 0.9, 0.9, 0.0, 0.9], 1, 4), [started], "too short");
    }

    #[test]
    fn an_ended_span_needs_new_speech() {
        let mut vad =
            StreamingVad::new(&model(), &StreamingVadOptions { min_speech: frames(1), ..Default::default() });
        let scores = [[0.0; 5], [0.9; 5]].concat();
        assert_eq!(scores.iter().filter_map(|&score| vad.advance(score)).count(), 1);
        vad.end_span();
        assert_eq!(vad.next_start(), 10 * F);
        assert!(matches!(vad.advance(0.9), Some(VadEvent::Started { start, .. }) if start == 10 * F));
    }

    proptest! {
        #[test]
        fn any_samples_in_any_slices_give_alternating_events(
            samples in prop::collection::vec(any::<f32>(), 0..3_000),
            step in 1usize..1_000,
        ) {
            let (min_speech, min_silence) = (frames(1), frames(1));
            let options = StreamingVadOptions { threshold: 0.45, min_speech, min_silence, pauses: Vec::new() };
            for model in [model(), super::super::silero::tests::random_model()] {
                let (mut whole, mut sliced) = (Vec::new(), Vec::new());
                StreamingVad::new(&model, &options).push(&samples, &mut whole);
                let mut vad = StreamingVad::new(&model, &options);
                for piece in samples.chunks(step) {
                    vad.push(piece, &mut sliced);
                }
                prop_assert_eq!(&whole, &sliced);
                let is_start = |event: &VadEvent| matches!(event, VadEvent::Started { .. });
                let alternates = whole.iter().enumerate().all(|(i, event)| is_start(event) == i.is_multiple_of(2));
                prop_assert!(alternates);
            }
        }
    }
}
