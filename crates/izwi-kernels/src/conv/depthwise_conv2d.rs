//! Depthwise convolution of a plane with 3 x 3 kernels and stride 2.

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Taps along each side.
pub const KERNEL_SIDE: usize = 3;
/// Multiply-adds up to which one thread is faster than two.
const SPLIT_WORK: usize = 256 * 1024;

/// The operands of a depthwise convolution.
#[derive(Debug)]
pub struct DepthwiseConv2d<'a> {
    /// The plane `[rows, columns, channels]`, padded with zeros.
    pub x: &'a [f32],
    /// Rows and columns of it.
    pub size: [usize; 2],
    /// `[3, 3, channels]`.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: &'a [f32],
}

impl DepthwiseConv2d<'_> {
    /// `y[row, column] = bias + Σ_ij weight[i, j] * x[2 * row + shift + i - 1, 2 * column + j - 1]`, channel by channel:
    /// `y` `[rows, ceil(columns / 2), channels]`.
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn convolve(&self, shift: usize, y: &mut [f32]) {
        let ([rows, columns], channels) = (self.size, self.bias.len());
        assert!(
            self.x.len() == rows * columns * channels
                && self.weight.len() == KERNEL_SIDE * KERNEL_SIDE * channels
        );
        let width = columns.div_ceil(2) * channels;
        assert!(width > 0 && y.len().is_multiple_of(width));
        let threads = if y.len() * KERNEL_SIDE * KERNEL_SIDE < SPLIT_WORK { 1 } else { num_threads() };
        let out = SyncPtr(y.as_mut_ptr());
        for_each_task(
            y.len() / width,
            threads,
            || (),
            |(), row| {
                // SAFETY: each task has its own row of `y`, whose length was checked.
                let y = unsafe { out.get().add(row * width) };
                dispatch(Row { of: self, middle: 2 * row + shift, y });
            },
        );
    }
}

/// One row of the output, around row `middle` of the plane.
struct Row<'a> {
    of: &'a DepthwiseConv2d<'a>,
    middle: usize,
    y: *mut f32,
}

// SAFETY: `convolve` checks all lengths; each task has its own row of `y`.
unsafe impl Kernel for Row<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let DepthwiseConv2d { x, size: [rows, columns], weight, bias } = *self.of;
        let channels = bias.len();
        for column in 0..columns.div_ceil(2) {
            let y = self.y.add(column * channels);
            for at in (0..channels).step_by(LANES) {
                let part = channels - at;
                let mut sum = load_part::<I>(bias.as_ptr().add(at), part, 0.0);
                for tap in 0..KERNEL_SIDE * KERNEL_SIDE {
                    // Plus one, so that none is below zero.
                    let (row, column) = (self.middle + tap / KERNEL_SIDE, 2 * column + tap % KERNEL_SIDE);
                    if row == 0 || row > rows || column == 0 || column > columns {
                        continue;
                    }
                    let x = x.as_ptr().add(((row - 1) * columns + column - 1) * channels + at);
                    let weight = load_part::<I>(weight.as_ptr().add(tap * channels + at), part, 0.0);
                    sum = I::fma(load_part::<I>(x, part, 0.0), weight, sum);
                }
                store_part::<I>(y.add(at), sum, part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_convolves_planes_alike() {
        for (size, channels, shift) in [([1, 1], 3, 0), ([5, 4], 16, 1), ([4, 7], 37, 0)] {
            let x = values(size[0] * size[1] * channels, 1);
            let (weight, bias) = (values(9 * channels, 2), values(channels, 3));
            let plane = DepthwiseConv2d { x: &x, size, weight: &weight, bias: &bias };
            check("plane", 1e-5, || {
                let mut y = vec![f32::NAN; size[0].div_ceil(2) * size[1].div_ceil(2) * channels];
                plane.convolve(shift, &mut y);
                y
            });
        }
    }
}
