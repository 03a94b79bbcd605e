//! The cost model: the time of a step as a function of its work, learned while the engine runs.
//!
//! Must not know sequences, clocks or devices.

use std::time::Duration;

use super::demand::StepTime;

/// Coefficients: a step, a generating sequence, a prompt token, an encoder token, a token of context of a generating sequence.
const FEATURES: usize = 5;
/// Prompt or encoder tokens that are taken to cost as much as a generating sequence until it is known better.
const TOKENS_PER_DECODE: f64 = 50.0;
/// Tokens of context that are taken to cost as much as a generating sequence until it is known better.
const CONTEXT_PER_DECODE: f64 = 5_000.0;
/// Weight of a new observation in the context of a generating sequence.
const CONTEXT_WEIGHT: f64 = 0.02;
/// Weight of an observation relative to the next one.
const FORGETTING: f64 = 0.996;
/// Least weight of a new observation in the correction of a batch size.
const CORRECTION_WEIGHT: f64 = 0.04;
/// Batch sizes with a correction of their own: two for each power of two.
const SIZES: usize = 16;
/// Residuals for the margin.
const WINDOW: usize = 128;
/// The margin before there are [`FEW`] residuals.
const UNKNOWN_MARGIN: f64 = 1.3;
const FEW: usize = 32;
/// Observations of all its kinds of work after which one that differs by more than [`OUTLIER`] is cut.
const SETTLED: u64 = 8;
const OUTLIER: f64 = 4.0;
/// Weight of a new observation in the speed of the machine, and the range of those that count: a pause is no slow machine.
const SPEED_WEIGHT: f64 = 0.1;
const SPEEDS: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// Standard deviations, and the least difference, by which the speed must differ to count.
const SPEED_DEVIATIONS: f64 = 4.0;
const SPEED_DIFFERENCE: f64 = 0.08;
/// Steps after which a batch size that did not come again is no longer known.
const PERIOD: u64 = 8_192;

/// The work of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepShape {
    /// Sequences that generate a token or frame.
    pub decodes: usize,
    /// Prompt tokens, or tokens of units.
    pub prefill_tokens: usize,
    /// Tokens of encoders.
    pub encoder_tokens: usize,
    /// Tokens of context that generating sequences attend to, and the number of those sequences; the context of others is taken
    /// to be as long as it is on average.
    pub context_tokens: usize,
    /// As above.
    pub contexts: usize,
}

impl StepShape {
    /// A step in which `decodes` sequences generate.
    pub const fn decode(decodes: usize) -> Self {
        Self { decodes, prefill_tokens: 0, encoder_tokens: 0, context_tokens: 0, contexts: 0 }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            decodes: self.decodes + other.decodes,
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            encoder_tokens: self.encoder_tokens + other.encoder_tokens,
            context_tokens: self.context_tokens + other.context_tokens,
            contexts: self.contexts + other.contexts,
        }
    }

    /// With `typical` tokens of context for a sequence whose context is not told.
    fn features(self, typical: f64) -> [f64; FEATURES] {
        let untold = self.decodes.saturating_sub(self.contexts) as f64;
        let context = self.context_tokens as f64 + untold * typical;
        [1.0, self.decodes as f64, self.prefill_tokens as f64, self.encoder_tokens as f64, context]
    }

    fn is_decode(self) -> bool {
        self.decodes > 0 && self.prefill_tokens == 0 && self.encoder_tokens == 0
    }
}

/// Learned time of steps: least squares on relative errors with forgetting, and a correction per batch size.
#[derive(Debug, Clone)]
pub struct CostModel {
    /// Seconds for each feature, never negative.
    coefficients: [f64; FEATURES],
    /// Normal equations of the weighted observations.
    information: [[f64; FEATURES]; FEATURES],
    moments: [f64; FEATURES],
    /// Information that the current coefficients count as, so that a feature without observations keeps its own.
    prior: [f64; FEATURES],
    /// Tokens of context of a generating sequence, on average.
    context: f64,
    corrections: [Correction; SIZES],
    residuals: Vec<f32>,
    /// Measured over learned time of the last steps, and the factor that it makes of all times: the machine may be slower than when
    /// they were learned.
    recent: f64,
    slowness: f64,
    /// The longest time of a step over its predicted time that is counted on.
    safety: f64,
    observations: u64,
    /// Observations with each feature.
    observed: [u64; FEATURES],
    largest: Largest,
}

/// Measured over linear time of a batch size.
#[derive(Debug, Clone, Copy)]
struct Correction {
    ratio: f64,
    observations: u64,
}

