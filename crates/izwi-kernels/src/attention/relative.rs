//! Attention with relative positional embeddings (Transformer-XL), within each of several sequences.

use std::ops::Range;

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::attention::dense::{HeadKv, product};
use crate::elementwise::{scale_in_place, softmax};
use crate::linear::panels::{Block, PANEL, Panels, Strides};
use crate::threads::num_threads;
use crate::threads::{SyncPtr, for_each_task};

/// Query rows whose scores are held at once.
const TILE_ROWS: usize = 24;
/// Query rows of one parallel task.
const TASK_ROWS: usize = 4 * TILE_ROWS;

/// Rows of several sequences and the relative positional embeddings.
#[derive(Debug)]
pub struct RelativeAttention<'a> {
    /// Queries `[rows, heads * head_dim]`.
    pub q: &'a [f32],
    /// Keys `[rows, heads * head_dim]`.
    pub k: &'a [f32],
    /// Values `[rows, heads * head_dim]`.
    pub v: &'a [f32],
    /// `[2 * longest - 1, heads * head_dim]`: row `r` is for a query `longest - 1 - r` rows after the key.
    pub position_embeddings: &'a [f32],
    /// Added to queries before the product with keys, `[heads * head_dim]`.
    pub content_bias: &'a [f32],
    /// Added to queries before the product with embeddings, `[heads * head_dim]`.
    pub position_bias: &'a [f32],
    /// Number of heads.
    pub heads: usize,
}

impl RelativeAttention<'_> {
    /// Attention of each row over its span: `y` `[rows, heads * head_dim]`; rows outside spans are not written.
    ///
    /// # Panics
    /// Lengths do not fit, or spans overlap or exceed the embeddings.
    pub fn attend(&self, spans: &[Range<usize>], y: &mut [f32]) {
        use rayon::prelude::*;
        let (width, heads) = (self.content_bias.len(), self.heads);
        assert!(heads > 0 && width.is_multiple_of(heads) && width > 0 && self.position_bias.len() == width);
        let rows = self.q.len() / width;
        assert!([self.q, self.k, self.v].iter().all(|x| x.len() == rows * width) && y.len() == rows * width);
        let distances = self.position_embeddings.len() / width;
        assert!(distances % 2 == 1 && self.position_embeddings.len() == distances * width);
        let longest = distances / 2 + 1;
        assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(spans.iter().all(|span| span.len() <= longest && span.end <= rows));
        let head_dim = width / heads;
        let strides = Strides { input: 1, output: width };
        let pack = |head: usize| {
            Panels::pack(&self.position_embeddings[head * head_dim..], strides, head_dim, distances)
        };
        let packed: Vec<Panels<f32>> = (0..heads).into_par_iter().map(pack).collect();
        let pairs: Vec<_> =
            (0..spans.len()).flat_map(|span| (0..heads).map(move |head| (span, head))).collect();
        let pack = |&(span, head): &(usize, usize)| {
            let part = spans[span].start * width..spans[span].end * width;
            HeadKv::pack(&self.k[part.clone()], &self.v[part], width, head_dim, head)
        };
        let filled = |&(span, _): &(usize, usize)| !spans[span].is_empty();
        let pairs: Vec<_> = pairs.into_iter().filter(filled).collect();
        let kv: Vec<HeadKv<f32>> = pairs.par_iter().map(pack).collect();
        let mut tasks = Vec::new();
        for (pair, &(span, _)) in pairs.iter().enumerate() {
            tasks.extend((0..spans[span].len()).step_by(TASK_ROWS).map(|first| (pair, first)));
        }
        let work: usize = spans.iter().map(|span| span.len() * span.len() * width).sum();
        let threads = if work < 256 * 1024 { 1 } else { num_threads() };
        let out = SyncPtr(y.as_mut_ptr());
        for_each_task(tasks.len(), threads, Scratch::default, |scratch, task| {
            let (pair, first) = tasks[task];
            let (span, head) = pairs[pair];
            let end = spans[span].len().min(first + TASK_ROWS);
            let start = spans[span].start * width + head * head_dim;
            // SAFETY: each task has its own rows and head of `y`, whose length was checked.
            let y = unsafe { out.get().add(start) };
            let (kv, distances) = (&kv[pair], &packed[head]);
            dispatch(Rows {
                of: self,
                head,
                q: &self.q[start..],
                rows: first..end,
                kv,
                distances,
                scratch,
                y,
            });
        });
    }
}

