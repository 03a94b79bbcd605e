//! Causal attention of single rows over a paged KV cache.

use std::ops::Range;

use crate::arch::{Element, Isa, Kernel, LANES, dispatch};
use crate::elementwise::{scale_in_place, softmax};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// One query row.
#[derive(Debug)]
pub struct PagedQuery<'a> {
    /// Positions that it attends to: its own and all before.
    pub positions: usize,
    /// Block table: the blocks of these positions, in order.
    pub table: &'a [u32],
}

/// One layer of a paged KV cache and the shape of the query.
#[derive(Debug)]
pub struct PagedCache<'a, W> {
    /// `[blocks * block_size, kv_heads, head_dim]`.
    pub keys: &'a [W],
    /// `[blocks * block_size, kv_heads, head_dim]`.
    pub values: &'a [W],
    /// Positions per block.
    pub block_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
}

/// Attention of every row: `q` and `y` `[rows, heads * head_dim]`.
///
/// # Panics
/// Lengths do not fit, a block is outside the cache, or a table is too short.
pub fn paged_attention<W: Element>(
    q: &[f32],
    rows: &[PagedQuery<'_>],
    cache: &PagedCache<'_, W>,
    y: &mut [f32],
) {
    let width = cache.heads * cache.head_dim;
    let slot = cache.kv_heads * cache.head_dim;
    assert!(q.len() == rows.len() * width && y.len() == q.len() && cache.keys.len() == cache.values.len());
    let blocks = cache.keys.len() / (cache.block_size * slot).max(1);
    let inside = |row: &PagedQuery<'_>| {
        let used = row.positions.div_ceil(cache.block_size);
        row.positions > 0
            && row.table.len() >= used
            && row.table[..used].iter().all(|&b| (b as usize) < blocks)
    };
    assert!(rows.iter().all(inside) && cache.heads.is_multiple_of(cache.kv_heads.max(1)));
    let work = width * rows.iter().map(|row| row.positions).sum::<usize>();
    let threads = if work < 128 * 1024 { 1 } else { num_threads() };
    let groups =
        if rows.len() >= threads { 1 } else { threads.div_ceil(rows.len().max(1)).min(cache.kv_heads) };
    let out = SyncPtr(y.as_mut_ptr());
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
    query: &'a PagedQuery<'a>,
    cache: &'a PagedCache<'a, W>,
    heads: Range<usize>,
    scores: &'a mut Vec<f32>,
    y: *mut f32,
}

// SAFETY: `paged_attention` checks all lengths and block tables; each task has its own heads of one row of `y`.
unsafe impl<W: Element> Kernel for Row<'_, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let PagedCache { keys, values, block_size, kv_heads, head_dim, .. } = *self.cache;
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
            let mut first = queries.start;
            while first < queries.end {
                let count = heads_at_once(first, group);
                let q = self.q.as_ptr().add(first * head_dim);
                let key = keys.add(first / group * head_dim);
                let to = scores.add((first - queries.start) * stride + position);
                match count {
                    4 => dots::<I, W, 4>((q, head_dim), key, scale, (to, stride)),
                    2 => dots::<I, W, 2>((q, head_dim), key, scale, (to, stride)),
                    _ => dots::<I, W, 1>((q, head_dim), key, scale, (to, stride)),
                }
                first += count;
            }
        }
        let mut first = queries.start;
        while first < queries.end {
            let count = heads_at_once(first, group);
            let weights = scores.add((first - queries.start) * stride);
            let mut factors = [0f32; 4];
            for (index, factor) in factors[..count].iter_mut().enumerate() {
                *factor = softmax::<I>(weights.add(index * stride), positions);
            }
            let y = self.y.add(first * head_dim);
            std::slice::from_raw_parts_mut(y, count * head_dim).fill(0.0);
            for start in (0..positions).step_by(block_size) {
                let block = self.query.table[start / block_size] as usize;
                let values = values.as_ptr().add(block * block_size * slot + first / group * head_dim);
                let rows = block_size.min(positions - start);
                let weights = (weights.add(start).cast_const(), stride);
                match count {
                    4 => mix::<I, W, 4>(weights, rows, (values, slot), y, head_dim),
                    2 => mix::<I, W, 2>(weights, rows, (values, slot), y, head_dim),
                    _ => mix::<I, W, 1>(weights, rows, (values, slot), y, head_dim),
                }
            }
            for (index, &factor) in factors[..count].iter().enumerate() {
                scale_in_place::<I>(y.add(index * head_dim), head_dim, factor);
            }
            first += count;
        }
    }
}

