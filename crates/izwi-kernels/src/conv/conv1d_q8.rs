//! Convolution along rows in 8 bits: weights with one scale for each output, activations with one for each row.
//!
//! The products of a tap are summed exactly, as integers; taps are added in f32, in order. A row is therefore the same bits
//! alone and among others.

use std::ops::Range;

use crate::arch::{DEPTH, Int8Isa, Int8Kernel, LANES, LINE, dispatch_int8, load_part, store_part};
use crate::packed::{CACHE_LINE, Line, Memory, Packed, PackedKind, Part, Sizes};
use crate::quantised_rows::{OFFSET, QuantisedRows};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Vectors of columns in a panel: with 6 rows their sums fill the registers.
const VECTORS: usize = 4;
/// Columns of a panel.
const PANEL: usize = VECTORS * LANES;
/// Bytes of the scales before a panel's weights.
const SCALES: usize = PANEL * size_of::<f32>();
/// Bytes of the weights of [`DEPTH`] inputs in a panel.
const LINES: usize = VECTORS * LINE;
/// Rows of a task, where there are more: with the weights of a tap they stay in the first-level cache.
const BLOCK_ROWS: usize = 48;
/// Products up to which one thread is faster than two.
const SPLIT_WORK: usize = 4 * 1024 * 1024;
/// The largest level of a weight.
const MOST: f32 = 127.0;

/// A weight `[taps, inputs, outputs]` at 8 bits, as panels `[outputs / 64]`: 64 scales, then lines `[taps][inputs / 4][columns /
/// 16]`. Missing inputs and columns are zero.
#[derive(Debug, Clone)]
pub struct ConvPanelsQ8 {
    data: Memory<Line>,
    taps: usize,
    inputs: usize,
    outputs: usize,
}

impl ConvPanelsQ8 {
    /// Packs a weight `[outputs, taps, inputs]`. An output whose weights are multiples of one step up to ±127, as those of a
    /// checkpoint at 8 bits, is kept exactly; else the largest weight of an output is ±127.
    ///
    /// # Panics
    /// The length of the weight does not fit.
    pub fn pack(weight: &[f32], outputs: usize, taps: usize, inputs: usize) -> Self {
        let depth = taps * inputs;
        assert!(weight.len() == outputs * depth, "a weight of another size");
        let bytes = Self::bytes_of([taps, inputs, outputs]);
        let mut packed = vec![OFFSET; bytes];
        let panel_bytes = Self::panel_bytes(taps, inputs);
        packed.chunks_exact_mut(panel_bytes).for_each(|panel| panel[..SCALES].fill(0));
        for (output, weight) in weight.chunks_exact(depth.max(1)).enumerate() {
            let (panel, column) =
                (&mut packed[output / PANEL * panel_bytes..][..panel_bytes], output % PANEL);
            let scale = scale_of(weight);
            panel[column * size_of::<f32>()..][..size_of::<f32>()].copy_from_slice(&scale.to_ne_bytes());
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (at, value) in weight.iter().enumerate() {
                let level = (value * inverse).round_ties_even().clamp(-MOST, MOST) as i32;
                panel[Self::place(inputs, column, at / inputs, at % inputs)] =
                    (level + i32::from(OFFSET)) as u8;
            }
        }
        let lines = packed.as_chunks::<CACHE_LINE>().0.iter().map(|line| Line(*line));
        Self { data: Memory::Own(lines.collect()), taps, inputs, outputs }
    }

    /// Place of a weight in its panel.
    fn place(inputs: usize, column: usize, tap: usize, input: usize) -> usize {
        let line = tap * inputs.div_ceil(DEPTH) + input / DEPTH;
        SCALES + line * LINES + column / LANES * LINE + column % LANES * DEPTH + input % DEPTH
    }

    fn panel_bytes(taps: usize, inputs: usize) -> usize {
        SCALES + taps * inputs.div_ceil(DEPTH) * LINES
    }

    fn bytes_of([taps, inputs, outputs]: Sizes) -> usize {
        outputs.div_ceil(PANEL) * Self::panel_bytes(taps, inputs)
    }

    /// Number of panels.
    fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }
}

/// The step between the levels of an output's weights.
fn scale_of(weight: &[f32]) -> f32 {
    let (mut least, mut most) = (f32::INFINITY, 0f32);
    for value in weight {
        most = most.max(value.abs());
        least = if *value == 0.0 { least } else { least.min(value.abs()) };
    }
    if most == 0.0 {
        return 0.0;
    }
    // The smallest weight is one level of a weight that was quantised before, or a few where the row is short.
    for levels in 1..=3 {
        let step = least / levels as f32;
        let is_level = |value: &f32| (value / step - (value / step).round_ties_even()).abs() < 1e-3;
        if most <= MOST * step * 1.001 && weight.iter().all(is_level) {
            return most / (most / step).round_ties_even(); // of the largest, whose rounding weighs least
        }
    }
    most / MOST
}

