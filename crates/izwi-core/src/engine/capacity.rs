//! Capacity: the streams that a machine keeps, by the admission's own rule over a measured cost curve, and the machines that a
//! number of listeners needs.
//!
//! Must not know files, flags or prices.

mod fleet;
mod measure;
mod queue;

use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;

use super::qos::admission::{Candidate, LiveStream, Situation, StreamRate};
use super::qos::arbiter::BULK_SHARE;
use super::qos::cost::{CostModel, StepShape};

pub use fleet::{Demand, Need, Routing, TooMany};
pub use measure::{Effort, MeasureError, measure};
pub use queue::{erlang_b, erlang_c};

/// How often each point of a curve is learned: as often as a running engine has seen it.
const LESSONS: usize = 40;
/// The largest deviation in lessons: more of it would bias the times that are learned, which the curve has as an engine learned
/// them.
const MOST_NOISE: f64 = 0.15;
/// Prompt tokens of a lesson about prompts.
const LESSON_TOKENS: usize = 100;
/// Streams of one machine that are looked at, at most.
const MAX_STREAMS: usize = 1 << 16;

/// What steps of a model cost on one machine, as measured there, and the settings that limit its streams.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Work and audio of a step of one stream.
    pub rate: StreamRate,
    /// Seconds of a step in which so many streams have their step each, by rising numbers of streams.
    pub steps: Vec<(usize, f64)>,
    /// Seconds of a prompt token. 0 for models whose first step is the prompt.
    pub prompt_token_s: f64,
    /// Standard deviation of the time of a step, relative to its mean.
    pub deviation: f64,
    /// Prompt tokens of a text: those of any text, and those of a character.
    pub prompt_tokens: (f64, f64),
    /// Characters of text that are spoken in a second.
    pub chars_per_s: f64,
    /// Samples a second of the audio.
    pub sample_rate: u32,
    /// Samples in a chunk of a stream.
    pub chunk_samples: usize,
    /// The most sequences in a step.
    pub batch: usize,
    /// The most streams at once that memory and settings allow.
    pub max_streams: usize,
    /// The longest predicted time to the first audio with which a stream is accepted, in seconds.
    pub max_first_audio_s: f64,
}

/// What limits the streams of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Steps of more streams would take longer than their audio plays.
    Device,
    /// Prompts of more streams would not leave the device time for their audio.
    Prompts,
    /// The first audio of more streams would come too late.
    FirstAudio,
    /// `max_running_requests`, or `max_state_mib` of the states of streams.
    Settings,
}

/// What one machine keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Streams at once that play without a gap.
    pub streams: usize,
    /// What limits them.
    pub limit: Limit,
    /// Share of the device that so many streams use, with their prompts.
    pub utilisation: f64,
    /// Predicted seconds to the first audio alongside as many streams.
    pub first_audio_s: f64,
}

/// Why a machine keeps no stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TooSlow {
    /// One stream alone takes this share of the device, more than what is left alongside bulk work.
    Stream(f64),
    /// The first audio of one stream alone takes this many seconds.
    FirstAudio(f64),
}

impl Curve {
    /// The streams that this machine keeps, if each lasts `utterance_s` seconds and its first audio may take `first_audio_s`.
    ///
    /// # Errors
    /// It keeps none.
    pub fn machine(&self, utterance_s: f64, first_audio_s: f64) -> Result<Machine, TooSlow> {
        let costs = self.learned();
        let situation = self.situation(&costs, &[]);
        let share = |streams: usize| situation.step_s(streams) / self.rate.audio_s;
        if share(1) > 1.0 - BULK_SHARE {
            return Err(TooSlow::Stream(share(1)));
        }
        let prompts = |streams: usize| streams as f64 / utterance_s * self.prompt_s(utterance_s);
        let first = |streams: usize| self.first_audio_s(&costs, streams, utterance_s);
        if first(1) > first_audio_s {
            return Err(TooSlow::FirstAudio(first(1)));
        }
        let kept = situation.capacity();
        let limit = if kept >= self.max_streams { Limit::Settings } else { Limit::Device };
        let keeps_up = |streams: usize| share(streams) + prompts(streams) <= 1.0 - BULK_SHARE;
        let beside_prompts = largest(kept, keeps_up);
        let limit = if beside_prompts < kept { Limit::Prompts } else { limit };
        let streams = largest(beside_prompts, |streams| first(streams) <= first_audio_s);
        let limit = if streams < beside_prompts { Limit::FirstAudio } else { limit };
        let utilisation = share(streams) + prompts(streams);
        Ok(Machine { streams, limit, utilisation, first_audio_s: first(streams) })
    }

