//! Instance norm: each channel is normalised over the rows of one sequence, then scaled, shifted and activated.

use super::by_rows;
use super::snake::sine_up_to_sign;
use crate::arch::{Int8Isa, Int8Kernel, Isa, Kernel, LANES, dispatch, dispatch_int8, load_part, store_part};
use crate::quantised_rows::{QuantisedRows, RowWriter};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Rows of one task. Fixed, so that a sequence has the same bits for any number of threads.
const ROWS: usize = 256;
/// Rows whose moments are computed together.
const NEAR_ROWS: usize = 16;

/// What follows the norm.
#[derive(Debug, Clone, Copy)]
pub enum Activated<'a> {
    /// `x` above 0, the slope times `x` below; slope from 0 to 1.
    LeakyRelu(f32),
    /// `x + sin²(a x) b`, `a` and `b` of each channel.
    Snake(&'a [f32], &'a [f32]),
}

/// `activated((1 + scale) (x - mean) / sqrt(variance + eps) + shift)` of each channel: `x` and `y` `[rows, channels]`,
/// `scale` and `shift` `[channels]`.
///
/// # Panics
/// Lengths do not fit.
pub fn instance_norm(
    x: &[f32],
    [scale, shift]: [&[f32]; 2],
    eps: f32,
    activated: Activated<'_>,
    y: &mut [f32],
) {
    let norm = Norm::new(x, [scale, shift], eps, activated);
    by_rows(x, scale.len(), y, |x, y| dispatch(Affine { x, norm: &norm, y }));
}

/// As [`instance_norm`], rounded to 8 bits: replaces the rows of `y` from `first` on.
///
/// # Panics
/// Lengths do not fit, or `y` has fewer rows.
pub fn instance_norm_q8(
    x: &[f32],
    [scale, shift]: [&[f32]; 2],
    eps: f32,
    activated: Activated<'_>,
    (y, first): (&mut QuantisedRows, usize),
) {
    let width = scale.len();
    assert!(y.inputs() == width, "rows of another width");
    let norm = Norm::new(x, [scale, shift], eps, activated);
    let rows = x.len() / width;
    let to = y.writer(first, rows);
    for_each_task(rows.div_ceil(ROWS), num_threads(), Vec::new, |row: &mut Vec<f32>, task| {
        let own = task * ROWS..rows.min((task + 1) * ROWS);
        let x = &x[own.start * width..own.end * width];
        row.resize(width, 0.0);
        dispatch_int8(Rounded { x, norm: &norm, row, first: own.start, to: &to });
    });
}

/// What is done to each row.
struct Norm<'a> {
    mean: Vec<f32>,
    /// `(1 + scale) / sqrt(variance + eps)`.
    factor: Vec<f32>,
    shift: &'a [f32],
    activated: Activated<'a>,
}

impl<'a> Norm<'a> {
    fn new(x: &[f32], [scale, shift]: [&'a [f32]; 2], eps: f32, activated: Activated<'a>) -> Self {
        let width = scale.len();
        assert!(width > 0 && shift.len() == width && x.len().is_multiple_of(width));
        if let Activated::Snake(a, b) = activated {
            assert!(a.len() == width && b.len() == width);
        }
        let chunks = x.len().div_ceil(ROWS * width);
        let mut moments = vec![0f32; chunks * 2 * width];
        let out = SyncPtr(moments.as_mut_ptr());
        for_each_task(
            chunks,
            num_threads(),
            || (),
            |(), chunk| {
                let x = &x[chunk * ROWS * width..x.len().min((chunk + 1) * ROWS * width)];
                // SAFETY: each task has its own rows of `moments`.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(out.get().add(chunk * 2 * width), 2 * width) };
                dispatch(Moments { x, width, to });
            },
        );
        let (mut mean, mut factor) = (vec![0f32; width], vec![0f32; width]);
        let rows = x.len() / width;
        for channel in 0..width {
            // <https://doi.org/10.1080/00031305.1983.10483115>: the moments of two parts as those of the whole.
            let (mut count, mut whole, mut squares) = (0f64, 0f64, 0f64);
            for (chunk, moments) in moments.chunks_exact(2 * width).enumerate() {
                let own = ROWS.min(rows - chunk * ROWS) as f64;
                let delta = f64::from(moments[channel]) - whole;
                whole += delta * own / (count + own);
                squares += f64::from(moments[width + channel]) + delta * delta * count * own / (count + own);
                count += own;
            }
            let variance = (squares / count.max(1.0)) as f32;
            mean[channel] = whole as f32;
            factor[channel] = (1.0 + scale[channel]) / (variance + eps).sqrt();
        }
        Self { mean, factor, shift, activated }
    }
}

/// Mean and sum of squared distances from it of each channel.
struct Moments<'a> {
    x: &'a [f32],
    width: usize,
    to: &'a mut [f32], // [2, channels], zero
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Moments<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.width;
        let (mean, squares) = self.to.split_at_mut(width);
        let mut count = 0f32;
        // Rows that stay in the first-level cache are read twice.
        for x in self.x.chunks(NEAR_ROWS * width) {
            let own = (x.len() / width) as f32;
            let (of_all, share) = (own / (count + own), count * own / (count + own));
            count += own;
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let mut sum = I::splat(0.0);
                for row in x.chunks_exact(width) {
                    sum = I::add(sum, load_part::<I>(row.as_ptr().add(at), part, 0.0));
                }
                let near = I::mul(sum, I::splat(1.0 / own));
                let mut sum = I::splat(0.0);
                for row in x.chunks_exact(width) {
                    let x = I::sub(load_part::<I>(row.as_ptr().add(at), part, 0.0), near);
                    sum = I::fma(x, x, sum);
                }
                let (mean, squares) = (mean.as_mut_ptr().add(at), squares.as_mut_ptr().add(at));
                let before = load_part::<I>(mean, part, 0.0);
                let delta = I::sub(near, before);
                store_part::<I>(mean, I::fma(delta, I::splat(of_all), before), part);
                let sum = I::add(load_part::<I>(squares, part, 0.0), sum);
                store_part::<I>(squares, I::fma(I::mul(delta, delta), I::splat(share), sum), part);
            }
        }
    }
}

