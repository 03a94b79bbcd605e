//! Matrix product with the right side packed in panels of 64 columns, in f32, f16 or bf16.
//!
//! An output element is one chain of multiply-adds over the inputs in order, whatever tile it falls in: rows are the
//! same bits alone and in any batch.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::arch::{Element, FIRST_LEVEL, Isa, Kernel, LANES, dispatch, load_part, prefetch, store_part};
use crate::linear::source::WeightSource;
use crate::packed::{CACHE_LINE, Memory, Part};
use crate::threads::num_threads;
use crate::threads::{SyncPtr, for_each_task};

/// Columns of a panel.
pub(crate) const PANEL: usize = 64;
/// Bytes fetched ahead where one tile takes all rows.
const AHEAD: usize = 8192;
/// Rows of a register tile.
const TILE_ROWS: usize = 6;
/// Rows of a task, where there are more: they stay in the second-level cache while every panel passes.
pub(crate) const BLOCK_ROWS: usize = 48;
/// Tasks per thread, so that a thread that starts late runs fewer of them.
const PARTS: usize = 4;
/// Estimated nanoseconds up to which one thread is faster than two.
const SPLIT_NS: usize = 6_000;
/// Bytes of weights read in a nanosecond.
const BYTES_PER_NS: usize = 40;
/// Units of work that are done in a nanosecond: see [`Split`].
const WORK_PER_NS: usize = 384;
/// Units of work of a multiply-add in f32.
const F32_WORK: usize = 3;

/// A matrix `[inputs, outputs]` as panels `[outputs / 64][inputs][64]`, the last one filled up with zeros.
#[derive(Debug, Clone)]
pub(crate) struct Panels<W> {
    data: Memory<W>,
    inputs: usize,
    outputs: usize,
}

/// Distances of the elements of a matrix in memory, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    /// From one input to the next.
    pub(crate) input: usize,
    /// From one output to the next.
    pub(crate) output: usize,
}

impl<W: Element> Panels<W> {
    /// Packs `[inputs, outputs]` out of `from`.
    pub(crate) fn pack(from: &[f32], strides: Strides, inputs: usize, outputs: usize) -> Self {
        let mut data = vec![W::default(); outputs.div_ceil(PANEL) * inputs * PANEL];
        for (panel, data) in data.chunks_exact_mut((inputs * PANEL).max(1)).enumerate() {
            let start = panel * PANEL;
            let width = PANEL.min(outputs - start);
            if strides.output == 1 {
                for (input, row) in data.chunks_exact_mut(PANEL).enumerate() {
                    let from = &from[input * strides.input + start..][..width];
                    row.iter_mut().zip(from).for_each(|(to, &value)| *to = W::from_f32(value));
                }
            } else {
                // Sixteen inputs at a time: the lines written stay in the first-level cache.
                for first in (0..inputs).step_by(LANES) {
                    let last = inputs.min(first + LANES);
                    for column in 0..width {
                        let from = &from[(start + column) * strides.output..];
                        for input in first..last {
                            data[input * PANEL + column] = W::from_f32(from[input * strides.input]);
                        }
                    }
                }
            }
        }
        Self { data: Memory::Own(data), inputs, outputs }
    }

    /// Packs a weight `[outputs, inputs]`, on all threads.
    pub(crate) fn pack_rows(from: WeightSource<'_>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(from.len(), inputs * outputs);
        let panels = outputs.div_ceil(PANEL);
        let mut data = vec![W::default(); panels * inputs * PANEL];
        let out = SyncPtr(data.as_mut_ptr());
        for_each_task(panels, num_threads(), Vec::new, |rows: &mut Vec<f32>, panel| {
            let start = panel * PANEL;
            let width = PANEL.min(outputs - start);
            rows.resize(width * inputs, 0.0);
            for (column, row) in rows.chunks_exact_mut(inputs.max(1)).enumerate() {
                from.row(start + column, row);
            }
            // SAFETY: each task has its own panel of `data`.
            let data =
                unsafe { std::slice::from_raw_parts_mut(out.get().add(start * inputs), inputs * PANEL) };
            for (input, data) in data.chunks_exact_mut(PANEL).enumerate() {
                let values = rows.iter().skip(input).step_by(inputs);
                data.iter_mut().zip(values).for_each(|(to, &value)| *to = W::from_f32(value));
            }
        });
        Self { data: Memory::Own(data), inputs, outputs }
    }

    /// The matrix whose packed bytes are `data`; `None` where their number does not fit.
    pub(crate) fn unpack(data: Part, inputs: usize, outputs: usize) -> Option<Self> {
        let bytes = outputs.div_ceil(PANEL) * inputs * PANEL * size_of::<W>();
        let data = (data.len() == bytes).then_some(Memory::Part(data))?;
        Some(Self { data, inputs, outputs })
    }

