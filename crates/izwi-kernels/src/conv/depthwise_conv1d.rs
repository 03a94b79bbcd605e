//! Depthwise convolution along rows, centred, zeros outside the rows.

use std::ops::Range;

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Rows of a task.
const BLOCK_ROWS: usize = 64;
/// Multiply-adds up to which one thread is faster than two.
const SPLIT_WORK: usize = 256 * 1024;

/// `y[row] = bias + Σ_t weight[t] * x[row + (t - taps / 2) * dilation]`, element by element: `x` and `y`
/// `[rows, channels]`, `weight` `[taps, channels]`, `bias` `[channels]`.
///
/// # Panics
/// Lengths do not fit.
pub fn depthwise_conv1d(x: &[f32], weight: &[f32], bias: &[f32], dilation: usize, y: &mut [f32]) {
    let channels = bias.len();
    if channels == 0 || x.is_empty() {
        return;
    }
    let (rows, taps) = (x.len() / channels, weight.len() / channels);
    assert!(
        x.len() == rows * channels && y.len() == x.len() && weight.len() == taps * channels && dilation > 0
    );
    let threads = if x.len() * taps <= SPLIT_WORK { 1 } else { num_threads() };
    let out = SyncPtr(y.as_mut_ptr());
    for_each_task(
        rows.div_ceil(BLOCK_ROWS),
        threads,
        || (),
        |(), index| {
            let block = index * BLOCK_ROWS..rows.min((index + 1) * BLOCK_ROWS);
            // SAFETY: each task has its own rows of `y`, whose length was checked.
            let y = unsafe { out.get().add(block.start * channels) };
            dispatch(Block { x, weight, bias, dilation, block, y });
        },
    );
}

/// Some rows; `y` is the first of them.
struct Block<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    dilation: usize,
    block: Range<usize>,
    y: *mut f32,
}

// SAFETY: `depthwise_conv1d` checks all lengths; each task has its own rows of `y`.
unsafe impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let channels = self.bias.len();
        let (rows, taps) = (self.x.len() / channels, self.weight.len() / channels);
        let reach = taps / 2 * self.dilation;
        for row in self.block.clone() {
            // Tap `t` reads row `row + t * dilation - reach`.
            let first = reach.saturating_sub(row).div_ceil(self.dilation);
            let end = taps.min((rows + reach - row).div_ceil(self.dilation));
            let y = self.y.add((row - self.block.start) * channels);
            let mut at = 0;
            while channels - at >= 4 * LANES {
                self.vectors::<I, 4>(row, first..end, at, y);
                at += 4 * LANES;
            }
            while at < channels {
                self.part::<I>(row, first..end, at, y);
                at += LANES;
            }
        }
    }
}

impl Block<'_> {
    /// What tap `first` reads of a channel, and the step to the next tap.
    #[inline(always)]
    unsafe fn reads(&self, row: usize, first: usize, channel: usize) -> (*const f32, usize) {
        let channels = self.bias.len();
        let reach = self.weight.len() / channels / 2 * self.dilation;
        let start = (row + first * self.dilation).saturating_sub(reach);
        (self.x.as_ptr().add(start * channels + channel), self.dilation * channels)
    }

    /// `C` vectors of channels from `channel` on.
    #[inline(always)]
    unsafe fn vectors<I: Isa, const C: usize>(
        &self,
        row: usize,
        taps: Range<usize>,
        channel: usize,
        y: *mut f32,
    ) {
        let channels = self.bias.len();
        let mut sums = [I::splat(0.0); C];
        for (vector, sum) in sums.iter_mut().enumerate() {
            *sum = I::load(self.bias.as_ptr().add(channel + vector * LANES));
        }
        if !taps.is_empty() {
            let (mut x, step) = self.reads(row, taps.start, channel);
            let mut weight = self.weight.as_ptr().add(taps.start * channels + channel);
            for _ in taps {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = I::fma(I::load(x.add(vector * LANES)), I::load(weight.add(vector * LANES)), *sum);
                }
                // The last step may lead outside the rows, where nothing is read.
                (x, weight) = (x.wrapping_add(step), weight.wrapping_add(channels));
            }
        }
        for (vector, sum) in sums.iter().enumerate() {
            I::store(y.add(channel + vector * LANES), *sum);
        }
    }

    /// Up to a vector of channels from `channel` on.
    #[inline(always)]
    unsafe fn part<I: Isa>(&self, row: usize, taps: Range<usize>, channel: usize, y: *mut f32) {
        let channels = self.bias.len();
        let count = (channels - channel).min(LANES);
        let mut sum = load_part::<I>(self.bias.as_ptr().add(channel), count, 0.0);
        if !taps.is_empty() {
            let (mut x, step) = self.reads(row, taps.start, channel);
            let mut weight = self.weight.as_ptr().add(taps.start * channels + channel);
            for _ in taps {
                let (a, b) = (load_part::<I>(x, count, 0.0), load_part::<I>(weight, count, 0.0));
                sum = I::fma(a, b, sum);
                (x, weight) = (x.wrapping_add(step), weight.wrapping_add(channels));
            }
        }
        store_part::<I>(y.add(channel), sum, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_convolves_alike_and_equals_the_formula() {
        for (rows, channels, taps, dilation) in [(1, 5, 7, 1), (9, 64, 7, 2), (20, 131, 5, 3), (3, 16, 1, 1)]
        {
            let (x, weight) = (values(rows * channels, 1), values(taps * channels, 2));
            let bias = values(channels, 3);
            let run = || {
                let mut y = vec![f32::NAN; rows * channels];
                depthwise_conv1d(&x, &weight, &bias, dilation, &mut y);
                y
            };
            check("depthwise", 1e-5, run);
            for (index, y) in run().into_iter().enumerate() {
                let (row, channel) = (index / channels, index % channels);
                let mut sum = bias[channel];
                for tap in 0..taps {
                    let at = (row + tap * dilation).checked_sub(taps / 2 * dilation);
                    if let Some(at) = at.filter(|&at| at < rows) {
                        sum += x[at * channels + channel] * weight[tap * channels + channel];
                    }
                }
                assert!((y - sum).abs() < 1e-5, "{rows} {channels} {taps} {dilation} [{index}]: {y} {sum}");
            }
        }
    }
}
