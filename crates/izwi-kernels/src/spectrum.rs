//! Filters of spectra: log magnitudes and phases out of a network as complex factors, and normal noise.
//!
//! Plain loops over slices, which the compiler vectorises: none calls the mathematics of the system library.
//! Polynomials: Cephes, <https://www.netlib.org/cephes/> (`expf`, `logf`, `sinf`, `cosf`), within 3e-7 here.

use std::f32::consts::{FRAC_2_PI, LOG2_E, PI, TAU};

use crate::arch::{Isa, Kernel, dispatch};

/// The outputs of a network for the bins of a frame, all of one length.
#[derive(Debug, Clone, Copy)]
pub struct SpectrumHeads<'a> {
    /// Log gain of the spectrum.
    pub gain: &'a [f32],
    /// Phase shift of the spectrum, before `π tanh`.
    pub turn: &'a [f32],
    /// Log magnitude of the noise.
    pub noise: &'a [f32],
    /// Log magnitude of the added component.
    pub added: &'a [f32],
    /// Phase of the added component, in radians.
    pub phase: &'a [f32],
    /// Upper limit of the logarithms.
    pub most: f32,
}

/// Complex factors and summands of the bins of a frame: real and imaginary part.
#[derive(Debug, Clone, Default)]
pub struct SpectralFilter {
    /// Factors.
    pub gain: [Vec<f32>; 2],
    /// Summands.
    pub added: [Vec<f32>; 2],
}

impl SpectralFilter {
    /// A filter of `bins` bins, all zero.
    pub fn new(bins: usize) -> Self {
        let part = || [vec![0f32; bins], vec![0f32; bins]];
        Self { gain: part(), added: part() }
    }

    /// `gain = e^g · e^(iπ·tanh t)` and `added = e^n · noise + e^a · e^(iφ)`.
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn shape(&mut self, shape: &SpectrumHeads<'_>, noise: [&[f32]; 2]) {
        let bins = self.gain[0].len();
        let parts = [shape.gain, shape.turn, shape.noise, shape.added, shape.phase, noise[0], noise[1]];
        assert!(parts.iter().all(|part| part.len() == bins), "a spectrum of another length");
        dispatch(Shapes { to: self, shape, noise });
    }
}

/// Replaces pairs of uniform values above 0 and below 1 by independent normal values (Box–Muller).
///
/// # Panics
/// Lengths differ.
pub fn box_muller(pairs: [&mut [f32]; 2]) {
    assert_eq!(pairs[0].len(), pairs[1].len());
    dispatch(Normal { pairs });
}

struct Shapes<'a> {
    to: &'a mut SpectralFilter,
    shape: &'a SpectrumHeads<'a>,
    noise: [&'a [f32]; 2],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Shapes<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let Self { to, shape, noise } = self;
        let bins = to.gain[0].len();
        let ([real, imaginary], most) = (&mut to.gain, shape.most);
        let (real, imaginary) = (&mut real[..bins], &mut imaginary[..bins]);
        let (gain, turn) = (&shape.gain[..bins], &shape.turn[..bins]);
        for bin in 0..bins {
            let (size, (sine, cosine)) = (exp(least(gain[bin], most)), sine_and_cosine(PI * tanh(turn[bin])));
            (real[bin], imaginary[bin]) = (size * cosine, size * sine);
        }
        let [real, imaginary] = &mut to.added;
        let (real, imaginary) = (&mut real[..bins], &mut imaginary[..bins]);
        let (added, phase, breath) = (&shape.added[..bins], &shape.phase[..bins], &shape.noise[..bins]);
        let (first, second) = (&noise[0][..bins], &noise[1][..bins]);
        for bin in 0..bins {
            let (size, (sine, cosine)) = (exp(least(added[bin], most)), sine_and_cosine(phase[bin]));
            let breath = exp(least(breath[bin], most));
            (real[bin], imaginary[bin]) =
                (breath * first[bin] + size * cosine, breath * second[bin] + size * sine);
        }
    }
}

struct Normal<'a> {
    pairs: [&'a mut [f32]; 2],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Normal<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let [first, second] = self.pairs;
        let second = &mut second[..first.len()];
        for at in 0..first.len() {
            let radius = (-2.0 * ln(first[at])).sqrt();
            let (sine, cosine) = sine_and_cosine(TAU * second[at]);
            (first[at], second[at]) = (radius * cosine, radius * sine);
        }
    }
}

/// Adding it to a small number rounds that to an integer, which then is in the low bits: 1.5 · 2²³.
const MAGIC: f32 = 12_582_912.0;

#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = least(if x > -86.0 { x } else { -86.0 }, 88.0);
    let shifted = x * LOG2_E + MAGIC;
    let whole = shifted - MAGIC;
    let x = (x - whole * 0.693_359_4) + whole * 2.121_944_4e-4;
    let p = 1.987_569_1e-4 * x + 1.398_199_9e-3;
    let p = p * x + 8.333_452e-3;
    let p = p * x + 4.166_579_6e-2;
    let p = p * x + 1.666_666_5e-1;
    let p = p * x + 0.5;
    let y = p * (x * x) + (x + 1.0);
    f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// Within 3e-7, not of its own size near 0.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// Of a normal number above 0.
