//! Causal attention over a sliding window of positions, the older ones in a ring buffer, the new ones alongside it.

use crate::arch::{Isa, Kernel, LANES, dispatch};
use crate::attention::paged::{dots, mix};
use crate::elementwise::{scale_in_place, softmax};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Heads and window of a call.
#[derive(Debug, Clone, Copy)]
pub struct WindowShape {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values, each for as many heads of the queries.
    pub kv_heads: usize,
    /// Most positions that a row attends to: they end with the last of its step.
    pub window: usize,
    /// Positions that enter the window together, from the first of the sequence on; at most `window`.
    pub step: usize,
}

impl WindowShape {
    /// Positions that the row at `position` attends to.
    pub fn of(&self, position: usize) -> std::ops::Range<usize> {
        let end = (position / self.step + 1) * self.step;
        end.saturating_sub(self.window)..position + 1
    }
}

/// Consecutive new positions of one sequence, and the keys and values that they attend to.
#[derive(Debug)]
pub struct WindowRows<'a> {
    /// Rows of the sequence in `q`, as many as `new_keys` has.
    pub rows: usize,
    /// Position of the first of them.
    pub start: usize,
    /// Keys `[slots, kv_width]` of the positions before `start`: position `p` is in slot `p % slots`.
    pub ring_keys: &'a [f32],
    /// Values `[slots, kv_width]`, as the keys.
    pub ring_values: &'a [f32],
    /// Keys of the new positions `[rows, kv_width]`.
    pub new_keys: &'a [f32],
    /// Values of the new positions `[rows, kv_width]`.
    pub new_values: &'a [f32],
}

/// Attention of every row over its window: `q` and `y` `[rows, heads * head_dim]`, one sequence after another.
///
/// # Panics
/// Lengths do not fit, or a ring holds too few positions.
pub fn sliding_window_attention(q: &[f32], sequences: &[WindowRows<'_>], shape: WindowShape, y: &mut [f32]) {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows).sum();
    let width = q.len() / rows.max(1);
    let WindowShape { heads, kv_heads, window, step } = shape;
    assert!(q.len() == rows * width && y.len() == q.len() && width.is_multiple_of(heads.max(1)));
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads) && step > 0 && window >= step);
    let kv_width = width / heads.max(1) * kv_heads;
    let mut tasks = Vec::with_capacity(rows);
    for sequence in sequences {
        let slots = sequence.ring_keys.len() / kv_width.max(1);
        assert!(slots >= sequence.start.min(window - 1) && sequence.ring_keys.len() == slots * kv_width);
        assert!(sequence.ring_values.len() == sequence.ring_keys.len());
        assert!(
            [sequence.new_keys, sequence.new_values].iter().all(|new| new.len() == sequence.rows * kv_width)
        );
        tasks.extend((0..sequence.rows).map(|row| (sequence, row)));
    }
    let out = SyncPtr(y.as_mut_ptr());
    let seen = |&(sequence, row): &(&WindowRows<'_>, usize)| shape.of(sequence.start + row).len();
    let work: usize = tasks.iter().map(seen).sum::<usize>() * width;
    let threads = if work < 256 * 1024 { 1 } else { num_threads() };
    for_each_task(rows, threads, Vec::new, |scores: &mut Vec<f32>, index| {
        let (sequence, row) = tasks[index];
        let positions = shape.of(sequence.start + row);
        let q = &q[index * width..][..width];
        // SAFETY: each task has its own row of `y`, whose length was checked.
        let y = unsafe { out.get().add(index * width) };
        dispatch(Row { q, shape, runs: sequence.runs(positions, kv_width), scores, y });
    });
}

/// Keys, values and the number of positions that lie one after another.
type Run = (*const f32, *const f32, usize);

impl WindowRows<'_> {
    /// Where `positions` lie, in order: the ring up to its end, the ring from its start, the new ones.
    fn runs(&self, positions: std::ops::Range<usize>, width: usize) -> [Run; 3] {
        let slots = (self.ring_keys.len() / width.max(1)).max(1);
        let old = self.start.saturating_sub(positions.start);
        let first = positions.start % slots;
        let until_end = old.min(slots - first);
        let run = |keys: &[f32], values: &[f32], at: usize, count: usize| {
            if count == 0 {
                return (std::ptr::null(), std::ptr::null(), 0);
            }
            let part = at * width..(at + count) * width;
            (keys[part.clone()].as_ptr(), values[part].as_ptr(), count)
        };
        let new = positions.start.max(self.start) - self.start;
        [
            run(self.ring_keys, self.ring_values, first, until_end),
            run(self.ring_keys, self.ring_values, 0, old - until_end),
            run(self.new_keys, self.new_values, new, positions.len() - old),
        ]
    }
}

/// One row, all heads.
struct Row<'a> {
    q: &'a [f32],
    shape: WindowShape,
    runs: [Run; 3],
    scores: &'a mut Vec<f32>,
    y: *mut f32,
}

// SAFETY: `sliding_window_attention` checks all lengths, `runs` takes its pointers from slices of the positions that
// are read, and each task has its own row of `y`.
unsafe impl Kernel for Row<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let WindowShape { heads, kv_heads, .. } = self.shape;
        let (head_dim, group) = (self.q.len() / heads, heads / kv_heads);
        let width = head_dim * kv_heads;
        let [ended, begun, new] = self.runs;
        let positions = ended.2 + begun.2 + new.2;
        let stride = positions.next_multiple_of(LANES);
        self.scores.resize(self.scores.len().max(heads * stride), 0.0);
        let scores = self.scores.as_mut_ptr();
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut position = 0;
        for (keys, _, count) in self.runs {
            for row in 0..count {
                for head in 0..heads {
                    let q = (self.q.as_ptr().add(head * head_dim), head_dim);
                    let to = (scores.add(head * stride + position), stride);
                    let key = keys.add(row * width + head / group * head_dim);
                    dots::<I, f32, 1>(q, key, scale, to);
                }
                position += 1;
            }
        }
        for head in 0..heads {
            let mut weights = scores.add(head * stride);
            let factor = softmax::<I>(weights, positions);
            let y = self.y.add(head * head_dim);
            std::slice::from_raw_parts_mut(y, head_dim).fill(0.0);
            for (_, values, count) in self.runs {
                if count > 0 {
                    mix::<I, f32, 1>(
                        (weights.cast_const(), stride),
                        count,
                        (values.add(head / group * head_dim), width),
                        y,
                        head_dim,
                    );
                }
                weights = weights.add(count);
            }
            scale_in_place::<I>(y, head_dim, factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_attends_alike() {
        for (head_dim, start, rows, kv_heads) in [(5, 0, 7, 2), (16, 9, 3, 2), (70, 4, 9, 2), (16, 7, 9, 1)] {
            let (width, window) = (kv_heads * head_dim, 6);
            let q = values(rows * 2 * head_dim, 1);
            let [new_keys, new_values] = [2, 3].map(|seed| values(rows * width, seed));
            let [ring_keys, ring_values] = [4, 5].map(|seed| values((window - 1) * width, seed));
            let sequence = WindowRows {
                rows,
                start,
                ring_keys: &ring_keys,
                ring_values: &ring_values,
                new_keys: &new_keys,
                new_values: &new_values,
            };
            check("windowed", 1e-5, || {
                let mut y = vec![0.0; q.len()];
                let shape = WindowShape { heads: 2, kv_heads, window, step: 2 };
                sliding_window_attention(&q, std::slice::from_ref(&sequence), shape, &mut y);
                y
            });
        }
    }
}
