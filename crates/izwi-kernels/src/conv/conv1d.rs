//! Convolution along rows as a matrix product whose left rows are read in place, tap by tap.
//!
//! An output element is one chain of multiply-adds over taps and inputs in order, whatever tile it falls in: a row is
//! the same bits alone and among others.

use std::ops::Range;

use crate::arch::{Isa, Kernel, LANES, SECOND_LEVEL, dispatch, prefetch};
use crate::packed::{CACHE_LINE, Memory, Packed, PackedKind, Part, Sizes};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Inputs of one pass over the rows: a panel's share of them stays in the second-level cache.
const BLOCK_DEPTH: usize = 512;
/// Bytes fetched ahead where one tile takes all rows.
const AHEAD: usize = 8192;
/// Rows of a task, where there are more.
const BLOCK_ROWS: usize = 192;
/// Multiply-adds up to which one thread is faster than two, if there are at most [`SPLIT_WEIGHTS`].
const SPLIT_WORK: usize = 2 * 1024 * 1024;
/// Weights that one thread reads in the time it takes to wake another.
const SPLIT_WEIGHTS: usize = 512 * 1024;
/// Pairs that one thread rounds in the time it takes to wake another.
const PAIRS_OF_TASK: usize = 32 * 1024;
/// Vectors of columns a panel can have, the better ones first.
const PANELS: [usize; 3] = [4, 6, 1];

/// A weight `[taps, inputs, outputs]` as panels `[panel][taps * inputs][columns]`, the last one filled up with zeros.
#[derive(Debug, Clone)]
pub struct ConvPanels {
    data: Memory<f32>,
    taps: usize,
    inputs: usize,
    outputs: usize,
    vectors: usize, // of columns in a panel
    /// Whether an element is two bf16, which belong to two neighbouring inputs: `inputs` counts the pairs.
    paired: bool,
}

impl ConvPanels {
    /// Packs a weight `[outputs, taps, inputs]`.
    ///
    /// # Panics
    /// The length of the weight does not fit.
    pub fn pack(weight: &[f32], outputs: usize, taps: usize, inputs: usize) -> Self {
        let depth = taps * inputs;
        assert!(weight.len() == outputs * depth, "a weight of another size");
        let vectors = vectors(outputs);
        let columns = vectors * LANES;
        let mut data = vec![0f32; outputs.div_ceil(columns) * depth * columns];
        for (output, weight) in weight.chunks_exact(depth.max(1)).enumerate() {
            let panel = &mut data[output / columns * depth * columns..];
            for (k, &value) in weight.iter().enumerate() {
                panel[k * columns + output % columns] = value;
            }
        }
        Self { data: Memory::Own(data), taps, inputs, outputs, vectors, paired: false }
    }

    /// As [`Self::pack`], rounded to bf16; inputs are rounded too when they are multiplied, sums are f32.
    ///
    /// # Panics
    /// The length of the weight does not fit, or the number of inputs is odd.
    pub fn pack_pairs(weight: &[f32], outputs: usize, taps: usize, inputs: usize) -> Self {
        assert!(inputs.is_multiple_of(2), "an odd number of inputs");
        Self { paired: true, ..Self::pack(&paired(weight), outputs, taps, inputs / 2) }
    }

    /// Taps, inputs (or pairs of them) and outputs.
    pub(crate) fn shape(&self) -> Sizes {
        [self.taps, self.inputs, self.outputs]
    }

    /// Vectors of columns in a panel.
    pub(crate) fn vectors(&self) -> usize {
        self.vectors
    }

    /// The panels, one after another.
    #[inline(always)]
    pub(crate) fn elements(&self) -> &[f32] {
        &self.data
    }

    fn depth(&self) -> usize {
        self.taps * self.inputs
    }

    fn columns(&self) -> usize {
        self.vectors * LANES
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(self.columns())
    }
}

impl Packed for ConvPanels {
    fn kind(&self) -> PackedKind {
        if self.paired { PackedKind::ConvBf16 } else { PackedKind::Conv }
    }

