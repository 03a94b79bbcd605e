//! Attention of a tile of query rows over all positions of one head, keys and values packed in panels.

use crate::arch::{Element, Isa, Kernel, dispatch};
use crate::elementwise::{scale_in_place, softmax};
use crate::linear::panels::{Block, PANEL, Panels, Strides};
use crate::threads::num_threads;
use crate::threads::{SyncPtr, for_each_task};

/// Query rows whose scores are held at once: with 1500 positions 144 KiB, which the second-level cache holds.
const TILE_ROWS: usize = 24;
/// Query rows of one parallel task.
const TASK_ROWS: usize = 4 * TILE_ROWS;

/// Keys and values of one head.
#[derive(Debug, Clone)]
pub struct HeadKv<W> {
    keys: Panels<W>,   // [head_dim, positions]
    values: Panels<W>, // [positions, head_dim]
}

impl<W: Element> HeadKv<W> {
    /// Packs head `head` of `keys` and `values` `[positions, width]`.
    pub fn pack(keys: &[f32], values: &[f32], width: usize, head_dim: usize, head: usize) -> Self {
        let positions = keys.len() / width.max(1);
        let (keys, values) = (&keys[head * head_dim..], &values[head * head_dim..]);
        Self {
            keys: Panels::pack(keys, Strides { input: 1, output: width }, head_dim, positions),
            values: Panels::pack(values, Strides { input: width, output: 1 }, positions, head_dim),
        }
    }

    /// `[head_dim, positions]`.
    pub(crate) fn keys(&self) -> &Panels<W> {
        &self.keys
    }

    /// `[positions, head_dim]`.
    pub(crate) fn values(&self) -> &Panels<W> {
        &self.values
    }

    /// Positions attended to.
    pub fn positions(&self) -> usize {
        self.keys.outputs()
    }

    /// Bytes of the packed keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

/// Packs every head of every span of `keys` and `values` `[rows, heads * head_dim]`, in parallel: `[span][head]`; `spans` are
/// the rows of each span.
pub fn pack_heads<W: Element>(
    keys: &[f32],
    values: &[f32],
    heads: usize,
    head_dim: usize,
    spans: &[usize],
) -> Vec<Vec<HeadKv<W>>> {
    use rayon::prelude::*;
    let width = heads * head_dim;
    let mut start = 0;
    let mut packed = Vec::with_capacity(spans.len());
    for &rows in spans {
        let part = start * width..(start + rows) * width;
        let (keys, values) = (&keys[part.clone()], &values[part]);
        let pack = |head| HeadKv::pack(keys, values, width, head_dim, head);
        packed.push((0..heads).into_par_iter().map(pack).collect());
        start += rows;
    }
    packed
}

/// Some query rows of one sequence.
#[derive(Debug)]
pub struct Span<'a, W> {
    /// Rows of the sequence.
    pub rows: usize,
    /// Keys and values that they attend to, by head.
    pub heads: &'a [HeadKv<W>],
}