/// The largest number of generating sequences that was observed often: in the last [`PERIOD`] steps or in those before.
#[derive(Debug, Clone, Default)]
struct Largest {
    /// Of this period and of the one before.
    periods: [usize; 2],
    /// The observations of larger numbers, and the least of them.
    larger: (u64, usize),
    steps: u64,
}

impl Largest {
    fn known(&self) -> usize {
        self.periods[0].max(self.periods[1])
    }

    fn observe(&mut self, decodes: usize) {
        if decodes > self.periods[0] {
            let (count, least) = self.larger;
            self.larger = (count + 1, if count == 0 { decodes } else { decodes.min(least) });
            if self.larger.0 >= SETTLED {
                (self.periods[0], self.larger) = (self.larger.1, (0, 0));
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(PERIOD) {
            (self.periods, self.larger) = ([0, self.periods[0]], (0, 0));
        }
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            coefficients: [0.0; FEATURES],
            information: [[0.0; FEATURES]; FEATURES],
            moments: [0.0; FEATURES],
            prior: [0.0; FEATURES],
            context: 0.0,
            corrections: [Correction { ratio: 1.0, observations: 0 }; SIZES],
            residuals: Vec::new(),
            recent: 1.0,
            slowness: 1.0,
            safety: 1.05 * UNKNOWN_MARGIN,
            observations: 0,
            observed: [0; FEATURES],
            largest: Largest::default(),
        }
    }
}

impl CostModel {
    /// Whether a step was observed.
    pub fn is_known(&self) -> bool {
        self.observations > 0
    }

    /// The most generating sequences whose time can be told: a few more than were observed often.
    pub fn most_decodes(&self) -> usize {
        let largest = self.largest.known();
        largest + largest.div_ceil(4) + 1
    }

    /// Predicted seconds of a step; 0 before the first observation.
    pub fn seconds(&self, shape: StepShape) -> f64 {
        self.slowness * self.learned_seconds(shape)
    }

    fn learned_seconds(&self, shape: StepShape) -> f64 {
        let [step, decode, prefill, encoder, position] = self.parts(shape);
        (step + decode + position) * self.correction(shape.decodes) + prefill + encoder
    }

    /// Learned seconds of each kind of its work.
    fn parts(&self, shape: StepShape) -> [f64; FEATURES] {
        let features = shape.features(self.context);
        std::array::from_fn(|kind| self.coefficients[kind] * features[kind])
    }

    /// Predicted duration of a step; zero before the first observation.
    pub fn predict(&self, shape: StepShape) -> Duration {
        Duration::try_from_secs_f64(self.seconds(shape)).unwrap_or(Duration::MAX)
    }

    /// The longest time of a step that is counted on, in microseconds; 0 before the first observation.
    pub fn longest_us(&self, shape: StepShape) -> u64 {
        let step_us = (self.seconds(shape) * 1e6) as u64;
        (safety(self) * step_us as f64) as u64
    }

    /// The time of a step; 0 before the first observation.
    pub(in crate::engine) fn step_time(&self, shape: StepShape) -> StepTime {
        StepTime { longest_us: self.longest_us(shape), expected_us: (self.seconds(shape) * 1e6) as u64 }
    }

    /// Learns the duration of an executed step.
    pub fn observe(&mut self, shape: StepShape, duration: Duration) {
        let mut measured = duration.as_secs_f64().max(1e-9);
        let predicted = self.seconds(shape);
        if self.observations == 0 {
            let token = 1.0 / TOKENS_PER_DECODE;
            let weights = [1.0, 1.0, token, token, 1.0 / CONTEXT_PER_DECODE];
            self.prior = weights.map(|weight| (10.0 * measured * weight).powi(-2));
            for (row, prior) in self.prior.iter().enumerate() {
                self.information[row][row] = *prior;
            }
        } else if predicted > 0.0 && self.is_settled(shape) {
            measured = measured.clamp(predicted / OUTLIER, predicted * OUTLIER);
            self.keep_residual((measured / predicted) as f32);
            self.follow(measured / self.learned_seconds(shape));
        }
        if shape.contexts > 0 {
            let context = shape.context_tokens as f64 / shape.contexts as f64;
            let weight = if self.context > 0.0 { CONTEXT_WEIGHT } else { 1.0 };
            self.context += weight * (context - self.context);
        }
        let features = shape.features(self.context);
        for (count, feature) in self.observed.iter_mut().zip(features) {
            *count += u64::from(feature > 0.0);
        }
        self.largest.observe(shape.decodes);
        self.fit(features, measured);
        self.correct(shape, measured);
        self.observations += 1;
    }

