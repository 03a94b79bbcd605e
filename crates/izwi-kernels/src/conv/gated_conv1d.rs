//! Gated causal depthwise convolution over a few rows of several sequences (the short convolution of LFM2).

use std::ops::Range;

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Rows of a task.
const BLOCK_ROWS: usize = 64;
/// Elements up to which one thread is faster than two.
const SPLIT_WORK: usize = 64 * 1024;

/// Rows of several sequences, one after another, and their conv states.
#[derive(Debug)]
pub struct GatedConv1d<'a> {
    /// `[rows, 3 * channels]`: factor, gate and input of each channel.
    pub x: &'a [f32],
    /// Conv states: products of factor and input of the rows before each sequence, oldest first: `[sequences, taps - 1, channels]`.
    pub states: &'a [f32],
    /// `[taps, channels]`, the tap of the newest row last.
    pub weight: &'a [f32],
    /// Number of channels.
    pub channels: usize,
}

impl GatedConv1d<'_> {
    fn taps(&self) -> usize {
        self.weight.len() / self.channels
    }

    /// `y = gate * Σ_t weight[t] * z[row + t - (taps - 1)]` with `z = factor * input`, `[rows, channels]`, for
    /// sequences of `rows[i]` rows; `states` receives the conv states after the last
    /// rows, in the shape of [`Self::states`].
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn convolve(&self, rows: &[usize], y: &mut [f32], states: &mut [f32]) {
        let (channels, total) = (self.channels, rows.iter().sum::<usize>());
        assert!(channels > 0 && self.weight.len() == self.taps() * channels && self.taps() > 0);
        assert!(self.x.len() == total * 3 * channels && y.len() == total * channels);
        let reach = self.taps() - 1;
        assert!(self.states.len() == rows.len() * reach * channels && states.len() == self.states.len());
        let mut tasks = Vec::new();
        let mut start = 0;
        for (sequence, &count) in rows.iter().enumerate() {
            let blocks = (0..count).step_by(BLOCK_ROWS);
            tasks.extend(blocks.map(|first| (sequence, start, first..count.min(first + BLOCK_ROWS))));
            self.keep(sequence, start..start + count, states);
            start += count;
        }
        let threads = if y.len() < SPLIT_WORK { 1 } else { num_threads() };
        let out = SyncPtr(y.as_mut_ptr());
        for_each_task(
            tasks.len(),
            threads,
            || (),
            |(), index| {
                let (sequence, start, block) = tasks[index].clone();
                // SAFETY: each task has its own rows of `y`, whose length was checked.
                let y = unsafe { out.get().add((start + block.start) * channels) };
                dispatch(Block { of: self, sequence, start, block, y });
            },
        );
    }

    /// The products of a sequence's last rows, which lie in `span`.
    fn keep(&self, sequence: usize, span: Range<usize>, states: &mut [f32]) {
        let (channels, reach) = (self.channels, self.taps() - 1);
        let part = sequence * reach * channels..(sequence + 1) * reach * channels;
        let old = &self.states[part.clone()];
        for (at, state) in states[part].chunks_exact_mut(channels).enumerate() {
            match (at + span.len()).checked_sub(reach) {
                Some(row) => {
                    let x = &self.x[(span.start + row) * 3 * channels..][..3 * channels];
                    let products = x[..channels].iter().zip(&x[2 * channels..]);
                    state
                        .iter_mut()
                        .zip(products)
                        .for_each(|(state, (factor, input))| *state = factor * input);
                }
                None => state.copy_from_slice(&old[(at + span.len()) * channels..][..channels]),
            }
        }
    }
}

/// Some rows of one sequence, which starts at row `start`; `y` is the first of them.
struct Block<'a> {
    of: &'a GatedConv1d<'a>,
    sequence: usize,
    start: usize,
    block: Range<usize>,
    y: *mut f32,
}

// SAFETY: `convolve` checks all lengths; each task has its own rows of `y`.
unsafe impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (channels, taps) = (self.of.channels, self.of.taps());
        let reach = taps - 1;
        let state = self.of.states.as_ptr().add(self.sequence * reach * channels);
        let first = self.of.x.as_ptr().add(self.start * 3 * channels);
        for row in self.block.clone() {
            let gate = first.add(row * 3 * channels + channels);
            let y = self.y.add((row - self.block.start) * channels);
            for at in (0..channels).step_by(LANES) {
                let part = channels - at;
                let mut sum = I::splat(0.0);
                for tap in 0..taps {
                    let product = if row + tap < reach {
                        load_part::<I>(state.add((row + tap) * channels + at), part, 0.0)
                    } else {
                        let x = first.add((row + tap - reach) * 3 * channels + at);
                        let factor = load_part::<I>(x, part, 0.0);
                        I::mul(factor, load_part::<I>(x.add(2 * channels), part, 0.0))
                    };
                    let weight = load_part::<I>(self.of.weight.as_ptr().add(tap * channels + at), part, 0.0);
                    sum = I::fma(product, weight, sum);
                }
                store_part::<I>(y.add(at), I::mul(load_part::<I>(gate.add(at), part, 0.0), sum), part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_gates_and_convolves_alike() {
        for (channels, taps, rows) in [(5, 3, vec![1, 4]), (16, 1, vec![3]), (70, 4, vec![2, 1, 90])] {
            let total: usize = rows.iter().sum();
            let x = values(total * 3 * channels, 1);
            let states = values(rows.len() * (taps - 1) * channels, 2);
            let weight = values(taps * channels, 3);
            check("short convolution", 1e-6, || {
                let mut y = vec![f32::NAN; total * channels];
                let mut kept = vec![f32::NAN; states.len()];
                let gated = GatedConv1d { x: &x, states: &states, weight: &weight, channels };
                gated.convolve(&rows, &mut y, &mut kept);
                y.extend(kept);
                y
            });
        }
    }
}