    /// Share of the device that this many streams use on average, with their prompts.
    pub fn utilisation(&self, streams: f64, utterance_s: f64) -> f64 {
        let costs = self.learned();
        let situation = self.situation(&costs, &[]);
        let share = |streams: usize| situation.step_s(streams) / self.rate.audio_s;
        let (below, part) = (streams.floor(), streams.fract());
        let steps = (1.0 - part) * share(below as usize) + part * share(below as usize + 1);
        steps + streams / utterance_s * self.prompt_s(utterance_s)
    }

    /// The cost model of an engine that has seen the points of this curve.
    fn learned(&self) -> CostModel {
        let mut costs = CostModel::default();
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        let deviation = self.deviation.min(MOST_NOISE);
        for lesson in 0..LESSONS {
            let noise = if lesson % 2 == 0 { 1.0 + deviation } else { 1.0 - deviation };
            for &(streams, seconds) in &self.steps {
                costs.observe(times(self.rate.step, streams), duration(seconds * noise));
            }
            if let Some(&(streams, seconds)) = self.steps.first().filter(|_| self.rate.step.decodes > 0) {
                let prompt = StepShape { prefill_tokens: LESSON_TOKENS, ..StepShape::default() };
                let seconds = seconds + LESSON_TOKENS as f64 * self.prompt_token_s;
                costs.observe(times(self.rate.step, streams).plus(prompt), duration(seconds * noise));
            }
        }
        costs
    }

    fn situation<'a>(&self, costs: &'a CostModel, streams: &'a [LiveStream]) -> Situation<'a> {
        Situation {
            costs,
            rate: self.rate,
            streams,
            held: &[],
            others: &[],
            others_held: &[],
            others_ahead_s: f64::INFINITY,
            others_variance: 0.0,
            others_blocking_s: 0.0,
            pause_s: 0.0,
            has_bulk: false,
            bulk_owed_s: 0.0,
            bulk_piece_s: 0.0,
            in_flight_s: 0.0,
            batch: self.batch,
            max_streams: self.max_streams.min(MAX_STREAMS),
            max_first_audio_s: self.max_first_audio_s,
        }
    }

    /// Work of the prompt of an utterance.
    fn prompt(&self, utterance_s: f64) -> StepShape {
        if self.rate.step.decodes == 0 {
            return self.rate.step;
        }
        let (any, each) = self.prompt_tokens;
        let tokens = any + each * self.chars_per_s * utterance_s;
        StepShape { prefill_tokens: tokens.max(0.0).ceil() as usize, ..StepShape::default() }
    }

    /// Seconds of the device for the prompt of an utterance; 0 where the prompt is a step of the audio.
    fn prompt_s(&self, utterance_s: f64) -> f64 {
        let tokens = if self.rate.step.decodes == 0 { 0 } else { self.prompt(utterance_s).prefill_tokens };
        tokens as f64 * self.prompt_token_s
    }

    /// Predicted seconds to the first audio of the last of `streams` streams, which comes as a step of the others begins.
    fn first_audio_s(&self, costs: &CostModel, streams: usize, utterance_s: f64) -> f64 {
        let chunks = ChunkLengths::new(self.chunk_samples, None);
        let chunk_s = self.chunk_samples as f64 / f64::from(self.sample_rate.max(1));
        let playing = LiveStream {
            ahead_s: Some(0.5 * chunk_s),
            left_s: 0.5 * utterance_s,
            most_left_s: utterance_s,
            paced_s: 0.0,
            setup: StepShape::default(),
        };
        let others = vec![playing; streams.saturating_sub(1)];
        let situation = self.situation(costs, &others);
        let in_flight_s =
            if others.is_empty() { 0.0 } else { situation.step_s(others.len().min(self.batch)) };
        let situation = Situation { in_flight_s, max_first_audio_s: f64::INFINITY, ..situation };
        let candidate = Candidate {
            prompt: self.prompt(utterance_s),
            length_s: utterance_s,
            most_s: 1.25 * utterance_s,
            chunks,
            sample_rate: self.sample_rate,
        };
        let forecast = situation.decide(&candidate).forecast();
        let told = forecast.and_then(|forecast| forecast.prediction);
        told.map_or(f64::INFINITY, |told| told.first_audio.as_secs_f64())
    }
}

