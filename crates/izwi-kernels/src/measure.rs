//! What a benchmark needs to judge a kernel: the levels by name, and the fastest that this processor multiplies.
//!
//! Knows no kernel.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::arch::{
    Int8Isa, Int8Kernel, Isa, IsaLevel, Kernel, LANES, LEVEL_VARIABLE, LINE, dispatch, dispatch_int8,
};
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

/// The name of the level that kernels run at: the best one, unless `IZWI_ISA` names another.
///
/// # Errors
/// The value of `IZWI_ISA`, where this processor supports no level of this name.
pub fn isa_level() -> Result<&'static str, String> {
    match std::env::var(LEVEL_VARIABLE) {
        Ok(name) if IsaLevel::named(&name).is_none() => Err(name),
        _ => Ok(IsaLevel::current().name()),
    }
}

/// Runs all kernels of the process at the level of this name from now on; false where it is not supported.
pub fn select_isa_level(name: &str) -> bool {
    IsaLevel::named(name).is_some_and(IsaLevel::select)
}

/// Multiply-adds of bytes in a second on `threads` threads at the current level, operands in registers: `rounds` of some
/// hundred for each thread.
pub fn int8_peak(threads: usize, rounds: usize) -> f64 {
    rate(threads, |done| dispatch_int8(Multiply { rounds: rounds.div_ceil(PARTS), done }))
}

/// As [`int8_peak`] of f32.
pub fn f32_peak(threads: usize, rounds: usize) -> f64 {
    rate(threads, |done| dispatch(MultiplyAdd { rounds: rounds.div_ceil(PARTS), done }))
}

/// What [`PARTS`] calls of `run` for each thread add up to, in a second.
fn rate(threads: usize, run: impl Fn(&mut usize) + Sync) -> f64 {
    let count = AtomicUsize::new(0);
    let task = |(): &mut (), _| {
        let mut done = 0;
        run(&mut done);
        count.fetch_add(done, Ordering::Relaxed);
    };
    let start = Instant::now();
    for_each_task(PARTS * threads, threads, || (), task);
    let seconds = start.elapsed().as_secs_f64();
    count.into_inner() as f64 / seconds
}

/// Multiplies registers and adds them.
struct MultiplyAdd<'a> {
    rounds: usize,
    /// The number of multiply-adds.
    done: &'a mut usize,
}

// SAFETY: accesses only its own arrays.
unsafe impl Kernel for MultiplyAdd<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        *self.done = if I::WIDE {
            multiply_add::<I, WIDE_SUMS>(self.rounds)
        } else {
            multiply_add::<I, SUMS>(self.rounds)
        };
    }
}

/// Adds to `N` sums for some rounds; the number of multiply-adds.
#[inline(always)]
unsafe fn multiply_add<I: Isa, const N: usize>(rounds: usize) -> usize {
    // The compiler knows no value, so that it computes each sum by itself.
    let values = black_box([[0.5f32; LANES]; N]);
    let (factor, term) = (I::splat(black_box(0.5)), I::splat(black_box(0.25)));
    let mut sums = [term; N];
    for at in 0..N {
        sums[at] = I::load(values[at].as_ptr());
    }
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = I::fma(*sum, factor, term);
        }
    }
    let mut out = [[0f32; LANES]; N];
    for at in 0..N {
        I::store(out[at].as_mut_ptr(), sums[at]);
    }
    black_box(out);
    rounds * N * LANES
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
    let mut x = [D::bytes(bytes[0].as_ptr()); N];
    for at in 0..N {
        x[at] = D::bytes(bytes[at].as_ptr());
    }
    let mut sums = [D::start::<0>(0); N];
    for _ in 0..rounds {
        let weights = D::bytes(black_box(&bytes).as_ptr().cast());
        for at in 0..N {
            sums[at] = D::multiply(sums[at], weights, x[at]);
        }
    }
    let mut floats = [D::floats(sums[0]); N];
    for at in 0..N {
        floats[at] = D::floats(sums[at]);
    }
    black_box(floats);
    rounds * N * D::PRODUCTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_measured_at_every_level() {
        for level in IsaLevel::ALL.iter().filter(|level| level.is_supported()) {
            let rates = crate::arch::forced::at(*level, || [int8_peak(1, 3), f32_peak(1, 3)]);
            assert!(rates.iter().all(|rate| *rate > 0.0), "{level:?}");
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
