//! Convolution along rows as a matrix product whose left rows are read in place, tap by tap.
//!
//! An output element is one chain of multiply-adds over taps and inputs in order, whatever tile it falls in: a row is
//! the same bits alone and among others.

use std::ops::Range;

use super::isa::{Isa, Job, LANES, dispatch, load_part, store_part};
use super::threads::{Shared, for_each_task};

/// Inputs of one pass over the rows: a panel's share of them stays in the second-level cache.
const BLOCK_DEPTH: usize = 512;
/// Rows of a task, where there are more.
const BLOCK_ROWS: usize = 192;
/// Multiply-adds up to which a second thread costs more than it brings, if there are at most [`SPLIT_WEIGHTS`].
const SPLIT_WORK: usize = 2 * 1024 * 1024;
/// Weights that one thread reads in the time it takes to wake another.
const SPLIT_WEIGHTS: usize = 512 * 1024;
/// Vectors of columns a panel can have, the better ones first.
const PANELS: [usize; 3] = [4, 6, 1];

/// A weight `[taps, inputs, outputs]` as panels `[panel][taps * inputs][columns]`, the last one filled up with zeros.
#[derive(Debug, Clone)]
pub(crate) struct ConvPanels {
    data: Vec<f32>,
    taps: usize,
    inputs: usize,
    outputs: usize,
    vectors: usize, // of columns in a panel
}

impl ConvPanels {
    /// Packs a weight `[outputs, taps, inputs]`.
    ///
    /// # Panics
    /// The weight is not of that size.
    pub(crate) fn pack(weight: &[f32], outputs: usize, taps: usize, inputs: usize) -> Self {
        let depth = taps * inputs;
        assert!(weight.len() == outputs * depth, "a weight of another size");
        let filled = |vectors: &usize| outputs.next_multiple_of(vectors * LANES);
        let vectors = PANELS.into_iter().min_by_key(filled).unwrap_or(1);
        let columns = vectors * LANES;
        let mut data = vec![0f32; outputs.div_ceil(columns) * depth * columns];
        for (output, weight) in weight.chunks_exact(depth.max(1)).enumerate() {
            let panel = &mut data[output / columns * depth * columns..];
            for (k, &value) in weight.iter().enumerate() {
                panel[k * columns + output % columns] = value;
            }
        }
        Self { data, taps, inputs, outputs, vectors }
    }

    fn depth(&self) -> usize {
        self.taps * self.inputs
    }

    fn columns(&self) -> usize {
        self.vectors * LANES
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(self.columns())
    }
}

/// Left rows: tap `t` of row `i` reads row `starts[i] + t * dilation` of `data` `[n, inputs]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TapRows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) starts: &'a [u32],
    pub(crate) dilation: usize,
}

/// `y[rows, outputs]` of the convolution.
///
/// # Panics
/// A row reads outside the data, or `y` or `bias` have another size.
pub(crate) fn convolve(x: TapRows<'_>, weights: &ConvPanels, bias: Option<&[f32]>, y: &mut [f32]) {
    let rows = x.starts.len();
    assert!(y.len() == rows * weights.outputs && bias.is_none_or(|bias| bias.len() == weights.outputs));
    if rows == 0 || weights.depth() == 0 {
        return;
    }
    let last = x.starts.iter().copied().max().unwrap_or(0) as usize + (weights.taps - 1) * x.dilation;
    assert!((last + 1) * weights.inputs <= x.data.len(), "a row reads outside the data");
    let threads = rayon::current_num_threads();
    let size = weights.data.len();
    let alone = threads == 1 || (size <= SPLIT_WEIGHTS && rows * size <= SPLIT_WORK);
    let blocks = if alone { 1 } else { rows.div_ceil(BLOCK_ROWS) };
    let wanted = if alone { 1 } else { 4 * threads };
    let groups = wanted.div_ceil(blocks).clamp(1, weights.panels());
    let out = Shared(y.as_mut_ptr());
    let task = |index: usize| {
        let (block, group) = (index / groups, index % groups);
        let rows = block * rows / blocks..(block + 1) * rows / blocks;
        let panels = group * weights.panels() / groups..(group + 1) * weights.panels() / groups;
        // SAFETY: inside `y`, whose length was checked; each task has its own rows and columns of it.
        let y = unsafe { out.get().add(rows.start * weights.outputs) };
        dispatch(Block { x: TapRows { starts: &x.starts[rows], ..x }, weights, panels, bias, y });
    };
    for_each_task(blocks * groups, if alone { 1 } else { threads }, || (), |(), index| task(index));
}

/// Some rows through some panels; `y` is the first of these rows.
struct Block<'a> {
    x: TapRows<'a>,
    weights: &'a ConvPanels,
    panels: Range<usize>,
    bias: Option<&'a [f32]>,
    y: *mut f32,
}