impl Packed for ConvPanelsQ8 {
    fn kind(&self) -> PackedKind {
        PackedKind::ConvQ8
    }

    fn sizes(&self) -> Sizes {
        [self.taps, self.inputs, self.outputs]
    }

    fn data(&self) -> &[u8] {
        self.data.bytes()
    }

    fn unpack(kind: PackedKind, [taps, inputs, outputs]: Sizes, data: Part) -> Option<Self> {
        let fits = kind == PackedKind::ConvQ8 && data.len() == Self::bytes_of([taps, inputs, outputs]);
        fits.then_some(Self { data: Memory::Part(data), taps, inputs, outputs })
    }
}

/// The rows of a convolution: tap `t` of row `i` reads row `starts[i] + t * dilation` of `data`.
#[derive(Debug, Clone, Copy)]
pub struct ConvRowsQ8<'a> {
    /// Input rows.
    pub data: &'a QuantisedRows,
    /// For each output row the input row that its first tap reads.
    pub starts: &'a [u32],
    /// Input rows from one tap to the next.
    pub dilation: usize,
}

/// The convolution, and a residual where there is one: `bias` `[outputs]`, `residual` and `y` `[starts, outputs]`.
///
/// # Panics
/// A row reads outside the data, or lengths do not fit.
pub fn conv1d_q8(
    x: ConvRowsQ8<'_>,
    weights: &ConvPanelsQ8,
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
    y: &mut [f32],
) {
    let (rows, outputs) = (x.starts.len(), weights.outputs);
    assert!(y.len() == rows * outputs && bias.is_none_or(|bias| bias.len() == outputs));
    assert!(residual.is_none_or(|residual| residual.len() == y.len()) && x.data.inputs() == weights.inputs);
    if rows == 0 || weights.taps == 0 {
        return;
    }
    let last = x.starts.iter().copied().max().unwrap_or(0) as usize + (weights.taps - 1) * x.dilation;
    assert!(last < x.data.rows(), "a row reads outside the data");
    let alone = rows * weights.taps * weights.inputs * outputs <= SPLIT_WORK;
    let threads = if alone { 1 } else { num_threads() };
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let wanted = if threads == 1 { 1 } else { 4 * threads };
    let groups = wanted.div_ceil(blocks).clamp(1, weights.panels());
    let out = SyncPtr(y.as_mut_ptr());
    for_each_task(blocks * groups, threads, Vec::new, |totals, index| {
        let (block, group) = (index / groups, index % groups);
        let rows = block * BLOCK_ROWS..rows.min((block + 1) * BLOCK_ROWS);
        let panels = group * weights.panels() / groups..(group + 1) * weights.panels() / groups;
        // SAFETY: inside `y`, whose length was checked; each task has its own rows and columns of it.
        let y = unsafe { out.get().add(rows.start * outputs) };
        dispatch_int8(Block { x, rows, weights, panels, bias, residual, totals, y });
    });
}

/// Some rows through some panels; `y` is the first of these rows.
struct Block<'a> {
    x: ConvRowsQ8<'a>,
    rows: Range<usize>,
    weights: &'a ConvPanelsQ8,
    panels: Range<usize>,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
    totals: &'a mut Vec<f32>, // [rows, PANEL]
    y: *mut f32,
}

// SAFETY: `conv1d_q8` checks that every row read is inside the data; each task has its own rows and columns of `y`.
unsafe impl Int8Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(mut self) {
        assert!(self.x.data.kept() == D::KEPT, "another level kept the rows");
        let weights = self.weights;
        let (rows, lines) = (self.rows.len(), weights.inputs.div_ceil(DEPTH));
        let tiles = rows.div_ceil(if D::WIDE { 6 } else { D::ROWS.min(4) });
        self.totals.clear();
        self.totals.resize(rows * PANEL, 0.0);
        for panel in self.panels.clone() {
            self.totals.fill(0.0);
            let at = panel * ConvPanelsQ8::panel_bytes(weights.taps, weights.inputs);
            let scales = weights.data.as_ptr().cast::<u8>().add(at);
            for tap in 0..weights.taps {
                let w = scales.add(SCALES + tap * lines * LINES);
                for tile in 0..tiles {
                    let (from, to) = (tile * rows / tiles, (tile + 1) * rows / tiles);
                    self.tile::<D>(from..to, tap, w, lines);
                }
            }
            self.write::<D>(panel, scales.cast());
        }
    }
}