    /// Follows a machine that becomes slower within a few steps. The coefficients learn its speed in hundreds, also a higher one.
    fn follow(&mut self, ratio: f64) {
        self.recent += SPEED_WEIGHT * (ratio.clamp(*SPEEDS.start(), *SPEEDS.end()) - self.recent);
        let noise = self.deviation() * (SPEED_WEIGHT / (2.0 - SPEED_WEIGHT)).sqrt();
        let is_slower = self.recent - 1.0 > SPEED_DIFFERENCE.max(SPEED_DEVIATIONS * noise);
        self.slowness = if is_slower { self.recent } else { 1.0 };
    }

    /// Standard deviation of measured over predicted time around 1.
    pub fn deviation(&self) -> f64 {
        let squares: f64 = self.residuals.iter().map(|&ratio| (f64::from(ratio) - 1.0).powi(2)).sum();
        (squares / self.residuals.len().max(1) as f64).sqrt()
    }

    /// Whether all kinds of its work were observed often.
    fn is_settled(&self, shape: StepShape) -> bool {
        let features = shape.features(self.context);
        self.observed.iter().zip(features).all(|(count, feature)| feature == 0.0 || *count >= SETTLED)
    }

    fn keep_residual(&mut self, ratio: f32) {
        if self.residuals.len() < WINDOW {
            self.residuals.push(ratio);
        } else {
            self.residuals[(self.observations % WINDOW as u64) as usize] = ratio;
        }
        let least = if self.residuals.len() < FEW { UNKNOWN_MARGIN } else { 1.05 };
        let longest = self.residuals.iter().copied().fold(0.0, f32::max);
        self.safety = 1.05 * f64::from(longest).max(least);
    }

    /// Adds an observation, scaled so that it measured 1 and relative errors count.
    fn fit(&mut self, features: [f64; FEATURES], measured: f64) {
        let x = features.map(|feature| feature / measured);
        for row in 0..FEATURES {
            for column in 0..FEATURES {
                self.information[row][column] =
                    FORGETTING * self.information[row][column] + x[row] * x[column];
            }
            let kept = (1.0 - FORGETTING) * self.prior[row];
            self.information[row][row] += kept;
            self.moments[row] = FORGETTING * self.moments[row] + kept * self.coefficients[row] + x[row];
        }
        self.coefficients = solve_positive(&self.information, &self.moments);
    }

    fn correct(&mut self, shape: StepShape, measured: f64) {
        let linear: f64 = self.parts(shape).iter().sum();
        if shape.is_decode() && linear > 0.0 {
            let correction = &mut self.corrections[size_class(shape.decodes)];
            correction.observations += 1;
            let weight = CORRECTION_WEIGHT.max(1.0 / (correction.observations + 4) as f64);
            correction.ratio += weight * (measured / linear - correction.ratio);
        }
    }

