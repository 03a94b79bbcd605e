//! Causal attention of single rows over keys and values that lie in blocks.

use std::ops::Range;

use super::elementwise::{scale_in_place, softmax};
use super::isa::{Element, Isa, Job, LANES, dispatch};
use super::threads::{Shared, for_each_task};

/// One query row.
pub(crate) struct Query<'a> {
    /// Positions it sees: its own and all before.
    pub(crate) positions: usize,
    /// Blocks that hold them.
    pub(crate) table: &'a [u32],
}

/// One layer of the pool and the shape of the query: `keys` and `values` `[blocks * block_size, kv_heads, head_dim]`.
pub(crate) struct Cache<'a, W> {
    pub(crate) keys: &'a [W],
    pub(crate) values: &'a [W],
    pub(crate) block_size: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

/// Attention of every row: `q` and `y` `[rows, heads * head_dim]`.
///
/// # Panics
/// A block lies outside the cache, or a table is too short.
pub(crate) fn attend<W: Element>(q: &[f32], rows: &[Query<'_>], cache: &Cache<'_, W>, y: &mut [f32]) {
    let width = cache.heads * cache.head_dim;
    let slot = cache.kv_heads * cache.head_dim;
    assert!(q.len() == rows.len() * width && y.len() == q.len() && cache.keys.len() == cache.values.len());
    let blocks = cache.keys.len() / (cache.block_size * slot).max(1);
    let inside = |row: &Query<'_>| {
        let used = row.positions.div_ceil(cache.block_size);
        row.positions > 0
            && row.table.len() >= used
            && row.table[..used].iter().all(|&b| (b as usize) < blocks)
    };
    assert!(rows.iter().all(inside) && cache.heads.is_multiple_of(cache.kv_heads.max(1)));
    let work = width * rows.iter().map(|row| row.positions).sum::<usize>();
    let threads = if work < 128 * 1024 { 1 } else { rayon::current_num_threads() };
    let groups =
        if rows.len() >= threads { 1 } else { threads.div_ceil(rows.len().max(1)).min(cache.kv_heads) };
    let out = Shared(y.as_mut_ptr());
    for_each_task(rows.len() * groups, threads, Vec::new, |scores: &mut Vec<f32>, task| {
        let (row, group) = (task / groups, task % groups);
        let heads = group * cache.kv_heads / groups..(group + 1) * cache.kv_heads / groups;
        let q = &q[row * width..(row + 1) * width];
        // SAFETY: each task has its own heads of one row of `y`, whose length was checked.
        let y = unsafe { out.get().add(row * width) };
        dispatch(Row { q, query: &rows[row], cache, heads, scores, y });
    });
}

/// One row through some of the key/value heads.
struct Row<'a, W> {
    q: &'a [f32],
    query: &'a Query<'a>,
    cache: &'a Cache<'a, W>,
    heads: Range<usize>,
    scores: &'a mut Vec<f32>,
    y: *mut f32,
}

impl<W: Element> Job for Row<'_, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let Cache { keys, values, block_size, kv_heads, head_dim, .. } = *self.cache;
        let group = self.cache.heads / kv_heads;
        let queries = self.heads.start * group..self.heads.end * group;
        let (slot, positions) = (kv_heads * head_dim, self.query.positions);
        let stride = positions.next_multiple_of(LANES);
        self.scores.resize(self.scores.len().max(queries.len() * stride), 0.0);
        let scores = self.scores.as_mut_ptr();
        let scale = 1.0 / (head_dim as f32).sqrt();
        for position in 0..positions {
            let block = self.query.table[position / block_size] as usize;
            let keys = keys.as_ptr().add((block * block_size + position % block_size) * slot);
            for (index, head) in queries.clone().enumerate() {
                let q = self.q.as_ptr().add(head * head_dim);
                let score = dot::<I, W>(q, keys.add(head / group * head_dim), head_dim);
                *scores.add(index * stride + position) = score * scale;
            }
        }
        for (index, head) in queries.enumerate() {
            let weights = scores.add(index * stride);
            let factor = softmax::<I>(weights, positions);
            let y = self.y.add(head * head_dim);
            std::slice::from_raw_parts_mut(y, head_dim).fill(0.0);
            for first in (0..positions).step_by(block_size) {
                let block = self.query.table[first / block_size] as usize;
                let values = values.as_ptr().add(block * block_size * slot + head / group * head_dim);
                let count = block_size.min(positions - first);
                mix::<I, W>(weights.add(first), count, (values, slot), y, head_dim);
            }
            scale_in_place::<I>(y, head_dim, factor);
        }
    }
}

/// The dot product of two heads.
///
/// # Safety
/// As [`Isa`], with `head_dim` elements valid.
#[inline(always)]
pub(super) unsafe fn dot<I: Isa, W: Element>(q: *const f32, key: *const W, head_dim: usize) -> f32 {
    let whole = head_dim / LANES * LANES;
    let mut sum = I::splat(0.0);
    for at in (0..whole).step_by(LANES) {
        sum = I::fma(I::load(q.add(at)), W::load::<I>(key.add(at)), sum);
    }
    let mut sum = I::sum(sum);
    for at in whole..head_dim {
        sum += *q.add(at) * (*key.add(at)).to_f32();
    }
    sum
}

/// Adds `count` weighted value rows, `values.1` elements apart, to `y`: a chain of multiply-adds in order.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
pub(super) unsafe fn mix<I: Isa, W: Element>(
    weights: *const f32,
    count: usize,
    values: (*const W, usize),
    y: *mut f32,
    head_dim: usize,
) {
    let mut at = 0;
    while at + 4 * LANES <= head_dim {
        mix_vectors::<I, W, 4>(weights, count, (values.0.add(at), values.1), y.add(at));
        at += 4 * LANES;
    }
    while at + LANES <= head_dim {
        mix_vectors::<I, W, 1>(weights, count, (values.0.add(at), values.1), y.add(at));
        at += LANES;
    }
    for at in at..head_dim {
        for row in 0..count {
            *y.add(at) += *weights.add(row) * (*values.0.add(row * values.1 + at)).to_f32();
        }
    }
}

#[inline(always)]
unsafe fn mix_vectors<I: Isa, W: Element, const C: usize>(
    weights: *const f32,
    count: usize,
    values: (*const W, usize),
    y: *mut f32,
) {
    let mut sums: [I::V; C] = std::array::from_fn(|vector| I::load(y.add(vector * LANES)));
    for row in 0..count {
        let weight = I::splat(*weights.add(row));
        let from = values.0.add(row * values.1);
        for (vector, sum) in sums.iter_mut().enumerate() {
            *sum = I::fma(weight, W::load::<I>(from.add(vector * LANES)), *sum);
        }
    }
    for (vector, &sum) in sums.iter().enumerate() {
        I::store(y.add(vector * LANES), sum);
    }
}