    fn sizes(&self) -> Sizes {
        [self.taps, if self.paired { 2 * self.inputs } else { self.inputs }, self.outputs]
    }

    fn data(&self) -> &[u8] {
        self.data.bytes()
    }

    fn unpack(kind: PackedKind, [taps, inputs, outputs]: Sizes, data: Part) -> Option<Self> {
        let (paired, inputs) = match kind {
            PackedKind::Conv => (false, inputs),
            PackedKind::ConvBf16 if inputs.is_multiple_of(2) => (true, inputs / 2),
            _ => return None,
        };
        let vectors = vectors(outputs);
        let values = outputs.next_multiple_of(vectors * LANES) * taps * inputs;
        let data = (data.len() == values * size_of::<f32>()).then_some(Memory::Part(data))?;
        Some(Self { data, taps, inputs, outputs, vectors, paired })
    }
}

/// Vectors of columns per panel with the least padding.
fn vectors(outputs: usize) -> usize {
    PANELS.into_iter().min_by_key(|vectors| outputs.next_multiple_of(vectors * LANES)).unwrap_or(1)
}

/// Rounds neighbours to bf16 and packs two into each element of the result. A NaN may become another value.
fn paired(values: &[f32]) -> Vec<f32> {
    let values = values.as_chunks().0;
    let mut pairs = vec![0f32; values.len()];
    let out = SyncPtr(pairs.as_mut_ptr());
    let tasks = values.len().div_ceil(PAIRS_OF_TASK);
    let threads = if tasks > 2 { num_threads() } else { 1 };
    for_each_task(
        tasks,
        threads,
        || (),
        |(), task| {
            let first = task * PAIRS_OF_TASK;
            let values = &values[first..values.len().min(first + PAIRS_OF_TASK)];
            // SAFETY: each task has its own elements of `pairs`, which is as long as the values.
            dispatch(RoundPairs { values, pairs: unsafe { out.get().add(first) } });
        },
    );
    pairs
}

/// Writes as many `pairs` as there are values.
struct RoundPairs<'a> {
    values: &'a [[f32; 2]],
    pairs: *mut f32,
}

// SAFETY: `paired` gives each task its own elements of `pairs`, as many as there are values.
unsafe impl Kernel for RoundPairs<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        for (at, &[low, high]) in self.values.iter().enumerate() {
            let (low, high) = (low.to_bits(), high.to_bits());
            // Round to nearest, ties to even.
            let low = low.wrapping_add(0x7fff + (low >> 16 & 1)) >> 16;
            let high = high.wrapping_add(0x7fff + (high >> 16 & 1)) & 0xffff_0000;
            *self.pairs.add(at) = f32::from_bits(low | high);
        }
    }
}

/// The rows of a convolution: tap `t` of row `i` reads row `starts[i] + t * dilation` of `data` `[n, inputs]`.
#[derive(Debug, Clone, Copy)]
pub struct ConvRows<'a> {
    /// Input rows `[n, inputs]`.
    pub data: &'a [f32],
    /// For each output row the input row that its first tap reads.
    pub starts: &'a [u32],
    /// Input rows from one tap to the next.
    pub dilation: usize,
}