/// The work of a step of one stream, for several.
fn times(step: StepShape, streams: usize) -> StepShape {
    StepShape {
        decodes: step.decodes * streams,
        prefill_tokens: step.prefill_tokens * streams,
        encoder_tokens: step.encoder_tokens * streams,
        ..StepShape::default()
    }
}

/// The largest number from 1 to `most` for which a condition holds that holds for 1 and fails from some number on.
fn largest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = (low + high).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A curve of `fixed` and `each` seconds a step and stream, frames of 80 ms.
    fn curve(fixed: f64, each: f64) -> Curve {
        Curve {
            rate: StreamRate { step: StepShape::decode(1), audio_s: 0.08 },
            steps: [1, 2, 4, 8, 16, 32].map(|streams| (streams, fixed + each * streams as f64)).to_vec(),
            prompt_token_s: 0.000_1,
            deviation: 0.05,
            prompt_tokens: (10.0, 0.3),
            chars_per_s: 15.0,
            sample_rate: 24_000,
            chunk_samples: 4_800,
            batch: 32,
            max_streams: 64,
            max_first_audio_s: 5.0,
        }
    }

    fn slower(curve: &Curve, factor: f64) -> Curve {
        let steps = curve.steps.iter().map(|(streams, seconds)| (*streams, seconds * factor)).collect();
        Curve { steps, prompt_token_s: curve.prompt_token_s * factor, ..curve.clone() }
    }

    #[test]
    fn a_machine_keeps_what_the_admission_keeps() {
        // Four fifths of a frame of 80 ms are left alongside bulk work and prompts: (64 − 20) / 2 = 22 streams.
        let machine = curve(0.02, 0.002).machine(8.0, 5.0).unwrap();
        assert!((21..=22).contains(&machine.streams), "{machine:?}");
        assert_eq!(machine.limit, Limit::Device);
        assert!((0.7..0.9).contains(&machine.utilisation), "{machine:?}");
        assert!((0.1..2.0).contains(&machine.first_audio_s), "{machine:?}");
    }

    #[test]
    fn each_limit_is_named() {
        let few = Curve { max_streams: 3, ..curve(0.02, 0.002) };
        let machine = few.machine(8.0, 5.0).unwrap();
        assert_eq!((machine.streams, machine.limit), (3, Limit::Settings));
        let dear = Curve { prompt_token_s: 0.01, ..curve(0.02, 0.002) };
        let machine = dear.machine(8.0, 60.0).unwrap();
        assert_eq!(machine.limit, Limit::Prompts);
        assert!(machine.streams < 21 && machine.utilisation <= 0.9, "{machine:?}");
        let whole = curve(0.02, 0.002).machine(8.0, 5.0).unwrap();
        let alone = curve(0.02, 0.002).first_audio_s(&curve(0.02, 0.002).learned(), 1, 8.0);
        let early = curve(0.02, 0.002).machine(8.0, 0.5 * (alone + whole.first_audio_s)).unwrap();
        assert_eq!(early.limit, Limit::FirstAudio);
        assert!(early.streams < whole.streams, "{early:?}");
        assert!(matches!(curve(0.08, 0.01).machine(8.0, 5.0), Err(TooSlow::Stream(share)) if share > 1.0));
        assert!(matches!(curve(0.02, 0.002).machine(8.0, 0.01), Err(TooSlow::FirstAudio(_))));
    }

    #[test]
    fn models_that_speak_a_sentence_at_a_step_are_planned_too() {
        let step = StepShape { prefill_tokens: 60, ..StepShape::default() };
        let steps = [1, 2, 4].map(|streams| (streams, 0.02 + 0.05 * streams as f64)).to_vec();
        let rate = StreamRate { step, audio_s: 4.0 };
        let units = Curve { rate, steps, prompt_token_s: 0.0, ..curve(0.0, 0.0) };
        let machine = units.machine(8.0, 10.0).unwrap();
        assert!((50..=64).contains(&machine.streams), "{machine:?}");
    }

    proptest! {
        #[test]
        fn a_faster_machine_keeps_no_fewer_streams(
            fixed in 0.001..0.06f64, each in 0.000_2..0.02f64, factor in 1.0..4.0f64,
        ) {
            let fast = curve(fixed, each);
            let streams = |curve: &Curve| curve.machine(8.0, 2.0).map_or(0, |machine| machine.streams);
            prop_assert!(streams(&fast) >= streams(&slower(&fast, factor)));
        }
    }
}
