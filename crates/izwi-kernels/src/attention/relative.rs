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
/// Spans whose keys and values are packed at once.
const GROUP: usize = 64;

/// Consecutive queries, and the keys that they attend to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelativeSpan {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Rows of the keys and values.
    pub keys: Range<usize>,
    /// Which of the keys is at the place of the first query.
    pub offset: usize,
    /// How many keys before and after its own place a query attends to at most.
    pub reach: [usize; 2],
}

impl RelativeSpan {
    /// Rows that attend to one another.
    pub fn whole(rows: Range<usize>) -> Self {
        Self { queries: rows.clone(), keys: rows, offset: 0, reach: [usize::MAX; 2] }
    }

    /// The rows that attend to one another, if it is that.
    pub fn as_whole(&self) -> Option<Range<usize>> {
        (*self == Self::whole(self.queries.clone())).then(|| self.queries.clone())
    }

    /// Whether it lies in `rows` queries and `keys` keys, has at most `longest` keys, and queries at places of its keys.
    pub fn fits(&self, rows: usize, keys: usize, longest: usize) -> bool {
        self.queries.start <= self.queries.end
            && self.queries.end <= rows
            && self.keys.start <= self.keys.end
            && self.keys.end <= keys
            && self.keys.len() <= longest
            && self.offset.checked_add(self.queries.len()).is_some_and(|end| end <= self.keys.len())
    }
}

/// Rows of several sequences and the relative positional embeddings.
#[derive(Debug)]
pub struct RelativeAttention<'a> {
    /// Queries `[rows, heads * head_dim]`.
    pub q: &'a [f32],
    /// Keys `[key rows, heads * head_dim]`.
    pub k: &'a [f32],
    /// Values `[key rows, heads * head_dim]`.
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
    /// Attention of the queries of each span over its keys: `y` `[rows, heads * head_dim]`; rows outside spans are not written.
    ///
    /// # Panics
    /// Lengths do not fit, or queries of spans overlap, or spans exceed the embeddings.
    pub fn attend(&self, spans: &[RelativeSpan], y: &mut [f32]) {
        use rayon::prelude::*;
        let (width, heads) = (self.content_bias.len(), self.heads);
        assert!(heads > 0 && width.is_multiple_of(heads) && width > 0 && self.position_bias.len() == width);
        let rows = self.q.len() / width;
        let keys = self.k.len() / width;
        assert!(self.q.len() == rows * width && y.len() == rows * width);
        assert!(self.k.len() == keys * width && self.v.len() == keys * width);
        let distances = self.position_embeddings.len() / width;
        assert!(distances % 2 == 1 && self.position_embeddings.len() == distances * width);
        let longest = distances / 2 + 1;
        assert!(spans.windows(2).all(|pair| pair[0].queries.end <= pair[1].queries.start));
        assert!(spans.iter().all(|span| span.fits(rows, keys, longest)));
        let head_dim = width / heads;
        let strides = Strides { input: 1, output: width };
        let pack = |head: usize| {
            Panels::pack(&self.position_embeddings[head * head_dim..], strides, head_dim, distances)
        };
        let packed: Vec<Panels<f32>> = (0..heads).into_par_iter().map(pack).collect();
        spans.chunks(GROUP).for_each(|spans| self.attend_group(spans, &packed, y));
    }

    fn attend_group(&self, spans: &[RelativeSpan], packed: &[Panels<f32>], y: &mut [f32]) {
        use rayon::prelude::*;
        let (width, heads) = (self.content_bias.len(), self.heads);
        let head_dim = width / heads;
        let pairs: Vec<_> =
            (0..spans.len()).flat_map(|span| (0..heads).map(move |head| (span, head))).collect();
        let pack = |&(span, head): &(usize, usize)| {
            let keys = &spans[span].keys;
            let part = keys.start * width..keys.end * width;
            HeadKv::pack(&self.k[part.clone()], &self.v[part], width, head_dim, head)
        };
        let filled = |&(span, _): &(usize, usize)| !spans[span].queries.is_empty();
        let pairs: Vec<_> = pairs.into_iter().filter(filled).collect();
        let kv: Vec<HeadKv<f32>> = pairs.par_iter().map(pack).collect();
        let mut tasks = Vec::new();
        for (pair, &(span, _)) in pairs.iter().enumerate() {
            tasks.extend((0..spans[span].queries.len()).step_by(TASK_ROWS).map(|first| (pair, first)));
        }
        let work: usize = spans.iter().map(|span| span.queries.len() * span.keys.len() * width).sum();
        let threads = if work < 256 * 1024 { 1 } else { num_threads() };
        let out = SyncPtr(y.as_mut_ptr());
        for_each_task(tasks.len(), threads, Scratch::default, |scratch, task| {
            let (pair, first) = tasks[task];
            let (span, head) = pairs[pair];
            let span = &spans[span];
            let end = span.queries.len().min(first + TASK_ROWS);
            let start = span.queries.start * width + head * head_dim;
            // SAFETY: each task has its own rows and head of `y`, whose length was checked.
            let y = unsafe { out.get().add(start) };
            let (kv, distances) = (&kv[pair], &packed[head]);
            dispatch(Rows {
                of: self,
                head,
                q: &self.q[start..],
                rows: first..end,
                offset: span.offset,
                reach: span.reach,
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

/// Some rows of one span over one head; `q` and `y` begin with the head in the span's first query.
struct Rows<'a> {
    of: &'a RelativeAttention<'a>,
    head: usize,
    q: &'a [f32],
    rows: Range<usize>,
    offset: usize,
    reach: [usize; 2],
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
        // Row `i` meets key `j` at distance column `middle - i + j`; the span's first row is `offset`.
        let middle = self.distances.outputs() / 2 - self.offset;
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
            let place = row + self.offset;
            let reached = place.saturating_sub(self.reach[0]);
            let first = reached / LANES * LANES;
            let end = positions.min((place + 1).saturating_add(self.reach[1]));
            for at in (first..end).step_by(LANES) {
                let part = end - at;
                let more = load_part::<I>(more.add(at), part, 0.0);
                store_part::<I>(
                    scores.add(at),
                    I::add(load_part::<I>(scores.add(at), part, 0.0), more),
                    part,
                );
            }
            for at in first..reached {
                *scores.add(at) = f32::NEG_INFINITY;
            }
            factors[index] = softmax::<I>(scores.add(first), end - first);
            for at in 0..first {
                *scores.add(at) = 0.0;
            }
            for at in end..positions {
                *scores.add(at) = 0.0;
            }
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
        let part = |queries, keys, offset| RelativeSpan { queries, keys, offset, reach: [4, 2] };
        let whole = RelativeSpan::whole;
        for (head_dim, spans) in [
            (5, vec![whole(0..3), whole(4..9)]),
            (16, vec![whole(0..19), part(19..40, 8..40, 11)]),
            (70, vec![whole(2..3), part(3..11, 0..15, 3)]),
        ] {
            let (width, rows) = (2 * head_dim, 40);
            let longest = spans.iter().map(|span| span.keys.len()).max().unwrap();
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