/// The convolution: `bias` `[outputs]`, `y` `[starts, outputs]`.
///
/// # Panics
/// A row reads outside the data, or lengths do not fit.
pub fn conv1d(x: ConvRows<'_>, weights: &ConvPanels, bias: Option<&[f32]>, y: &mut [f32]) {
    let rows = x.starts.len();
    assert!(y.len() == rows * weights.outputs && bias.is_none_or(|bias| bias.len() == weights.outputs));
    if rows == 0 || weights.depth() == 0 {
        return;
    }
    let pairs = if weights.paired { paired(x.data) } else { Vec::new() };
    let x = if weights.paired { ConvRows { data: &pairs, ..x } } else { x };
    let last = x.starts.iter().copied().max().unwrap_or(0) as usize + (weights.taps - 1) * x.dilation;
    assert!((last + 1) * weights.inputs <= x.data.len(), "a row reads outside the data");
    let mut padded = vec![0f32; weights.panels() * weights.columns()];
    if let Some(bias) = bias {
        padded[..bias.len()].copy_from_slice(bias);
    }
    let bias = &padded[..];
    let threads = num_threads();
    let size = weights.data.len();
    let alone = threads == 1 || (size <= SPLIT_WEIGHTS && rows * size <= SPLIT_WORK);
    let blocks = if alone { 1 } else { rows.div_ceil(BLOCK_ROWS) };
    let wanted = if alone { 1 } else { 4 * threads };
    let groups = wanted.div_ceil(blocks).clamp(1, weights.panels());
    let out = SyncPtr(y.as_mut_ptr());
    let task = |index: usize| {
        let (block, group) = (index / groups, index % groups);
        let rows = block * rows / blocks..(block + 1) * rows / blocks;
        let panels = group * weights.panels() / groups..(group + 1) * weights.panels() / groups;
        // SAFETY: inside `y`, whose length was checked; each task has its own rows and columns of it.
        let y = unsafe { out.get().add(rows.start * weights.outputs) };
        dispatch(Block { x: ConvRows { starts: &x.starts[rows], ..x }, weights, panels, bias, y });
    };
    for_each_task(blocks * groups, if alone { 1 } else { threads }, || (), |(), index| task(index));
}

/// Some rows through some panels; `y` is the first of these rows.
struct Block<'a> {
    x: ConvRows<'a>,
    weights: &'a ConvPanels,
    panels: Range<usize>,
    bias: &'a [f32], // as many as the panels have columns
    y: *mut f32,
}

// SAFETY: `conv1d` checks that every row read is inside the data; each task has its own rows and columns of `y`.
unsafe impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        match (self.weights.vectors, self.weights.paired) {
            (1, false) if I::WIDE => self.panels::<I, false, 1, 8>(),
            (1, false) => self.panels::<I, false, 1, 6>(),
            (4, false) => self.panels::<I, false, 4, 6>(),
            (_, false) => self.panels::<I, false, 6, 4>(),
            (1, true) if I::WIDE => self.panels::<I, true, 1, 8>(),
            (1, true) => self.panels::<I, true, 1, 6>(),
            (4, true) => self.panels::<I, true, 4, 6>(),
            (_, true) => self.panels::<I, true, 6, 4>(),
        }
    }
}

impl Block<'_> {
    /// Panels of `C` vectors, of pairs if `P`, through tiles of up to `R` rows.
    #[inline(always)]
    unsafe fn panels<I: Isa, const P: bool, const C: usize, const R: usize>(self) {
        let (columns, outputs, rows) = (C * LANES, self.weights.outputs, self.x.starts.len());
        let mut wide = Vec::new();
        for panel in self.panels.clone() {
            let first = panel * columns;
            if outputs - first >= columns {
                self.panel::<I, P, C, R>(panel, self.y.add(first), outputs);
                continue;
            }
            // Rows as wide as the panel, of which the columns that exist are copied.
            wide.resize(rows * columns, 0f32);
            self.panel::<I, P, C, R>(panel, wide.as_mut_ptr(), columns);
            for (row, wide) in wide.chunks_exact(columns).enumerate() {
                let y = self.y.add(row * outputs + first);
                std::ptr::copy_nonoverlapping(wide.as_ptr(), y, outputs - first);
            }
        }
    }

    /// One panel; a row of it goes to `y`, `y_stride` elements after the one before.
    #[inline(always)]
    unsafe fn panel<I: Isa, const P: bool, const C: usize, const R: usize>(
        &self,
        panel: usize,
        y: *mut f32,
        y_stride: usize,
    ) {
        let Self { x, weights, bias, .. } = self;
        let (depth, columns) = (weights.depth(), C * LANES);
        for k in (0..depth).step_by(BLOCK_DEPTH) {
            // The first pass begins at the bias, each other pass at the result of the one before.
            let (from, from_stride) =
                if k == 0 { (bias.as_ptr().add(panel * columns), 0) } else { (y.cast_const(), y_stride) };
            let tile = Tile {
                x: x.data.as_ptr(),
                inputs: weights.inputs,
                tap_step: x.dilation * weights.inputs,
                k: k..depth.min(k + BLOCK_DEPTH),
                w: weights.data.as_ptr().add((panel * depth + k) * columns),
                from,
                from_stride,
                y,
                y_stride,
                fetch: (0, 0),
            };
            tile.all::<I, P, C, R>(x.starts);
        }
    }
}