    /// Inputs and outputs.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.inputs, self.outputs)
    }

    /// The packed bytes.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Number of columns.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of panels.
    pub(crate) fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Number of the packed bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data().len()
    }

    /// Column `output`, all inputs.
    pub(crate) fn column(&self, output: usize) -> impl Iterator<Item = f32> + '_ {
        let start = output / PANEL * self.inputs * PANEL + output % PANEL;
        (0..self.inputs).map(move |input| self.data[start + input * PANEL].to_f32())
    }
}

/// The left side of a product: row `i` is `data[i * stride..][..inputs]`; rows may overlap.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
}

impl Rows<'_> {
    /// Whether there are `inputs` elements in every row.
    pub(crate) fn fits(&self, inputs: usize) -> bool {
        self.count == 0 || self.data.len() >= (self.count - 1) * self.stride + inputs
    }
}

/// `y = x W (+ bias)`: `x` `[rows, inputs]`, `bias` `[outputs]`, `y` `[rows, outputs]`, all of which is written.
///
/// # Panics
/// Lengths do not fit.
pub(crate) fn product<W: Element>(
    x: Rows<'_>,
    weights: &Panels<W>,
    bias: Option<&[f32]>,
    y: &mut [MaybeUninit<f32>],
) {
    let Rows { data, stride, count } = x;
    assert!(x.fits(weights.inputs), "rows shorter than the weight");
    assert!(y.len() == count * weights.outputs && bias.is_none_or(|bias| bias.len() == weights.outputs));
    let work = F32_WORK * weights.inputs * weights.outputs;
    let split = Split::new(count, weights.count(), weights.bytes(), work);
    let out = SyncPtr(y.as_mut_ptr().cast::<f32>());
    for_each_task(
        split.tasks(),
        split.threads,
        || (),
        |(), task| {
            let (rows, panels) = split.task(task);
            dispatch(ProductTask(Block {
                x: data[rows.start * stride..].as_ptr(),
                x_stride: stride,
                rows: rows.len(),
                weights,
                panels,
                bias,
                // SAFETY: inside `y`, whose length was checked; each task has its own rows and columns.
                y: unsafe { out.get().add(rows.start * weights.outputs) },
                y_stride: weights.outputs,
            }));
        },
    );
}

/// A product as tasks: some rows through some panels each.
pub(crate) struct Split {
    rows: usize,
    panels: usize,
    /// Number of groups of panels, each of them a task.
    groups: usize,
    /// Threads to run the tasks on.
    pub(crate) threads: usize,
}

impl Split {
    /// Of `rows` through `panels` of `bytes` together; `work` is that of a row, in units of which
    /// [`WORK_PER_NS`] are done in a nanosecond.
    pub(crate) fn new(rows: usize, panels: usize, bytes: usize, work: usize) -> Self {
        let time_ns = (bytes / BYTES_PER_NS).max(rows * work / WORK_PER_NS);
        let threads = if time_ns < SPLIT_NS { 1 } else { num_threads() };
        let wanted = if threads == 1 { 1 } else { PARTS * threads };
        let groups = wanted.div_ceil(rows.div_ceil(BLOCK_ROWS).max(1)).clamp(1, panels.max(1));
        Self { rows, panels, groups, threads }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS) * self.groups
    }

    /// Rows and panels of a task.
    pub(crate) fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (block, group) = (task / self.groups, task % self.groups);
        let rows = block * BLOCK_ROWS..self.rows.min((block + 1) * BLOCK_ROWS);
        (rows, group * self.panels / self.groups..(group + 1) * self.panels / self.groups)
    }
}

/// Some rows through some panels.
pub(crate) struct Block<'a, W> {
    pub(crate) x: *const f32,
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    pub(crate) weights: &'a Panels<W>,
    pub(crate) panels: Range<usize>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) y: *mut f32,
    pub(crate) y_stride: usize,
}

/// The rows and panels of a task of [`product`].
struct ProductTask<'a, W>(Block<'a, W>);

// SAFETY: `product` checks all lengths; each task has its own rows and columns of `y`.
unsafe impl<W: Element> Kernel for ProductTask<'_, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        self.0.run::<I>();
    }
}