/// Attention of every span's rows: `q` and `y` `[rows, heads * head_dim]`. For each of the `record`ed heads the softmax
/// weights are written to `weights`, one vector per span `[record, rows, positions]`.
///
/// # Panics
/// Lengths do not fit.
pub fn attention<W: Element>(
    q: &[f32],
    spans: &[Span<'_, W>],
    head_dim: usize,
    record: &[usize],
    y: &mut [f32],
    weights: &mut [Vec<f32>],
) {
    let width = spans.first().map_or(0, |span| span.heads.len() * head_dim);
    let mut tasks = Vec::new();
    let mut start = 0;
    for (index, span) in spans.iter().enumerate() {
        assert!(span.heads.len() * head_dim == width);
        let positions = span.heads.first().map_or(0, HeadKv::positions);
        assert!(record.is_empty() || weights[index].len() == record.len() * span.rows * positions);
        for head in 0..span.heads.len() {
            tasks.extend((0..span.rows).step_by(TASK_ROWS).map(|row| (index, head, row, start + row)));
        }
        start += span.rows;
    }
    assert!(q.len() == start * width && y.len() == q.len());
    let out = SyncPtr(y.as_mut_ptr());
    let recorded: Vec<SyncPtr> = weights.iter_mut().map(|weights| SyncPtr(weights.as_mut_ptr())).collect();
    let work: usize =
        spans.iter().map(|span| span.rows * width * span.heads.first().map_or(0, HeadKv::positions)).sum();
    let threads = if work < 256 * 1024 { 1 } else { num_threads() };
    for_each_task(tasks.len(), threads, Scratch::default, |scratch, task| {
        let (index, head, row, at) = tasks[task];
        let span = &spans[index];
        let positions = span.heads[head].positions();
        let slot = record.iter().position(|&recorded| recorded == head);
        // SAFETY: each task has its own rows and head of `y`, and of the span's weights, whose lengths were checked.
        let (y, weights) = unsafe {
            let weights = slot.map(|slot| recorded[index].get().add((slot * span.rows + row) * positions));
            (out.get().add(at * width + head * head_dim), weights)
        };
        dispatch(Rows {
            q: &q[at * width + head * head_dim..],
            rows: TASK_ROWS.min(span.rows - row),
            width,
            head_dim,
            kv: &span.heads[head],
            scratch,
            y,
            weights,
        });
    });
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    scores: Vec<f32>,
}

/// Up to [`TASK_ROWS`] rows over one head.
struct Rows<'a, W> {
    q: &'a [f32],
    rows: usize,
    width: usize,
    head_dim: usize,
    kv: &'a HeadKv<W>,
    scratch: &'a mut Scratch,
    y: *mut f32,
    weights: Option<*mut f32>,
}

// SAFETY: `attention` checks all lengths; each task has its own rows and head of `y` and `weights`.
unsafe impl<W: Element> Kernel for Rows<'_, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        for first in (0..self.rows).step_by(TILE_ROWS) {
            self.tile::<I>(first, TILE_ROWS.min(self.rows - first));
        }
    }
}

impl<W: Element> Rows<'_, W> {
    #[inline(always)]
    unsafe fn tile<I: Isa>(&mut self, first: usize, rows: usize) {
        let (head_dim, positions) = (self.head_dim, self.kv.positions());
        let stride = positions.next_multiple_of(PANEL);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let Scratch { q, scores } = &mut *self.scratch;
        q.clear();
        for row in first..first + rows {
            for value in &self.q[row * self.width..][..head_dim] {
                q.push(value * scale);
            }
        }
        scores.resize(scores.len().max(rows * stride), 0.0);
        product::<I, W>((q.as_ptr(), head_dim), rows, &self.kv.keys, (scores.as_mut_ptr(), stride));
        let scores = scores.as_mut_ptr();
        let mut factors = [0f32; TILE_ROWS];
        for (row, factor) in factors[..rows].iter_mut().enumerate() {
            *factor = softmax::<I>(scores.add(row * stride), positions);
        }
        let y = self.y.add(first * self.width);
        product::<I, W>((scores, stride), rows, &self.kv.values, (y, self.width));
        for (row, &factor) in factors[..rows].iter().enumerate() {
            scale_in_place::<I>(y.add(row * self.width), head_dim, factor);
            if let Some(weights) = self.weights {
                let weights = weights.add((first + row) * positions);
                std::ptr::copy_nonoverlapping(scores.add(row * stride), weights, positions);
                scale_in_place::<I>(weights, positions, factor);
            }
        }
    }
}

/// `y = x W` on this thread; `x` and `y` with their strides.
///
/// # Safety
/// As [`Isa`]; there are `rows` rows of both.
#[inline(always)]
pub(crate) unsafe fn product<I: Isa, W: Element>(
    x: (*const f32, usize),
    rows: usize,
    weights: &Panels<W>,
    y: (*mut f32, usize),
) {
    let panels = 0..weights.count();
    Block { x: x.0, x_stride: x.1, rows, weights, panels, bias: None, y: y.0, y_stride: y.1 }.run::<I>();
}
