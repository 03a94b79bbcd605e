//! How fast the products of this build run on this processor, as shares of the fastest that it multiplies and adds at all:
//! what tells a build whose kernels are far from what they should reach.
//!
//! Measures on one thread, for less than a second. Each rate is the best of many short runs, so that other programs on the
//! machine matter little.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::arch::IsaLevel;
use crate::linear::{Rows, WeightSource, WeightType, Weights};
use crate::measure::{f32_peak, int8_peak};

/// Inputs and outputs of the products: all weights fit the second-level cache of every processor.
const SIZE: usize = 256;
/// Multiply-adds of a run: some ten microseconds, so that a few runs of many are undisturbed on a busy machine.
const RUN_WORK: usize = 1 << 20;
/// Time of all runs of a rate, and the fewest runs.
const BUDGET: Duration = Duration::from_millis(50);
const MIN_RUNS: usize = 3;
/// Rounds of [`int8_peak`] in a run.
const INT8_ROUNDS: usize = 4_096;
/// As [`INT8_ROUNDS`] of [`f32_peak`].
const F32_ROUNDS: usize = 8_192;
/// The part of what a product should reach below which it is far from it. What is measured below that has always been a
/// fault of the build, never a busy machine.
const FAR: f64 = 0.2;

/// A product: the type of its weights, its rows, and the share of the peak that it should reach.
const PRODUCTS: [(WeightType, &str, usize, f64); 6] = [
    (WeightType::F32, "f32", 1, 0.25),
    (WeightType::F32, "f32", 8, 0.5),
    (WeightType::F16, "f16", 1, 0.25),
    (WeightType::F16, "f16", 8, 0.5),
    (WeightType::Q8, "q8", 1, 0.15),
    (WeightType::Q8, "q8", 8, 0.5),
];

/// What a thread of this processor computes.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpeeds {
    /// The instructions of the kernels; `Portable` for none that this processor and this program share.
    pub level: &'static str,
    /// Multiply-adds of f32 in a second, operands in registers.
    pub peak: f64,
    /// Products of a matrix.
    pub products: Vec<ProductSpeed>,
}

/// The speed of products of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductSpeed {
    /// The type of the weights.
    pub weights: &'static str,
    /// Rows of the left side.
    pub rows: usize,
    /// Multiply-adds in a second.
    pub rate: f64,
    /// `rate` as a share of the peak: that of bytes for weights of 8 bits.
    pub share: f64,
    /// Whether it is far from what it should reach.
    pub is_far: bool,
}

impl KernelSpeeds {
    /// Measures them.
    #[must_use]
    pub fn measure() -> Self {
        // Products split their work over the threads of the pool that they are called in.
        match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
            Ok(pool) => pool.install(Self::measure_here),
            Err(_) => Self::measure_here(),
        }
    }

    fn measure_here() -> Self {
        let level = IsaLevel::current();
        // The plain loop tells if the compiler made calls out of the instructions of the level.
        let peak = best_rate(|| f32_peak(1, F32_ROUNDS)).max(best(plain_multiply_add));
        let int8_peak = best_rate(|| int8_peak(1, INT8_ROUNDS));
        // No value is exact in 16 bits, so that f32 stays f32.
        let values: Vec<f32> = (0..SIZE * SIZE).map(|at| 0.1 + (at % 251) as f32 * 1e-4).collect();
        let products = PRODUCTS.map(|(weight_type, name, rows, expected)| {
            let weights = Weights::pack(WeightSource::F32(&values), SIZE, SIZE, weight_type);
            let rate = best(|| multiply(&weights, &values, rows));
            let peak = if weight_type == WeightType::Q8 { int8_peak } else { peak };
            let share = if peak > 0.0 { rate / peak } else { 1.0 };
            // Without vectors of the processor, types other than f32 are converted one by one.
            let is_far = level != IsaLevel::Portable && share < expected * FAR;
            ProductSpeed { weights: name, rows, rate, share, is_far }
        });
        Self { level: level.name(), peak, products: products.to_vec() }
    }

    /// Whether the kernels use vector instructions of the processor.
    #[must_use]
    pub fn has_vectors(&self) -> bool {
        self.level != IsaLevel::Portable.name()
    }
}

/// The most multiply-adds in a second: `run` returns how many it did.
fn best(mut run: impl FnMut() -> usize) -> f64 {
    best_rate(|| {
        let start = Instant::now();
        let done = run();
        done as f64 / start.elapsed().as_secs_f64().max(1e-9)
    })
}

/// The highest of the rates that `run` returns.
fn best_rate(mut run: impl FnMut() -> f64) -> f64 {
    let begun = Instant::now();
    let mut best = 0f64;
    let mut runs = 0;
    while runs < MIN_RUNS || begun.elapsed() < BUDGET {
        best = best.max(run());
        runs += 1;
    }
    best
}

/// Products of `rows` rows: about [`RUN_WORK`] multiply-adds.
fn multiply(weights: &Weights, values: &[f32], rows: usize) -> usize {
    let work = rows * SIZE * SIZE;
    let repeats = (RUN_WORK / work).max(1);
    let mut y = vec![0.0; rows * SIZE];
    for _ in 0..repeats {
        weights.product(Rows { data: black_box(values), stride: SIZE, count: rows }, None, &mut y);
        black_box(&y);
    }
    repeats * work
}

/// Multiply-adds that the compiler makes vectors of as it can.
fn plain_multiply_add() -> usize {
    const WIDTH: usize = 32;
    let (mut sums, factor, term) = (black_box([0.5f32; WIDTH]), black_box(0.5), black_box(0.25));
    let rounds = RUN_WORK / WIDTH;
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * factor + term;
        }
    }
    black_box(sums);
    rounds * WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::forced;

    #[test]
    fn every_level_is_measured() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for level in IsaLevel::ALL.iter().filter(|level| level.is_supported()) {
            let speeds = pool.install(|| forced::at(*level, KernelSpeeds::measure_here));
            assert_eq!(speeds.level, level.name());
            assert_eq!(speeds.has_vectors(), *level != IsaLevel::Portable);
            let kinds: Vec<_> = speeds.products.iter().map(|speed| (speed.weights, speed.rows)).collect();
            assert_eq!(kinds, [("f32", 1), ("f32", 8), ("f16", 1), ("f16", 8), ("q8", 1), ("q8", 8)]);
            assert!(speeds.peak.is_finite() && speeds.peak > 0.0, "{speeds:?}");
            assert!(speeds.products.iter().all(|speed| speed.rate > 0.0 && speed.share > 0.0), "{speeds:?}");
        }
    }

    #[test]
    fn the_best_of_short_runs_counts_and_time_is_bounded() {
        let mut rates = [3.0, 7.0, 5.0].into_iter().cycle();
        assert!((best_rate(|| rates.next().unwrap()) - 7.0).abs() < 1e-9);
        let mut runs = 0;
        best_rate(|| {
            std::thread::sleep(BUDGET);
            runs += 1;
            1.0
        });
        assert_eq!(runs, MIN_RUNS, "a slow product is measured a few times only");
    }
}