/// Rows through part of one panel.
pub(crate) struct Tile {
    /// Row 0, `inputs` long, and elements from what one tap reads to what the next reads.
    pub(crate) x: *const f32,
    pub(crate) inputs: usize,
    pub(crate) tap_step: usize,
    /// Inputs of all taps, of which `w` is the first one's row of the panel.
    pub(crate) k: Range<usize>,
    pub(crate) w: *const f32,
    /// What the first row's sums begin at, and elements to the next row's.
    pub(crate) from: *const f32,
    pub(crate) from_stride: usize,
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
    /// What to prefetch: its distance from the current weights in bytes, and lines per input.
    pub(crate) fetch: (usize, usize),
}

impl Tile {
    /// Output row `i` reads row `starts[i]`; `P` pairs, `C` vectors of a panel, up to `R` rows at once.
    #[inline(always)]
    pub(crate) unsafe fn all<I: Isa, const P: bool, const C: usize, const R: usize>(
        mut self,
        mut starts: &[u32],
    ) {
        // A single tile prefetches the lines ahead; several share the lines that follow this part.
        let tiles = starts.len().div_ceil(R);
        let (share, behind) = (C.div_ceil(tiles.max(1)), self.k.len() * C * CACHE_LINE);
        let mut line = 0;
        while !starts.is_empty() {
            let ahead = if tiles == 1 { AHEAD } else { behind + line * CACHE_LINE };
            self.fetch = (ahead, share.min(C - line));
            line += self.fetch.1;
            if starts.len() >= R {
                self.rows::<I, P, R, C>(starts);
                starts = &starts[R..];
                self.advance(R);
            } else {
                self.rest::<I, P, C>(starts);
                starts = &[];
            }
        }
    }

    #[inline(always)]
    unsafe fn advance(&mut self, rows: usize) {
        self.from = self.from.add(rows * self.from_stride);
        self.y = self.y.add(rows * self.y_stride);
    }

    /// Fewer rows than a whole tile has.
    #[inline(always)]
    unsafe fn rest<I: Isa, const P: bool, const C: usize>(&mut self, mut starts: &[u32]) {
        while starts.len() >= 4 {
            self.rows::<I, P, 4, C>(starts);
            starts = &starts[4..];
            self.advance(4);
        }
        match starts.len() {
            3 => self.rows::<I, P, 3, C>(starts),
            2 => self.rows::<I, P, 2, C>(starts),
            1 => self.rows::<I, P, 1, C>(starts),
            _ => {}
        }
    }

    #[inline(always)]
    unsafe fn rows<I: Isa, const P: bool, const R: usize, const C: usize>(&self, starts: &[u32]) {
        let mut rows = [0usize; R];
        for row in 0..R {
            rows[row] = starts[row] as usize * self.inputs;
        }
        if I::WIDE {
            return self.columns::<I, P, R, C>(&rows, 0, C);
        }
        for vector in 0..C {
            self.columns::<I, P, R, 1>(&rows, vector * LANES, C);
        }
    }