impl<W: Element> Block<'_, W> {
    /// Writes `rows` rows of `y`, the columns of `panels`.
    ///
    /// # Safety
    /// As [`Isa`]; `x` and `y` are valid for `rows` rows, and no other thread accesses these columns of `y`.
    #[inline(always)]
    pub(crate) unsafe fn run<I: Isa>(self) {
        let Self { x, x_stride, rows, weights, panels, bias, y, y_stride } = self;
        let k = weights.inputs;
        let tiles = rows.div_ceil(TILE_ROWS);
        for panel in panels {
            let w = weights.data.as_ptr().add(panel * k * PANEL);
            let first = panel * PANEL;
            let width = PANEL.min(weights.outputs - first);
            let bias = if let Some(bias) = bias { Some(&bias[first..first + width]) } else { None };
            // A single tile prefetches the lines ahead; several share the lines of the next panel.
            let lines = PANEL * size_of::<W>() / CACHE_LINE;
            let share = lines.div_ceil(tiles.max(1));
            for tile in 0..tiles {
                let (start, end) = (tile * rows / tiles, (tile + 1) * rows / tiles);
                let ahead =
                    if tiles == 1 { AHEAD } else { k * PANEL * size_of::<W>() + tile * share * CACHE_LINE };
                let fetched = share.min(lines.saturating_sub(tile * share));
                let tile = Tile {
                    fetch: (w.cast::<u8>().wrapping_add(ahead), fetched * CACHE_LINE),
                    x: x.add(start * x_stride),
                    x_stride,
                    k,
                    w,
                    bias,
                    y: y.add(start * y_stride + first),
                    y_stride,
                    width,
                };
                match end - start {
                    1 => tile.panel::<I, 1>(),
                    2 => tile.panel::<I, 2>(),
                    3 => tile.panel::<I, 3>(),
                    4 => tile.panel::<I, 4>(),
                    5 => tile.panel::<I, 5>(),
                    _ => tile.panel::<I, TILE_ROWS>(),
                }
            }
        }
    }
}

/// Up to [`TILE_ROWS`] rows through one panel.
struct Tile<'a, W> {
    /// What to prefetch: its address, and bytes per input.
    fetch: (*const u8, usize),
    x: *const f32,
    x_stride: usize,
    k: usize,
    w: *const W,
    bias: Option<&'a [f32]>,
    y: *mut f32,
    y_stride: usize,
    width: usize,
}

impl<W: Element> Tile<'_, W> {
    #[inline(always)]
    unsafe fn panel<I: Isa, const R: usize>(&self) {
        if I::WIDE || R == 1 {
            self.columns::<I, R, 4>(0);
        } else if R == 2 {
            // With one vector each instruction would wait for the one before.
            self.columns::<I, R, 2>(0);
            self.columns::<I, R, 2>(2 * LANES);
        } else {
            for vector in 0..PANEL / LANES {
                self.columns::<I, R, 1>(vector * LANES);
            }
        }
    }

    /// `R` rows, `C` vectors of columns from `first` on.
    #[inline(always)]
    unsafe fn columns<I: Isa, const R: usize, const C: usize>(&self, first: usize) {
        let mut sums = [[I::splat(0.0); C]; R];
        let mut w = self.w.add(first);
        let mut x = [self.x; R];
        for (row, x) in x.iter_mut().enumerate() {
            *x = self.x.add(row * self.x_stride);
        }
        let mut fetch = self.fetch.0;
        for _ in 0..self.k {
            for line in (0..self.fetch.1).step_by(CACHE_LINE) {
                prefetch::<FIRST_LEVEL>(fetch.wrapping_add(line));
            }
            fetch = fetch.wrapping_add(PANEL * size_of::<W>());
            let mut weights = [I::splat(0.0); C];
            for (column, weights) in weights.iter_mut().enumerate() {
                *weights = W::load::<I>(w.add(column * LANES));
            }
            for row in 0..R {
                let value = I::splat(*x[row]);
                for column in 0..C {
                    sums[row][column] = I::fma(value, weights[column], sums[row][column]);
                }
                x[row] = x[row].add(1);
            }
            w = w.add(PANEL);
        }
        // Through memory: loops that index `sums` below would keep it out of the registers above.
        let mut kept = MaybeUninit::<[[[f32; LANES]; C]; R]>::uninit();
        let kept = kept.as_mut_ptr().cast::<f32>();
        for (row, sums) in sums.iter().enumerate() {
            for (column, &sum) in sums.iter().enumerate() {
                I::store(kept.add((row * C + column) * LANES), sum);
            }
        }
        for row in 0..R {
            let (sums, y) = (kept.add(row * C * LANES), self.y.add(row * self.y_stride + first));
            self.finish::<I, C>(sums, first, y);
        }
    }

    /// Writes the sums of `C` vectors of columns from `first` on to `y`, those that exist, with their bias.
    #[inline(always)]
    unsafe fn finish<I: Isa, const C: usize>(&self, sums: *const f32, first: usize, y: *mut f32) {
        let count = self.width.saturating_sub(first);
        for at in (0..(C * LANES).min(count)).step_by(LANES) {
            let mut sum = I::load(sums.add(at));
            if let Some(bias) = self.bias {
                sum = I::add(sum, load_part::<I>(bias.as_ptr().add(first + at), count - at, 0.0));
            }
            store_part::<I>(y.add(at), sum, count - at);
        }
    }
}
