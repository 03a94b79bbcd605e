//! What own kernels cost since the process started: launches, bytes of weights, operations. The terms of the cost model in
//! `docs/metal.md`, for benchmarks and budgets. Counts nothing that candle launches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static LAUNCHES: AtomicU64 = AtomicU64::new(0);
static WEIGHT_BYTES: AtomicU64 = AtomicU64::new(0);
static FLOP: AtomicU64 = AtomicU64::new(0);

/// Launches of own kernels, the bytes of weights that they read, and their operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelCosts {
    /// Launches.
    pub launches: u64,
    /// Bytes of the weights of linear layers, once for each time that a launch reads them.
    pub weight_bytes: u64,
    /// Products and sums of linear layers, convolutions and attention.
    pub flop: u64,
}

impl KernelCosts {
    /// The costs since the process started.
    #[must_use]
    pub fn so_far() -> Self {
        Self {
            launches: LAUNCHES.load(Relaxed),
            weight_bytes: WEIGHT_BYTES.load(Relaxed),
            flop: FLOP.load(Relaxed),
        }
    }

    /// The costs since `before`.
    #[must_use]
    pub fn since(before: Self) -> Self {
        let now = Self::so_far();
        Self {
            launches: now.launches - before.launches,
            weight_bytes: now.weight_bytes - before.weight_bytes,
            flop: now.flop - before.flop,
        }
    }
}

pub(super) fn count_launch() {
    LAUNCHES.fetch_add(1, Relaxed);
}

pub(super) fn count_work(flop: usize, weight_bytes: usize) {
    FLOP.fetch_add(flop as u64, Relaxed);
    WEIGHT_BYTES.fetch_add(weight_bytes as u64, Relaxed);
    #[cfg(all(feature = "metal", not(target_vendor = "apple")))]
    count_of_buffer(flop as u64);
}

/// Commits before the command buffer that is encoded now, its FLOP, and the most FLOP of one, under emulation.
#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
static OF_BUFFER: std::sync::Mutex<(u64, u64, u64)> = std::sync::Mutex::new((0, 0, 0));

#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
fn count_of_buffer(flop: u64) {
    let mut of_buffer = OF_BUFFER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (before, sum, most) = *of_buffer;
    let commits = objc2_metal::counters::counts().commits;
    let sum = if commits == before { sum + flop } else { flop };
    *of_buffer = (commits, sum, most.max(sum));
}

/// The most FLOP of own kernels in a command buffer of this process.
#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
pub fn most_flop_of_a_command_buffer() -> u64 {
    OF_BUFFER.lock().unwrap_or_else(std::sync::PoisonError::into_inner).2
}