/// How many query heads from `first` on are taken at once, 4, 2 or 1: they share keys and values.
#[inline(always)]
fn heads_at_once(first: usize, group: usize) -> usize {
    match group - first % group {
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// The dot products of `N` heads, `q.1` elements apart, with one key, to places `to.1` apart.
///
/// # Safety
/// As [`Isa`], with all elements of the heads, the key and the places valid.
#[inline(always)]
pub(crate) unsafe fn dots<I: Isa, W: Element, const N: usize>(
    q: (*const f32, usize),
    key: *const W,
    scale: f32,
    to: (*mut f32, usize),
) {
    let head_dim = q.1;
    let whole = head_dim / LANES * LANES;
    let mut sums = [I::splat(0.0); N];
    for at in (0..whole).step_by(LANES) {
        let key = W::load::<I>(key.add(at));
        for (head, sum) in sums.iter_mut().enumerate() {
            *sum = I::fma(I::load(q.0.add(head * head_dim + at)), key, *sum);
        }
    }
    for (head, &sum) in sums.iter().enumerate() {
        let mut sum = I::sum(sum);
        for at in whole..head_dim {
            sum += *q.0.add(head * head_dim + at) * (*key.add(at)).to_f32();
        }
        *to.0.add(head * to.1) = sum * scale;
    }
}

/// Adds `count` value rows, `values.1` elements apart, to `N` heads `y`, with each head's `weights`, `weights.1` apart:
/// each a chain of multiply-adds in order.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
pub(crate) unsafe fn mix<I: Isa, W: Element, const N: usize>(
    weights: (*const f32, usize),
    count: usize,
    values: (*const W, usize),
    y: *mut f32,
    head_dim: usize,
) {
    let mut at = 0;
    // More sums than registers would be spilled at every row.
    while (I::WIDE || N == 1) && at + 4 * LANES <= head_dim {
        mix_vectors::<I, W, N, 4>(weights, count, (values.0.add(at), values.1), (y.add(at), head_dim));
        at += 4 * LANES;
    }
    while at + LANES <= head_dim {
        mix_vectors::<I, W, N, 1>(weights, count, (values.0.add(at), values.1), (y.add(at), head_dim));
        at += LANES;
    }
    for at in at..head_dim {
        for row in 0..count {
            let value = (*values.0.add(row * values.1 + at)).to_f32();
            for head in 0..N {
                *y.add(head * head_dim + at) += *weights.0.add(head * weights.1 + row) * value;
            }
        }
    }
}

#[inline(always)]
unsafe fn mix_vectors<I: Isa, W: Element, const N: usize, const C: usize>(
    weights: (*const f32, usize),
    count: usize,
    values: (*const W, usize),
    y: (*mut f32, usize),
) {
    let mut sums = [[I::splat(0.0); C]; N];
    for (head, sums) in sums.iter_mut().enumerate() {
        for (vector, sum) in sums.iter_mut().enumerate() {
            *sum = I::load(y.0.add(head * y.1 + vector * LANES));
        }
    }
    for row in 0..count {
        let from = values.0.add(row * values.1);
        let mut values = [I::splat(0.0); C];
        for (vector, value) in values.iter_mut().enumerate() {
            *value = W::load::<I>(from.add(vector * LANES));
        }
        for (head, sums) in sums.iter_mut().enumerate() {
            let weight = I::splat(*weights.0.add(head * weights.1 + row));
            for vector in 0..C {
                sums[vector] = I::fma(weight, values[vector], sums[vector]);
            }
        }
    }
    for (head, sums) in sums.iter().enumerate() {
        for (vector, &sum) in sums.iter().enumerate() {
            I::store(y.0.add(head * y.1 + vector * LANES), sum);
        }
    }
}