#[derive(Default)]
struct Scratch {
    content: Vec<f32>,
    place: Vec<f32>,
    scores: Vec<f32>,
    by_distance: Vec<f32>,
}

/// Some rows of one sequence over one head; `q` and `y` begin with the head in the sequence's first row.
struct Rows<'a> {
    of: &'a RelativeAttention<'a>,
    head: usize,
    q: &'a [f32],
    rows: Range<usize>,
    kv: &'a HeadKv<f32>,
    distances: &'a Panels<f32>,
    scratch: &'a mut Scratch,
    y: *mut f32,
}

// SAFETY: `attend` checks the lengths of all slices; each task has its own rows and head of `y`.
unsafe impl Kernel for Rows<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        for first in self.rows.clone().step_by(TILE_ROWS) {
            self.tile::<I>(first..self.rows.end.min(first + TILE_ROWS));
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    unsafe fn tile<I: Isa>(&mut self, rows: Range<usize>) {
        let width = self.of.content_bias.len();
        let head_dim = width / self.of.heads;
        let positions = self.kv.positions();
        let stride = positions.next_multiple_of(PANEL);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let Scratch { content, place, scores, by_distance } = &mut *self.scratch;
        for (queries, bias) in [(&mut *content, self.of.content_bias), (&mut *place, self.of.position_bias)] {
            let bias = &bias[self.head * head_dim..][..head_dim];
            queries.clear();
            for row in rows.clone() {
                let q = &self.q[row * width..][..head_dim];
                for at in 0..head_dim {
                    queries.push((q[at] + bias[at]) * scale);
                }
            }
        }
        scores.resize(scores.len().max(rows.len() * stride), 0.0);
        let scores = scores.as_mut_ptr();
        product::<I, f32>((content.as_ptr(), head_dim), rows.len(), self.kv.keys(), (scores, stride));
        // Row `i` meets key `j` at distance column `middle - i + j`.
        let middle = self.distances.outputs() / 2;
        let columns = middle + 1 - rows.end..middle - rows.start + positions;
        let wide = self.distances.count() * PANEL;
        by_distance.resize(by_distance.len().max(rows.len() * wide), 0.0);
        let by_distance = by_distance.as_mut_ptr();
        Block {
            x: place.as_ptr(),
            x_stride: head_dim,
            rows: rows.len(),
            weights: self.distances,
            panels: columns.start / PANEL..columns.end.div_ceil(PANEL),
            bias: None,
            y: by_distance,
            y_stride: wide,
        }
        .run::<I>();
        let mut factors = [0f32; TILE_ROWS];
        for (index, row) in rows.clone().enumerate() {
            let (scores, more) = (scores.add(index * stride), by_distance.add(index * wide + middle - row));
            for at in (0..positions).step_by(LANES) {
                let part = positions - at;
                let more = load_part::<I>(more.add(at), part, 0.0);
                store_part::<I>(
                    scores.add(at),
                    I::add(load_part::<I>(scores.add(at), part, 0.0), more),
                    part,
                );
            }
            factors[index] = softmax::<I>(scores, positions);
        }
        let y = self.y.add(rows.start * width);
        product::<I, f32>((scores.cast_const(), stride), rows.len(), self.kv.values(), (y, width));
        for (index, &factor) in factors[..rows.len()].iter().enumerate() {
            scale_in_place::<I>(y.add(index * width), head_dim, factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_attends_by_distance_alike() {
        for (head_dim, spans) in [(5, vec![0..3, 4..9]), (16, vec![0..19, 19..40]), (70, vec![2..3, 3..11])] {
            let (width, rows) = (2 * head_dim, 40);
            let longest = spans.iter().map(Range::len).max().unwrap();
            let [q, k, v] = [1, 2, 3].map(|seed| values(rows * width, seed));
            let distances = values((2 * longest - 1) * width, 4);
            let [content, place] = [5, 6].map(|seed| values(width, seed));
            check("relative", 1e-5, || {
                let mut y = vec![0.0; q.len()];
                RelativeAttention {
                    q: &q,
                    k: &k,
                    v: &v,
                    position_embeddings: &distances,
                    content_bias: &content,
                    position_bias: &place,
                    heads: 2,
                }
                .attend(&spans, &mut y);
                y
            });
        }
    }
}