    /// The correction of the nearest observed size that is not larger.
    fn correction(&self, decodes: usize) -> f64 {
        if decodes == 0 {
            return 1.0;
        }
        let known = self.corrections[..=size_class(decodes)].iter().rev();
        known
            .filter(|correction| correction.observations > 0)
            .map(|correction| correction.ratio)
            .next()
            .unwrap_or(1.0)
    }
}

/// The longest time of a step over its predicted time that is counted on: a little more than the longest so far.
pub fn safety(costs: &CostModel) -> f64 {
    costs.safety
}

fn size_class(decodes: usize) -> usize {
    ((2.0 * (decodes.max(1) as f64).log2()).round() as usize).min(SIZES - 1)
}

/// As [`solve`], without negative values: what would be negative is 0, and the rest is solved without it.
fn solve_positive(matrix: &[[f64; FEATURES]; FEATURES], right: &[f64; FEATURES]) -> [f64; FEATURES] {
    let (mut matrix, mut right) = (*matrix, *right);
    for _ in 0..FEATURES {
        let x = solve(&matrix, &right);
        let least = (0..FEATURES).min_by(|a, b| x[*a].total_cmp(&x[*b])).unwrap_or(0);
        if x[least] >= 0.0 {
            return x;
        }
        (0..FEATURES).for_each(|other| (matrix[least][other], matrix[other][least]) = (0.0, 0.0));
        (matrix[least][least], right[least]) = (1.0, 0.0);
    }
    [0.0; FEATURES]
}

/// Solves `matrix` x = `right` for a symmetric positive matrix, by its Cholesky factor.
fn solve(matrix: &[[f64; FEATURES]; FEATURES], right: &[f64; FEATURES]) -> [f64; FEATURES] {
    let mut factor = [[0.0; FEATURES]; FEATURES];
    for row in 0..FEATURES {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| factor[row][k] * factor[column][k]).sum();
            let rest = matrix[row][column] - known;
            factor[row][column] = if row == column {
                rest.max(1e-12 * matrix[row][row]).sqrt()
            } else {
                rest / factor[column][column]
            };
        }
    }
    let mut x = [0.0; FEATURES];
    for row in 0..FEATURES {
        let known: f64 = (0..row).map(|k| factor[row][k] * x[k]).sum();
        x[row] = (right[row] - known) / factor[row][row];
    }
    for row in (0..FEATURES).rev() {
        let known: f64 = (row + 1..FEATURES).map(|k| factor[k][row] * x[k]).sum();
        x[row] = (x[row] - known) / factor[row][row];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform noise of ± 30 %, the same each time.
    struct Noise(u64);

    impl Noise {
        fn factor(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            0.7 + 0.6 * (self.0 >> 40) as f64 / (1u64 << 24) as f64
        }

        fn below(&mut self, n: usize) -> usize {
            ((self.factor() - 0.7) / 0.6 * n as f64) as usize
        }
    }

    fn linear(shape: StepShape) -> f64 {
        0.045
            + 0.025 * shape.decodes as f64
            + 0.003 * shape.prefill_tokens as f64
            + 0.0004 * shape.encoder_tokens as f64
    }

    fn learn(model: &mut CostModel, noise: &mut Noise, steps: usize, truth: impl Fn(StepShape) -> f64) {
        for _ in 0..steps {
            let shape = StepShape {
                decodes: 1 + noise.below(8),
                prefill_tokens: if noise.below(5) == 0 { 1 + noise.below(120) } else { 0 },
                encoder_tokens: if noise.below(20) == 0 { 1_500 } else { 0 },
                ..StepShape::default()
            };
            model.observe(shape, Duration::from_secs_f64(truth(shape) * noise.factor()));
        }
    }

    fn worst_error(model: &CostModel, truth: impl Fn(StepShape) -> f64) -> f64 {
        let shapes = (1..=8).flat_map(|decodes| {
            [(0, 0), (100, 0), (0, 1_500)].map(|(prefill_tokens, encoder_tokens)| StepShape {
                decodes,
                prefill_tokens,
                encoder_tokens,
                ..StepShape::default()
            })
        });
        shapes.map(|shape| (model.seconds(shape) / truth(shape) - 1.0).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn a_known_curve_is_recovered_under_noise() {
        for seed in 0..20 {
            let (mut model, mut noise) = (CostModel::default(), Noise(seed));
            learn(&mut model, &mut noise, 1_000, linear);
            let error = worst_error(&model, linear);
            assert!(error < 0.12, "seed {seed}: {error}");
            assert!((0.12..0.25).contains(&model.deviation()), "{}", model.deviation());
            assert!((1.25..1.65).contains(&safety(&model)), "{}", safety(&model));
        }
    }

    #[test]
    fn a_curve_with_a_bend_is_followed_at_each_batch_size() {
        let bent = |shape: StepShape| {
            0.02 + 0.002 * shape.decodes as f64 + if shape.decodes > 4 { 0.06 } else { 0.0 }
        };
        let (mut model, mut noise) = (CostModel::default(), Noise(1));
        for step in 0..4_000 {
            let shape = StepShape::decode(1 + step % 8);
            model.observe(shape, Duration::from_secs_f64(bent(shape) * noise.factor()));
        }
        for decodes in [1, 2, 3, 4, 8] {
            let error = model.seconds(StepShape::decode(decodes)) / bent(StepShape::decode(decodes)) - 1.0;
            assert!(error.abs() < 0.12, "{decodes}: {error}");
        }
    }

    #[test]
    fn a_machine_that_slows_down_is_noticed() {
        let (mut model, mut noise) = (CostModel::default(), Noise(2));
        learn(&mut model, &mut noise, 3_000, linear);
        let slow = |shape| 2.0 * linear(shape);
        learn(&mut model, &mut noise, 600, slow);
        let error = worst_error(&model, slow);
        assert!(error < 0.25, "{error}");
    }

    #[test]
    fn sequences_with_a_long_context_are_known_to_take_longer() {
        let shape = |decodes: usize, context: usize| StepShape {
            context_tokens: decodes * context,
            contexts: decodes,
            ..StepShape::decode(decodes)
        };
        let truth = |decodes: usize, context: usize| {
            0.01 + 0.004 * decodes as f64 + 2e-6 * (decodes * context) as f64
        };
        let (mut model, mut noise) = (CostModel::default(), Noise(4));
        for _ in 0..2_000 {
            let (decodes, context) = (1 + noise.below(8), 100 + noise.below(3_900));
            let time = truth(decodes, context) * noise.factor();
            model.observe(shape(decodes, context), Duration::from_secs_f64(time));
        }
        for (decodes, context) in [(1, 200), (1, 4_000), (8, 200), (8, 4_000)] {
            let error = model.seconds(shape(decodes, context)) / truth(decodes, context) - 1.0;
            assert!(error.abs() < 0.1, "{decodes} of {context}: {error}");
        }
        // Those of which nothing is told have as many as most.
        let error = model.seconds(StepShape::decode(4)) / truth(4, 2_050) - 1.0;
        assert!(error.abs() < 0.1, "{error}");
        assert!(model.deviation() < 0.19, "{}", model.deviation());
    }

    #[test]
    fn a_slower_machine_is_followed_within_steps_and_one_pause_is_none() {
        for speed in [1.35, 1.6] {
            let (mut model, mut noise) = (CostModel::default(), Noise(7));
            learn(&mut model, &mut noise, 1_000, linear);
            learn(&mut model, &mut noise, 20, |shape| speed * linear(shape));
            let error = worst_error(&model, |shape| speed * linear(shape));
            assert!(error < 0.2, "{speed}: {error}");
            learn(&mut model, &mut noise, 2_000, |shape| speed * linear(shape));
            assert_eq!(model.slowness, 1.0, "the coefficients have learned it");
        }
        let (mut model, mut noise) = (CostModel::default(), Noise(8));
        learn(&mut model, &mut noise, 1_000, linear);
        model.observe(StepShape::decode(2), Duration::from_secs(1));
        assert_eq!(model.slowness, 1.0);
    }

    #[test]
    fn the_first_step_gives_a_cautious_guess_of_larger_ones() {
        let mut model = CostModel::default();
        assert!(!model.is_known());
        model.observe(StepShape::decode(1), Duration::from_millis(60));
        assert!((model.seconds(StepShape::decode(1)) - 0.06).abs() < 0.002);
        let four = model.seconds(StepShape::decode(4));
        assert!((0.13..0.17).contains(&four), "{four}");
    }

    #[test]
    fn a_kind_of_work_that_comes_late_is_learned_at_once() {
        let mut model = CostModel::default();
        for _ in 0..100 {
            model.observe(StepShape::decode(1), Duration::from_millis(4));
        }
        let encoder =
            StepShape { decodes: 1, prefill_tokens: 9, encoder_tokens: 1_500, ..StepShape::default() };
        model.observe(encoder, Duration::from_millis(200));
        let learned = model.seconds(encoder);
        assert!((0.15..0.25).contains(&learned), "{learned}");
        assert!((model.seconds(StepShape::decode(1)) - 0.004).abs() < 0.001);
    }

    #[test]
    fn the_largest_batch_is_the_least_of_those_that_came_often_and_is_forgotten() {
        let mut model = CostModel::default();
        let mut observe = |decodes, count| {
            for _ in 0..count {
                model.observe(StepShape::decode(decodes), Duration::from_millis(20));
            }
            model.largest.known()
        };
        assert_eq!(observe(2, SETTLED), 2);
        assert_eq!(observe(3, SETTLED - 1), 2);
        assert_eq!(observe(64, 1), 3, "one batch of 64 does not make 64 known");
        assert_eq!(observe(64, SETTLED), 64);
        assert_eq!(observe(2, PERIOD), 64);
        assert_eq!(observe(2, PERIOD), 2, "what has not come for long is not counted on");
    }

    #[test]
    fn one_outlier_and_a_long_rest_of_a_feature_change_little() {
        let (mut model, mut noise) = (CostModel::default(), Noise(3));
        learn(&mut model, &mut noise, 1_000, linear);
        for _ in 0..20_000 {
            let shape = StepShape::decode(2);
            model.observe(shape, Duration::from_secs_f64(linear(shape) * noise.factor()));
        }
        model.observe(StepShape::decode(2), Duration::from_secs(600));
        let prompt = StepShape { decodes: 1, prefill_tokens: 100, ..StepShape::default() };
        let error = model.seconds(prompt) / linear(prompt) - 1.0;
        assert!(error.abs() < 0.5, "{error}");
        assert!(model.coefficients.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0));
    }
}
