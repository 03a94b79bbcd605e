//! Limits of the machine: memory bandwidth and peak memory.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Bytes read in one pass: larger than any cache.
const BYTES: usize = 768 << 20;
const PASSES: usize = 7;

/// Properties of the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) cores: usize,
    /// Median of the passes, in 10⁹ bytes per second.
    pub(super) read_bandwidth_gb_s: f64,
}

/// Measures the bandwidth: reads a large buffer several times with `threads` threads.
pub(super) fn measure(threads: usize) -> Machine {
    let data = vec![1u64; BYTES / size_of::<u64>()];
    let share = data.len().div_ceil(threads.max(1));
    let mut rates: Vec<f64> = (0..PASSES).map(|_| rate(&data, share)).collect();
    rates.sort_by(f64::total_cmp);
    Machine { cores: num_cpus::get_physical(), read_bandwidth_gb_s: rates[PASSES / 2] }
}

fn rate(data: &[u64], share: usize) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for part in data.chunks(share) {
            scope.spawn(move || std::hint::black_box(sum(part)));
        }
    });
    size_of_val(data) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Sums in 32 independent chains, so that the additions do not wait for each other.
fn sum(part: &[u64]) -> u64 {
    let (chunks, rest) = part.as_chunks::<32>();
    let mut sums = [0u64; 32];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
    }
    sums.iter().chain(rest).fold(0, |sum, value| sum.wrapping_add(*value))
}

/// Resets the peak of the memory, if the system can.
pub(super) fn reset_peak_memory() {
    // Without the file the peak includes earlier models.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
