//! Instance norm: each channel is normalised over the rows of one sequence, then scaled, shifted and activated.

use super::by_rows;
use super::snake::sine_up_to_sign;
use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Rows of one partial sum. Fixed, so that a sequence has the same bits for any number of threads.
const ROWS: usize = 256;

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
    let width = scale.len();
    assert!(width > 0 && shift.len() == width && x.len() == y.len() && x.len().is_multiple_of(width));
    if let Activated::Snake(a, b) = activated {
        assert!(a.len() == width && b.len() == width);
    }
    if x.is_empty() {
        return;
    }
    let rows = (x.len() / width) as f64;
    let mean: Vec<f32> =
        sums(x, &vec![0.0; width], false).into_iter().map(|sum| (sum / rows) as f32).collect();
    let squares = sums(x, &mean, true);
    let deviations = squares.iter().map(|sum| ((sum / rows) as f32 + eps).sqrt());
    let factor: Vec<f32> =
        scale.iter().zip(deviations).map(|(scale, deviation)| (1.0 + scale) / deviation).collect();
    let affine = [&mean[..], &factor, shift];
    by_rows(x, width, y, |x, y| dispatch(Affine { x, affine, activated, y }));
}

/// The sum of each channel's values less `from`, or of the squares of that, in f64 over partial sums in f32.
fn sums(x: &[f32], from: &[f32], squared: bool) -> Vec<f64> {
    let width = from.len();
    let chunks = x.len().div_ceil(ROWS * width);
    let mut parts = vec![0f32; chunks * width];
    let out = SyncPtr(parts.as_mut_ptr());
    for_each_task(
        chunks,
        num_threads(),
        || (),
        |(), chunk| {
            let x = &x[chunk * ROWS * width..x.len().min((chunk + 1) * ROWS * width)];
            // SAFETY: each task has its own row of `parts`.
            let sums = unsafe { std::slice::from_raw_parts_mut(out.get().add(chunk * width), width) };
            dispatch(Sums { x, from, squared, sums });
        },
    );
    let mut total = vec![0f64; width];
    for part in parts.chunks_exact(width) {
        total.iter_mut().zip(part).for_each(|(total, part)| *total += f64::from(*part));
    }
    total
}

struct Sums<'a> {
    x: &'a [f32],
    from: &'a [f32],
    squared: bool,
    sums: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Sums<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.from.len();
        for at in (0..width).step_by(LANES) {
            let part = width - at;
            let from = load_part::<I>(self.from.as_ptr().add(at), part, 0.0);
            let mut sum = I::splat(0.0);
            for row in self.x.chunks_exact(width) {
                let x = I::sub(load_part::<I>(row.as_ptr().add(at), part, 0.0), from);
                sum = if self.squared { I::fma(x, x, sum) } else { I::add(sum, x) };
            }
            store_part::<I>(self.sums.as_mut_ptr().add(at), sum, part);
        }
    }
}

struct Affine<'a> {
    x: &'a [f32],
    /// Mean, factor and shift of each channel.
    affine: [&'a [f32]; 3],
    activated: Activated<'a>,
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Affine<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.affine[0].len();
        for (x, y) in self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width)) {
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let mean = load_part::<I>(self.affine[0].as_ptr().add(at), part, 0.0);
                let factor = load_part::<I>(self.affine[1].as_ptr().add(at), part, 0.0);
                let shift = load_part::<I>(self.affine[2].as_ptr().add(at), part, 0.0);
                let x = I::sub(load_part::<I>(x.as_ptr().add(at), part, 0.0), mean);
                let x = I::fma(x, factor, shift);
                let activated = match self.activated {
                    Activated::LeakyRelu(slope) => I::max(x, I::mul(x, I::splat(slope))),
                    Activated::Snake(a, b) => {
                        let sine =
                            sine_up_to_sign::<I>(I::mul(x, load_part::<I>(a.as_ptr().add(at), part, 0.0)));
                        let b = load_part::<I>(b.as_ptr().add(at), part, 0.0);
                        I::fma(I::mul(sine, sine), b, x)
                    }
                };
                store_part::<I>(y.as_mut_ptr().add(at), activated, part);
            }
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