#[inline(always)]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let half = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000); // 0.5 to 1
    let exponent = (bits >> 23) as f32 - 126.0;
    let small = half < std::f32::consts::FRAC_1_SQRT_2;
    let exponent = if small { exponent - 1.0 } else { exponent };
    let x = if small { half + half - 1.0 } else { half - 1.0 };
    let square = x * x;
    let p = 7.037_683_6e-2 * x - 1.151_461e-1;
    let p = p * x + 1.167_699_9e-1;
    let p = p * x - 1.242_014_1e-1;
    let p = p * x + 1.424_932_3e-1;
    let p = p * x - 1.666_805_8e-1;
    let p = p * x + 2.000_071_5e-1;
    let p = p * x - 2.499_999_4e-1;
    let p = p * x + 3.333_333e-1;
    let y = p * x * square + exponent * -2.121_944_4e-4 - 0.5 * square;
    x + y + exponent * 0.693_359_4
}

/// For `|x|` up to 10⁴: the remainder by π/2 in three exact steps.
#[inline(always)]
fn sine_and_cosine(x: f32) -> (f32, f32) {
    const HALF_PI: [f32; 3] = [1.570_312_5, 4.837_513e-4, 7.549_79e-8];
    let shifted = x * FRAC_2_PI + MAGIC;
    let (whole, quadrant) = (shifted - MAGIC, shifted.to_bits());
    let r = ((x - whole * HALF_PI[0]) - whole * HALF_PI[1]) - whole * HALF_PI[2];
    let square = r * r;
    let sine = ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * r + r;
    let cosine = (2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2;
    let cosine = cosine * (square * square) - 0.5 * square + 1.0;
    let swaps = quadrant & 1 != 0;
    let (s, c) = if swaps { (cosine, sine) } else { (sine, cosine) };
    let s = f32::from_bits(s.to_bits() ^ (quadrant & 2) << 30);
    let c = f32::from_bits(c.to_bits() ^ (quadrant.wrapping_add(1) & 2) << 30);
    (s, c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    fn near(name: &str, x: f32, ours: f32, theirs: f64) {
        let off = (f64::from(ours) - theirs).abs();
        assert!(off < 4e-7 * theirs.abs().max(1.0), "{name} {x}: {ours} {theirs}");
    }

    #[test]
    fn functions_equal_those_of_the_standard_library() {
        for x in values(20_000, 1) {
            let wide = f64::from(x);
            near("exp", x, exp(60.0 * x), f64::from(60.0 * x).exp());
            near("tanh", x, tanh(8.0 * x), f64::from(8.0 * x).tanh());
            near("ln", x, ln(x.abs().max(1e-8)), f64::from(x.abs().max(1e-8)).ln());
            for range in [4.0, 300.0] {
                let (sine, cosine) = sine_and_cosine(range * x);
                near("sin", range * x, sine, f64::from(range * x).sin());
                near("cos", range * x, cosine, f64::from(range * x).cos());
            }
            assert!(wide.abs() <= 1.0);
        }
        assert_eq!((exp(f32::NEG_INFINITY) < 1e-37, tanh(50.0), tanh(-50.0)), (true, 1.0, -1.0));
        assert_eq!(sine_and_cosine(0.0), (0.0, 1.0));
    }

    #[test]
    fn every_level_filters_alike_and_equals_the_formula() {
        let bins = 75;
        let [gain, turn, noise, added, phase, first, second] =
            [1, 2, 3, 4, 5, 6, 7].map(|seed| values(bins, seed).iter().map(|x| 9.0 * x).collect::<Vec<_>>());
        let shape = SpectrumHeads {
            gain: &gain,
            turn: &turn,
            noise: &noise,
            added: &added,
            phase: &phase,
            most: 2.0,
        };
        let run = || {
            let mut shaping = SpectralFilter::new(bins);
            shaping.shape(&shape, [&first, &second]);
            [shaping.gain, shaping.added].into_iter().flatten().flatten().collect::<Vec<f32>>()
        };
        check("shape", 1e-5, run);
        let ours = run();
        for bin in 0..bins {
            let size = |log: f32| log.min(2.0).exp();
            let angle = PI * turn[bin].tanh();
            let (breath, added) = (size(noise[bin]), size(added[bin]));
            let expected = [
                size(gain[bin]) * angle.cos(),
                size(gain[bin]) * angle.sin(),
                breath * first[bin] + added * phase[bin].cos(),
                breath * second[bin] + added * phase[bin].sin(),
            ];
            for (part, expected) in expected.into_iter().enumerate() {
                assert!((ours[part * bins + bin] - expected).abs() < 1e-4, "{part} {bin}");
            }
        }
    }

    #[test]
    fn normal_pairs_are_polar_coordinates() {
        let [mut first, mut second] = [8, 9].map(|seed| {
            values(500, seed).iter().map(|x| (0.5 * x + 0.5).clamp(1e-7, 1.0 - 1e-7)).collect::<Vec<f32>>()
        });
        let uniform = (first.clone(), second.clone());
        box_muller([&mut first, &mut second]);
        for at in 0..first.len() {
            let radius = (-2.0 * f64::from(uniform.0[at]).ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * f64::from(uniform.1[at])).sin_cos();
            // The angle itself is rounded to 2e-7.
            for (ours, theirs) in [(first[at], radius * cosine), (second[at], radius * sine)] {
                assert!((f64::from(ours) - theirs).abs() < 3e-6, "{at}: {ours} {theirs}");
            }
        }
    }
}