impl Norm<'_> {
    /// The elements `at..` of a row, at most [`LANES`].
    #[inline(always)]
    unsafe fn apply<I: Isa>(&self, x: &[f32], at: usize) -> I::V {
        let part = self.mean.len() - at;
        let mean = load_part::<I>(self.mean.as_ptr().add(at), part, 0.0);
        let factor = load_part::<I>(self.factor.as_ptr().add(at), part, 0.0);
        let shift = load_part::<I>(self.shift.as_ptr().add(at), part, 0.0);
        let x = I::sub(load_part::<I>(x.as_ptr().add(at), part, 0.0), mean);
        let x = I::fma(x, factor, shift);
        match self.activated {
            Activated::LeakyRelu(slope) => I::max(x, I::mul(x, I::splat(slope))),
            Activated::Snake(a, b) => {
                let sine = sine_up_to_sign::<I>(I::mul(x, load_part::<I>(a.as_ptr().add(at), part, 0.0)));
                I::fma(I::mul(sine, sine), load_part::<I>(b.as_ptr().add(at), part, 0.0), x)
            }
        }
    }
}

struct Affine<'a> {
    x: &'a [f32],
    norm: &'a Norm<'a>,
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Affine<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.norm.mean.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
            for at in (0..width).step_by(LANES) {
                store_part::<I>(y.as_mut_ptr().add(at), self.norm.apply::<I>(x, at), width - at);
            }
        }
    }
}

struct Rounded<'a> {
    x: &'a [f32],
    norm: &'a Norm<'a>,
    row: &'a mut [f32],
    first: usize,
    to: &'a RowWriter,
}

// SAFETY: `instance_norm_q8` checks the lengths and gives each task rows of its own.
unsafe impl Int8Kernel for Rounded<'_> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        let width = self.norm.mean.len();
        for (index, x) in self.x.chunks_exact(width).enumerate() {
            for at in (0..width).step_by(LANES) {
                store_part::<D>(self.row.as_mut_ptr().add(at), self.norm.apply::<D>(x, at), width - at);
            }
            self.to.put::<D>(self.first + index, self.row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    fn normalised(x: &[f32], width: usize, activated: Activated<'_>) -> Vec<f32> {
        let (scale, shift) = (values(width, 8), values(width, 9));
        let mut y = vec![f32::NAN; x.len()];
        instance_norm(x, [&scale, &shift], 1e-5, activated, &mut y);
        y
    }

    #[test]
    fn every_level_normalises_alike() {
        for (rows, width) in [(1, 3), (700, 37), (256, 16)] {
            let x: Vec<f32> = values(rows * width, 4).iter().map(|x| x * 3.0 + 2.0).collect();
            let (a, b) = (values(width, 5), values(width, 6));
            for activated in [Activated::LeakyRelu(0.2), Activated::Snake(&a, &b)] {
                check("instance norm", 1e-4, || normalised(&x, width, activated));
            }
        }
    }

    #[test]
    fn rows_at_8_bits_are_those_in_f32_within_half_a_level() {
        let (rows, width) = (700, 37);
        let x: Vec<f32> = values(rows * width, 4).iter().map(|x| x * 3.0 + 2.0).collect();
        let (a, b, scale, shift) = (values(width, 5), values(width, 6), values(width, 8), values(width, 9));
        for activated in [Activated::LeakyRelu(0.2), Activated::Snake(&a, &b)] {
            let mut rounded = QuantisedRows::zeros(rows + 3, width);
            instance_norm_q8(&x, [&scale, &shift], 1e-5, activated, (&mut rounded, 2));
            let (_, scales, _) = rounded.parts();
            for (row, exact) in normalised(&x, width, activated).chunks_exact(width).enumerate() {
                for (at, exact) in exact.iter().enumerate() {
                    let off = (f32::from(rounded.value(row + 2, at)) * scales[row + 2] - exact).abs();
                    assert!(off < 0.51 * scales[row + 2], "{row}: {off}");
                }
            }
            assert!(scales[1] == 0.0 && scales[rows + 2] == 0.0);
        }
    }

    #[test]
    fn channels_have_the_mean_and_the_deviation_asked_for() {
        let (rows, width) = (1000, 5);
        let x: Vec<f32> = values(rows * width, 4).iter().map(|x| x * 3.0 + 20.0).collect();
        let y = normalised(&x, width, Activated::LeakyRelu(1.0));
        let (scale, shift) = (values(width, 8), values(width, 9));
        for channel in 0..width {
            let column: Vec<f32> = y.iter().skip(channel).step_by(width).copied().collect();
            let mean = column.iter().sum::<f32>() / rows as f32;
            let variance = column.iter().map(|y| (y - mean) * (y - mean)).sum::<f32>() / rows as f32;
            assert!((mean - shift[channel]).abs() < 1e-4);
            assert!((variance.sqrt() - (1.0 + scale[channel])).abs() < 1e-3);
        }
    }
}
