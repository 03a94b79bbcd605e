//! What a benchmark needs to judge a product: the levels by name, and the fastest that this processor multiplies bytes.
//!
//! Knows no kernel.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::arch::{Int8Isa, Int8Kernel, IsaLevel, LINE, dispatch_int8};
use crate::threads::for_each_task;

/// Tasks per thread, so that a thread that starts late runs fewer of them.
const PARTS: usize = 16;
/// Sums that are added to at once: as many as the registers hold, and more than an instruction takes cycles.
const SUMS: usize = if cfg!(target_arch = "aarch64") { 3 } else { 5 };
/// As [`SUMS`] with more registers.
const WIDE_SUMS: usize = 12;

/// The names of the instruction levels that this processor supports, the best first.
pub fn isa_levels() -> Vec<&'static str> {
    IsaLevel::ALL.iter().filter(|level| level.is_supported()).map(|level| level.name()).collect()
}

/// Runs all kernels of the process at the level of this name from now on; false where it is not supported.
pub fn select_isa_level(name: &str) -> bool {
    IsaLevel::ALL.iter().any(|level| level.name() == name && level.select())
}

/// Multiply-adds of bytes in a second on `threads` threads at the current level, operands in registers: `rounds` of some
/// hundred for each thread.
pub fn int8_peak(threads: usize, rounds: usize) -> f64 {
    let count = AtomicUsize::new(0);
    let task = |(): &mut (), _| {
        let mut done = 0;
        dispatch_int8(Multiply { rounds: rounds.div_ceil(PARTS), done: &mut done });
        count.fetch_add(done, Ordering::Relaxed);
    };
    let start = Instant::now();
    for_each_task(PARTS * threads, threads, || (), task);
    let seconds = start.elapsed().as_secs_f64();
    count.into_inner() as f64 / seconds
}

/// Multiplies registers.
struct Multiply<'a> {
    rounds: usize,
    /// The number of multiply-adds.
    done: &'a mut usize,
}

// SAFETY: accesses only its own arrays.
unsafe impl Int8Kernel for Multiply<'_> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        *self.done =
            if D::WIDE { multiply::<D, WIDE_SUMS>(self.rounds) } else { multiply::<D, SUMS>(self.rounds) };
    }
}

/// Adds to `N` sums for some rounds; the number of multiply-adds.
#[inline(always)]
unsafe fn multiply<D: Int8Isa, const N: usize>(rounds: usize) -> usize {
    // The activations of each sum are others, and the weights are read in each round: the compiler moves no product out
    // of the loop.
    let bytes = black_box([[1u8; LINE]; N]);
    let x = bytes.map(|bytes| D::bytes(bytes.as_ptr()));
    let mut sums = [D::start::<0>(0); N];
    for _ in 0..rounds {
        let weights = D::bytes(black_box(&bytes).as_ptr().cast());
        for (sum, &x) in sums.iter_mut().zip(&x) {
            *sum = D::multiply(*sum, weights, x);
        }
    }
    black_box(sums.map(|sum| D::floats(sum)));
    rounds * N * D::PRODUCTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_measured_at_every_level() {
        for level in IsaLevel::ALL.iter().filter(|level| level.is_supported()) {
            let rate = crate::arch::forced::at(*level, || int8_peak(1, 3));
            assert!(rate > 0.0, "{level:?}");
        }
    }

    #[test]
    fn levels_have_names_and_others_are_refused() {
        let names = isa_levels();
        assert_eq!(names.last(), Some(&"Portable"));
        assert!(!select_isa_level("Z80"));
        assert!(select_isa_level(names[0]));
    }
}