    /// `C` vectors of columns from `first` on, of a panel that has `of`. Loops with small bodies and no closures: the
    /// sums stay in registers only where all is unrolled, and a closure is compiled without the instruction set.
    #[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
    #[inline(always)]
    unsafe fn columns<I: Isa, const P: bool, const R: usize, const C: usize>(
        &self,
        rows: &[usize; R],
        first: usize,
        of: usize,
    ) {
        let mut sums = [[I::splat(0.0); C]; R];
        for row in 0..R {
            for column in 0..C {
                let from = self.from.add(row * self.from_stride + first + column * LANES);
                sums[row][column] = I::load(from);
            }
        }
        // Once for all columns.
        let lines = if first == 0 { self.fetch.1 } else { 0 };
        let mut w = self.w.add(first);
        let mut k = self.k.start;
        while k < self.k.end {
            let (tap, input) = (k / self.inputs, k % self.inputs);
            let count = (self.inputs - input).min(self.k.end - k);
            let at = self.x.add(tap * self.tap_step + input);
            let mut x = [at; R];
            for row in 0..R {
                x[row] = at.add(rows[row]);
            }
            for _ in 0..count {
                for line in 0..lines {
                    prefetch::<SECOND_LEVEL>(w.cast::<u8>().wrapping_add(self.fetch.0 + line * CACHE_LINE));
                }
                let mut weights = [I::splat(0.0); C];
                for (column, weights) in weights.iter_mut().enumerate() {
                    *weights = I::load(w.add(column * LANES));
                }
                for row in 0..R {
                    let value = I::splat(*x[row]);
                    for column in 0..C {
                        let sum = sums[row][column];
                        sums[row][column] = if P {
                            I::dot_bf16_pairs(value, weights[column], sum)
                        } else {
                            I::fma(value, weights[column], sum)
                        };
                    }
                    x[row] = x[row].add(1);
                }
                w = w.add(of * LANES);
            }
            k += count;
        }
        for row in 0..R {
            for column in 0..C {
                I::store(self.y.add(row * self.y_stride + first + column * LANES), sums[row][column]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_convolves_alike() {
        for (outputs, taps, inputs, dilation) in
            [(1, 7, 5, 2), (17, 1, 33, 1), (96, 3, 20, 9), (130, 2, 600, 1)]
        {
            let weight = values(outputs * taps * inputs, 1);
            let panels = ConvPanels::pack(&weight, outputs, taps, inputs);
            let (x, bias) = (values((11 + taps * dilation) * inputs, 2), values(outputs, 3));
            let starts = [0u32, 1, 5, 9, 2, 3, 7, 10, 4, 11];
            check("conv1d", 2e-5, || {
                let mut y = vec![0.0; starts.len() * outputs];
                conv1d(ConvRows { data: &x, starts: &starts, dilation }, &panels, Some(&bias), &mut y);
                y
            });
        }
    }

    #[test]
    fn pairs_are_products_of_rounded_values_at_every_level() {
        let rounded = |values: &[f32]| values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect::<Vec<_>>();
        for (outputs, taps, inputs, dilation) in
            [(1, 7, 6, 2), (17, 1, 34, 1), (96, 3, 20, 9), (130, 2, 600, 1)]
        {
            let weight = values(outputs * taps * inputs, 1);
            let (x, bias) = (values((11 + taps * dilation) * inputs, 2), values(outputs, 3));
            let starts = [0u32, 1, 5, 9, 2, 3, 7, 10, 4, 11];
            let run = |x: &[f32], panels: &ConvPanels| {
                let mut y = vec![0.0; starts.len() * outputs];
                conv1d(ConvRows { data: x, starts: &starts, dilation }, panels, Some(&bias), &mut y);
                y
            };
            let panels = ConvPanels::pack_pairs(&weight, outputs, taps, inputs);
            check("conv1d pairs", 2e-5, || run(&x, &panels));
            let exact = run(&rounded(&x), &ConvPanels::pack(&rounded(&weight), outputs, taps, inputs));
            for (pairs, exact) in run(&x, &panels).iter().zip(exact) {
                assert!((pairs - exact).abs() < 1e-4, "{pairs} {exact}");
            }
        }
    }
}
