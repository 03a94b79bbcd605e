//! Matrix product with the right side packed in panels of 64 columns, at f32 or f16.
//!
//! An output element is one chain of multiply-adds over the inputs in order, whatever tile it falls in: rows are the
//! same bits alone and in any batch.

use std::ops::Range;

use half::f16;

use super::isa::{Element, Isa, Job, LANES, dispatch};
use super::threads::{Shared, for_each_task};

/// Columns of a panel.
pub(crate) const PANEL: usize = 64;
/// Rows of a register tile.
const TILE_ROWS: usize = 6;
/// Rows of a task, where there are more: they stay in the second-level cache while every panel passes.
const BLOCK_ROWS: usize = 48;
/// Multiply-adds up to which a second thread costs more than it brings, if there are at most [`SPLIT_WEIGHTS`].
const SPLIT_WORK: usize = 2 * 1024 * 1024;
/// Weights that one thread reads in the time it takes to wake another.
const SPLIT_WEIGHTS: usize = 512 * 1024;

/// A matrix `[inputs, outputs]` as panels `[outputs / 64][inputs][64]`, the last one filled up with zeros.
#[derive(Debug, Clone)]
pub(crate) struct Panels<W> {
    data: Vec<W>,
    inputs: usize,
    outputs: usize,
}

/// Where a matrix lies in memory, in elements.
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
        Self { data, inputs, outputs }
    }

    /// Columns.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of panels.
    pub(crate) fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Column `output`, all inputs.
    pub(crate) fn column(&self, output: usize) -> impl Iterator<Item = f32> + '_ {
        let start = output / PANEL * self.inputs * PANEL + output % PANEL;
        (0..self.inputs).map(move |input| self.data[start + input * PANEL].to_f32())
    }
}

/// Left rows: row `i` is `data[i * stride..][..inputs]`; rows may overlap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// `y[rows, outputs] = x W (+ bias)`.
pub(crate) fn product<W: Element>(x: Rows<'_>, weights: &Panels<W>, bias: Option<&[f32]>, y: &mut [f32]) {
    let Rows { data, stride, count } = x;
    assert!(
        count == 0 || data.len() >= (count - 1) * stride + weights.inputs,
        "rows shorter than the weight"
    );
    assert!(y.len() == count * weights.outputs && bias.is_none_or(|bias| bias.len() == weights.outputs));
    let threads = rayon::current_num_threads();
    let blocks = count.div_ceil(BLOCK_ROWS);
    let few = count <= LANES;
    let (size, work) = (weights.data.len(), count * weights.data.len());
    let wanted = if (size <= SPLIT_WEIGHTS && work <= SPLIT_WORK) || threads == 1 {
        1
    } else if few {
        threads
    } else {
        4 * threads
    };
    let groups = wanted.div_ceil(blocks.max(1)).clamp(1, weights.count().max(1));
    let out = Shared(y.as_mut_ptr());
    let task = |task: usize| {
        let (block, group) = (task / groups, task % groups);
        let first = block * BLOCK_ROWS;
        let panels = group * weights.count() / groups..(group + 1) * weights.count() / groups;
        dispatch(Block {
            x: data[first * stride..].as_ptr(),
            x_stride: stride,
            rows: BLOCK_ROWS.min(count - first),
            weights,
            panels,
            bias,
            // SAFETY: inside `y`, whose length was checked.
            y: unsafe { out.get().add(first * weights.outputs) },
            y_stride: weights.outputs,
        });
    };
    for_each_task(blocks * groups, if wanted == 1 { 1 } else { threads }, || (), |(), index| task(index));
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

impl<W: Element> Job for Block<'_, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let Self { x, x_stride, rows, weights, panels, bias, y, y_stride } = self;
        let k = weights.inputs;
        let tiles = rows.div_ceil(TILE_ROWS);
        for panel in panels {
            let w = weights.data.as_ptr().add(panel * k * PANEL);
            let first = panel * PANEL;
            let width = PANEL.min(weights.outputs - first);
            let bias = bias.map(|bias| &bias[first..first + width]);
            for tile in 0..tiles {
                let (start, end) = (tile * rows / tiles, (tile + 1) * rows / tiles);
                let tile = Tile {
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
        } else {
            (0..4).for_each(|vector| self.columns::<I, R, 1>(vector * LANES));
        }
    }

    /// `R` rows, `C` vectors of columns from `first` on.
    #[inline(always)]
    unsafe fn columns<I: Isa, const R: usize, const C: usize>(&self, first: usize) {
        let mut sums = [[I::splat(0.0); C]; R];
        let mut w = self.w.add(first);
        let mut x: [*const f32; R] = std::array::from_fn(|row| self.x.add(row * self.x_stride));
        for _ in 0..self.k {
            let weights: [I::V; C] = std::array::from_fn(|column| W::load::<I>(w.add(column * LANES)));
            for row in 0..R {
                let value = I::splat(*x[row]);
                for column in 0..C {
                    sums[row][column] = I::fma(value, weights[column], sums[row][column]);
                }
                x[row] = x[row].add(1);
            }
            w = w.add(PANEL);
        }
        for (row, sums) in sums.iter().enumerate() {
            let y = self.y.add(row * self.y_stride);
            for (column, &sum) in sums.iter().enumerate() {
                let at = first + column * LANES;
                self.finish::<I>(sum, at, y);
            }
        }
    }

    /// Adds the bias to one vector and stores the columns that exist.
    #[inline(always)]
    unsafe fn finish<I: Isa>(&self, sum: I::V, at: usize, y: *mut f32) {
        if at + LANES <= self.width {
            let sum = match self.bias {
                Some(bias) => I::add(sum, I::load(bias.as_ptr().add(at))),
                None => sum,
            };
            return I::store(y.add(at), sum);
        }
        let mut lanes = [0f32; LANES];
        I::store(lanes.as_mut_ptr(), sum);
        for (lane, column) in (at..self.width).enumerate() {
            *y.add(column) = lanes[lane] + self.bias.map_or(0.0, |bias| bias[column]);
        }
    }
}

/// A matrix at f16 where that loses nothing, else at f32.
#[derive(Debug, Clone)]
pub(crate) enum Weights {
    /// Every value is one of f16's.
    Half(Panels<f16>),
    /// Some value is not.
    Single(Panels<f32>),
}

impl Weights {
    /// Packs a weight `[outputs, inputs]`.
    pub(crate) fn pack(weight: &[f32], inputs: usize, outputs: usize) -> Self {
        let strides = Strides { input: 1, output: inputs };
        if weight.iter().all(|&value| f16::from_f32(value).to_f32().to_bits() == value.to_bits()) {
            Self::Half(Panels::pack(weight, strides, inputs, outputs))
        } else {
            Self::Single(Panels::pack(weight, strides, inputs, outputs))
        }
    }

    /// `y[rows, outputs] = x W (+ bias)`.
    pub(crate) fn product(&self, x: Rows<'_>, bias: Option<&[f32]>, y: &mut [f32]) {
        match self {
            Self::Half(panels) => product(x, panels, bias, y),
            Self::Single(panels) => product(x, panels, bias, y),
        }
    }

    /// Appends column `output`, one value per input.
    pub(crate) fn push_column(&self, output: usize, to: &mut Vec<f32>) {
        match self {
            Self::Half(panels) => to.extend(panels.column(output)),
            Self::Single(panels) => to.extend(panels.column(output)),
        }
    }
}