impl Block<'_> {
    /// Adds the products of a tap to some rows of a panel.
    #[inline(always)]
    unsafe fn tile<D: Int8Isa>(&mut self, rows: Range<usize>, tap: usize, w: *const u8, lines: usize) {
        match rows.len() {
            6.. if D::WIDE => self.rows::<D, 6>(rows.start, tap, w, lines),
            5 if D::WIDE => self.rows::<D, 5>(rows.start, tap, w, lines),
            4 => self.rows::<D, 4>(rows.start, tap, w, lines),
            3 => self.rows::<D, 3>(rows.start, tap, w, lines),
            2 => self.rows::<D, 2>(rows.start, tap, w, lines),
            _ => self.rows::<D, 1>(rows.start, tap, w, lines),
        }
    }

    #[inline(always)]
    unsafe fn rows<D: Int8Isa, const R: usize>(
        &mut self,
        first: usize,
        tap: usize,
        w: *const u8,
        lines: usize,
    ) {
        if D::WIDE {
            return self.vectors::<D, R, VECTORS>(first, tap, (w, 0), lines);
        }
        for vector in 0..VECTORS {
            self.vectors::<D, R, 1>(first, tap, (w, vector), lines);
        }
    }

    /// `R` rows from `first` on, `C` vectors of columns from vector `w.1` on.
    #[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
    #[inline(always)]
    unsafe fn vectors<D: Int8Isa, const R: usize, const C: usize>(
        &mut self,
        first: usize,
        tap: usize,
        (w, vector): (*const u8, usize),
        lines: usize,
    ) {
        let ConvRowsQ8 { data, starts, dilation } = self.x;
        let (values, scales, corrections) = data.parts();
        let mut x = [values.as_ptr(); R];
        let mut factors = [0f32; R];
        let mut sums = [[D::start::<OFFSET>(0); C]; R];
        for row in 0..R {
            let at = *starts.get_unchecked(self.rows.start + first + row) as usize + tap * dilation;
            x[row] = x[row].add(at * data.stride());
            factors[row] = *scales.as_ptr().add(at);
            sums[row] = [D::start::<OFFSET>(*corrections.as_ptr().add(at)); C];
        }
        let mut w = w.add(vector * LINE);
        for line in 0..lines {
            let mut weights = [D::bytes(w); C];
            for column in 0..C {
                weights[column] = D::bytes(w.add(column * LINE));
            }
            for row in 0..R {
                for column in 0..C {
                    let sum = sums[row][column];
                    sums[row][column] = D::dot::<OFFSET>(sum, weights[column], x[row].add(line * D::KEPT));
                }
            }
            w = w.add(LINES);
        }
        let totals = self.totals.as_mut_ptr().add(first * PANEL + vector * LANES);
        for row in 0..R {
            let factor = D::splat(factors[row]);
            for column in 0..C {
                let total = totals.add(row * PANEL + column * LANES);
                D::store(total, D::fma(D::floats(sums[row][column]), factor, D::load(total)));
            }
        }
    }

    /// The totals of a panel with the scales of its outputs to `y`.
    #[inline(always)]
    unsafe fn write<D: Int8Isa>(&self, panel: usize, scales: *const f32) {
        let outputs = self.weights.outputs;
        let first = panel * PANEL;
        for at in (first..outputs.min(first + PANEL)).step_by(LANES) {
            let part = outputs - at;
            let scale = D::load(scales.add(at - first));
            let bias = match self.bias {
                Some(bias) => load_part::<D>(bias.as_ptr().add(at), part, 0.0),
                None => D::splat(0.0),
            };
            for (row, totals) in self.totals.chunks_exact(PANEL).enumerate() {
                let mut y = D::fma(D::load(totals.as_ptr().add(at - first)), scale, bias);
                if let Some(residual) = self.residual {
                    let residual = residual.as_ptr().add((self.rows.start + row) * outputs + at);
                    y = D::add(y, load_part::<D>(residual, part, 0.0));
                }
                store_part::<D>(self.y.add(row * outputs + at), y, part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::{ConvPanels, ConvRows, conv1d};
    use crate::tests::{check, values};

    const STARTS: [u32; 10] = [0, 1, 5, 9, 2, 3, 7, 10, 4, 11];
    /// Outputs, taps, inputs and dilation.
    const SHAPES: [[usize; 4]; 4] = [[1, 7, 5, 2], [17, 1, 33, 1], [96, 3, 20, 9], [130, 2, 600, 1]];

    fn quantised(x: &[f32], inputs: usize) -> QuantisedRows {
        let mut rows = QuantisedRows::zeros(x.len() / inputs, inputs);
        rows.write(0, x);
        rows
    }

    /// Rows as they are after their quantisation.
    fn rounded(x: &[f32], inputs: usize) -> Vec<f32> {
        let rows = quantised(x, inputs);
        let (_, scales, _) = rows.parts();
        let row = |row: usize| (0..inputs).map(move |at| (row, at));
        let value = |(row, at): (usize, usize)| f32::from(rows.value(row, at)) * scales[row];
        (0..rows.rows()).flat_map(row).map(value).collect()
    }

    #[test]
    fn every_level_convolves_alike_and_equals_the_product_of_rounded_values() {
        for [outputs, taps, inputs, dilation] in SHAPES {
            // Multiples of a step, once the step itself, which are kept exactly.
            let mut weight: Vec<f32> =
                values(outputs * taps * inputs, 1).iter().map(|x| (x * 90.0).round() * 0.013).collect();
            weight.iter_mut().step_by(taps * inputs).for_each(|first| *first = 0.013);
            let (x, bias) = (values((11 + taps * dilation) * inputs, 2), values(outputs, 3));
            let residual = values(STARTS.len() * outputs, 4);
            let panels = ConvPanelsQ8::pack(&weight, outputs, taps, inputs);
            let run = || {
                let mut y = vec![0.0; residual.len()];
                let data = &quantised(&x, inputs);
                let x = ConvRowsQ8 { data, starts: &STARTS, dilation };
                conv1d_q8(x, &panels, Some(&bias), Some(&residual), &mut y);
                y
            };
            check("conv1d q8", 2e-5, run);
            let mut expected = vec![0.0; residual.len()];
            let x = ConvRows { data: &rounded(&x, inputs), starts: &STARTS, dilation };
            conv1d(x, &ConvPanels::pack(&weight, outputs, taps, inputs), Some(&bias), &mut expected);
            for ((ours, expected), residual) in run().iter().zip(expected).zip(&residual) {
                let off = (ours - expected - residual).abs();
                assert!(off < 1e-4 * expected.abs().max(1.0), "{ours} {expected} {residual}");
            }
        }
    }

    #[test]
    fn rows_of_several_blocks_are_the_bits_of_each_alone() {
        let [outputs, taps, inputs, dilation] = [200, 3, 150, 2];
        let panels = ConvPanelsQ8::pack(&values(outputs * taps * inputs, 1), outputs, taps, inputs);
        let data = &quantised(&values(120 * inputs, 2), inputs);
        let run = |starts: &[u32]| {
            let mut y = vec![0.0; starts.len() * outputs];
            conv1d_q8(ConvRowsQ8 { data, starts, dilation }, &panels, None, None, &mut y);
            y
        };
        let starts: Vec<u32> = (0..110).collect();
        let whole = run(&starts);
        for row in [0, 1, 5, 47, 48, 95, 96, 109] {
            assert_eq!(run(&[row]), whole[row as usize * outputs..][..outputs], "{row}");
        }
    }

    #[test]
    fn an_output_without_weights_is_its_bias() {
        let mut weight = values(3 * 40, 5);
        weight[40..80].fill(0.0);
        let panels = ConvPanelsQ8::pack(&weight, 3, 4, 10);
        let data = &quantised(&values(4 * 10, 2), 10);
        let mut y = [f32::NAN; 3];
        let x = ConvRowsQ8 { data, starts: &[0], dilation: 1 };
        conv1d_q8(x, &panels, Some(&[1.0, 2.0, 3.0]), None, &mut y);
        assert!(y[1] == 2.0 && y.iter().all(|y| y.is_finite()), "{y:?}");
    }

    #[test]
    fn other_weights_are_within_half_a_level_of_their_outputs() {
        let weight = values(3 * 40, 5);
        let ConvPanelsQ8 { data, .. } = &ConvPanelsQ8::pack(&weight, 3, 4, 10);
        let bytes = data.bytes();
        for (output, weight) in weight.chunks_exact(40).enumerate() {
            let most = weight.iter().fold(0f32, |most, x| x.abs().max(most));
            let scale = f32::from_ne_bytes(*bytes[4 * output..].first_chunk().unwrap());
            assert!((scale - most / 127.0).abs() < 1e-7);
            for (at, value) in weight.iter().enumerate() {
                let level = f32::from(bytes[ConvPanelsQ8::place(10, output, at / 10, at % 10)]) - 128.0;
                assert!((level * scale - value).abs() <= 0.501 * scale);
            }
        }
    }

    #[test]
    #[should_panic(expected = "a row reads outside the data")]
    fn rows_that_do_not_exist_panic() {
        let panels = ConvPanelsQ8::pack(&[1.0; 12], 2, 3, 2);
        let data = &QuantisedRows::zeros(4, 2);
        conv1d_q8(ConvRowsQ8 { data, starts: &[2], dilation: 1 }, &panels, None, None, &mut [0.0; 2]);
    }
}