impl Job for Block<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        match self.weights.vectors {
            1 => self.panels::<I, 1, 8>(),
            4 => self.panels::<I, 4, 6>(),
            _ => self.panels::<I, 6, 4>(),
        }
    }
}

impl Block<'_> {
    /// Panels of `C` vectors through tiles of up to `R` rows.
    #[inline(always)]
    unsafe fn panels<I: Isa, const C: usize, const R: usize>(self) {
        let Self { x, weights, panels, bias, y } = self;
        let (depth, columns, outputs) = (weights.depth(), C * LANES, weights.outputs);
        for panel in panels {
            let first = panel * columns;
            for k in (0..depth).step_by(BLOCK_DEPTH) {
                let mut tile = Tile {
                    x: x.data.as_ptr(),
                    inputs: weights.inputs,
                    tap_step: x.dilation * weights.inputs,
                    k: k..depth.min(k + BLOCK_DEPTH),
                    w: weights.data.as_ptr().add((panel * depth + k) * columns),
                    start: if k == 0 {
                        Start::Fresh(bias.map(|bias| bias.as_ptr().add(first)))
                    } else {
                        Start::Go
                    },
                    y: y.add(first),
                    outputs,
                    width: columns.min(outputs - first),
                };
                let mut starts = x.starts;
                while starts.len() >= R {
                    tile.rows::<I, R, C>(starts);
                    starts = &starts[R..];
                    tile.y = tile.y.add(R * outputs);
                }
                tile.rest::<I, C>(starts);
            }
        }
    }
}

/// Where a block's sums begin.
#[derive(Clone, Copy)]
enum Start {
    /// At the bias, or zero.
    Fresh(Option<*const f32>),
    /// At what the block before has left in `y`.
    Go,
}

/// A few rows through part of one panel.
struct Tile {
    x: *const f32,
    inputs: usize,
    tap_step: usize,
    k: Range<usize>,
    w: *const f32,
    start: Start,
    y: *mut f32,
    outputs: usize,
    width: usize,
}

impl Tile {
    /// Fewer rows than a whole tile has: in tiles of 4, 2 and 1.
    #[inline(always)]
    unsafe fn rest<I: Isa, const C: usize>(&mut self, mut starts: &[u32]) {
        while starts.len() >= 4 {
            self.rows::<I, 4, C>(starts);
            starts = &starts[4..];
            self.y = self.y.add(4 * self.outputs);
        }
        match starts.len() {
            3 => self.rows::<I, 3, C>(starts),
            2 => self.rows::<I, 2, C>(starts),
            1 => self.rows::<I, 1, C>(starts),
            _ => {}
        }
    }

    #[inline(always)]
    unsafe fn rows<I: Isa, const R: usize, const C: usize>(&self, starts: &[u32]) {
        if I::WIDE {
            return self.columns::<I, R, C>(starts, 0, C);
        }
        for vector in 0..C.min(self.width.div_ceil(LANES)) {
            self.columns::<I, R, 1>(starts, vector, C);
        }
    }

    /// `C` vectors of columns from `first` on, of the panel's `of`.
    #[inline(always)]
    unsafe fn columns<I: Isa, const R: usize, const C: usize>(
        &self,
        starts: &[u32],
        first: usize,
        of: usize,
    ) {
        let mut sums = [[I::splat(0.0); C]; R];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let at = (first + column) * LANES;
                let from = match self.start {
                    Start::Fresh(None) => continue,
                    Start::Fresh(Some(bias)) => bias.add(at),
                    Start::Go => self.y.add(row * self.outputs + at).cast_const(),
                };
                *sum = if at < self.width { load_part::<I>(from, self.width - at, 0.0) } else { *sum };
            }
        }
        let mut w = self.w.add(first * LANES);
        let mut k = self.k.start;
        while k < self.k.end {
            let (tap, input) = (k / self.inputs, k % self.inputs);
            let count = (self.inputs - input).min(self.k.end - k);
            let offset = tap * self.tap_step + input;
            let x: [*const f32; R] =
                std::array::from_fn(|row| self.x.add(starts[row] as usize * self.inputs + offset));
            for at in 0..count {
                let weights: [I::V; C] = std::array::from_fn(|column| I::load(w.add(column * LANES)));
                for row in 0..R {
                    let value = I::splat(*x[row].add(at));
                    for column in 0..C {
                        sums[row][column] = I::fma(value, weights[column], sums[row][column]);
                    }
                }
                w = w.add(of * LANES);
            }
            k += count;
        }
        for (row, sums) in sums.iter().enumerate() {
            for (column, &sum) in sums.iter().enumerate() {
                let at = (first + column) * LANES;
                if at < self.width {
                    store_part::<I>(self.y.add(row * self.outputs + at), sum, self.width - at);
                }
            }
        }
    }
}
