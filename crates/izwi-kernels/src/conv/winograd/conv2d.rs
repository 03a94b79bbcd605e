//! Convolution of 3 x 3 taps over planes by F(4 x 4, 3 x 3): 36 products per 16 outputs instead of 144.
//!
//! A plane has a border of zeros, and so has its answer. Errors are about 123 dB below the output where a plain sum has 140.

use std::ops::Range;

use super::{Matrices, Tiles};
use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::conv::conv1d::ConvPanels;
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Taps along each axis.
const TAPS: usize = 3;
/// Rows and columns of a tile.
const TILE: usize = 4;
/// Products of a tile along each axis, the last one at infinity; and the rows and columns that it reads.
const PRODUCTS: usize = TILE + TAPS - 1;
/// Where the polynomials of each axis are multiplied.
const POINTS: [f64; PRODUCTS - 1] = [0.0, 0.625, -0.625, 1.5, -1.5];
const MATRICES: Matrices<TAPS, TILE, PRODUCTS> = Matrices::new(&POINTS);
const INPUT: [[f32; PRODUCTS]; PRODUCTS] = MATRICES.input;
const OUTPUT: [[f32; PRODUCTS]; TILE] = MATRICES.output;
const KERNEL: [[f64; TAPS]; PRODUCTS] = MATRICES.kernel;
/// Elements of the transformed tiles of a task, where there are more: they stay in the second-level cache.
const BLOCK_ELEMENTS: usize = 128 * 1024;
/// Tiles of a task at least, so that its weights are read from the cache, and at most.
const BLOCK_TILES: [usize; 2] = [16, 48];

/// Taps of a weight that [`pack_winograd_2d`] returns: its sizes are `[PACKED_TAPS_2D, inputs, outputs]`.
pub const PACKED_TAPS_2D: usize = PRODUCTS * PRODUCTS;

/// Packs a weight `[outputs, 3 rows, 3 columns, inputs]` for [`winograd_conv2d`].
///
/// # Panics
/// The length of the weight does not fit.
pub fn pack_winograd_2d(weight: &[f32], outputs: usize, inputs: usize) -> ConvPanels {
    assert!(weight.len() == outputs * TAPS * TAPS * inputs, "a weight of another size");
    let mut products = vec![0f32; outputs * PACKED_TAPS_2D * inputs];
    let of_outputs = weight.chunks_exact((TAPS * TAPS * inputs).max(1));
    for (weight, products) in of_outputs.zip(products.chunks_exact_mut((PACKED_TAPS_2D * inputs).max(1))) {
        for input in 0..inputs {
            let tap = |row: usize, column: usize| f64::from(weight[(row * TAPS + column) * inputs + input]);
            for (along_rows, of_row) in KERNEL.iter().enumerate() {
                let columns: [f64; TAPS] =
                    std::array::from_fn(|column| (0..TAPS).map(|row| of_row[row] * tap(row, column)).sum());
                for (along_columns, of_column) in KERNEL.iter().enumerate() {
                    let product: f64 = columns.iter().zip(of_column).map(|(x, tap)| x * tap).sum();
                    products[(along_rows * PRODUCTS + along_columns) * inputs + input] = product as f32;
                }
            }
        }
    }
    ConvPanels::pack(&products, outputs, PACKED_TAPS_2D, inputs)
}

/// A plane `[rows, columns, inputs]` within zeros.
#[derive(Debug, Clone, Copy)]
pub struct PaddedPlane<'a> {
    /// `[rows + 2, width, inputs]`: element 0 of the plane is in row 1 and column 1, and all around it is zero.
    pub data: &'a [f32],
    /// Rows of the plane.
    pub rows: usize,
    /// Columns of the plane.
    pub columns: usize,
    /// Columns of the plane and of the zeros around it: two more or above.
    pub width: usize,
}

/// What is done with the sums before they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epilogue {
    /// They are added to what is there.
    pub accumulates: bool,
    /// They are at least 0.
    pub has_relu: bool,
}

/// The convolution: `bias` `[outputs]`, `y` `[rows + 2, width, outputs]`, of which the zeros around the plane are left
/// alone.
///
/// # Panics
/// Lengths do not fit.
pub fn winograd_conv2d(
    x: PaddedPlane<'_>,
    weights: &ConvPanels,
    bias: &[f32],
    y: &mut [f32],
    epilogue: Epilogue,
) {
    let [products, inputs, outputs] = weights.shape();
    assert!(products == PACKED_TAPS_2D && x.width >= x.columns + 2, "weights or a plane of another kind");
    let elements = (x.rows + 2) * x.width;
    assert!(x.data.len() == elements * inputs && y.len() == elements * outputs && bias.len() == outputs);
    if x.rows == 0 || x.columns == 0 || inputs == 0 {
        return;
    }
    let tiles = x.rows.div_ceil(TILE) * x.columns.div_ceil(TILE);
    let threads = num_threads();
    let [least, most] = BLOCK_TILES;
    let size = (BLOCK_ELEMENTS / (PACKED_TAPS_2D * inputs)).clamp(least, most);
    let blocks = tiles.div_ceil(size);
    let work = Filter { x, weights, bias, y: SyncPtr(y.as_mut_ptr()), epilogue };
    let scratch = || (Vec::new(), Vec::new());
    for_each_task(blocks, threads, scratch, |(read, products), block| {
        let tiles = block * tiles / blocks..(block + 1) * tiles / blocks;
        read.resize(tiles.len() * PACKED_TAPS_2D * inputs, 0f32);
        dispatch(Block { filter: &work, tiles, read, products });
    });
}

/// The operands of a call, which all tasks share.
struct Filter<'a> {
    x: PaddedPlane<'a>,
    weights: &'a ConvPanels,
    bias: &'a [f32],
    y: SyncPtr,
    epilogue: Epilogue,
}

impl Filter<'_> {
    /// First row and column of a tile.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize) {
        let across = self.x.columns.div_ceil(TILE);
        (tile / across * TILE, tile % across * TILE)
    }
}

/// Some tiles of the plane.
struct Block<'a> {
    filter: &'a Filter<'a>,
    tiles: Range<usize>,
    read: &'a mut [f32],        // [product][tile][inputs]
    products: &'a mut Vec<f32>, // of a panel: [product][tile][columns]
}

// SAFETY: `winograd_conv2d` checks all lengths; each task has its own tiles, and so its own elements of `y`.
unsafe impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        self.transform::<I>();
        match self.filter.weights.vectors() {
            1 if I::WIDE => self.panels::<I, 1, 8>(),
            1 => self.panels::<I, 1, 6>(),
            4 => self.panels::<I, 4, 6>(),
            _ => self.panels::<I, 6, 4>(),
        }
    }
}

impl Block<'_> {
    /// The tiles as products.
    #[inline(always)]
    unsafe fn transform<I: Isa>(&mut self) {
        let PaddedPlane { data, rows, width, .. } = self.filter.x;
        let (inputs, tiles, zeros) = (self.filter.weights.shape()[1], self.tiles.len(), [0f32; LANES]);
        let to = self.read.as_mut_ptr();
        for (at, tile) in self.tiles.clone().enumerate() {
            let (first_row, first_column) = self.filter.place(tile);
            for input in (0..inputs).step_by(LANES) {
                let count = inputs - input;
                // [column][product along rows]
                let mut half = [[I::splat(0.0); PRODUCTS]; PRODUCTS];
                for (column, half) in half.iter_mut().enumerate() {
                    let mut x = [I::splat(0.0); PRODUCTS];
                    for (row, x) in x.iter_mut().enumerate() {
                        // What is behind the zeros around the plane is zero too.
                        let is_inside = first_row + row < rows + 2 && first_column + column < width;
                        let index = ((first_row + row) * width + first_column + column) * inputs + input;
                        let from = if is_inside { data.as_ptr().add(index) } else { zeros.as_ptr() };
                        *x = load_part::<I>(from, count, 0.0);
                    }
                    *half = products::<I>(&x);
                }
                for along_rows in 0..PRODUCTS {
                    let mut x = [I::splat(0.0); PRODUCTS];
                    for (column, x) in x.iter_mut().enumerate() {
                        *x = half[column][along_rows];
                    }
                    for (along_columns, value) in products::<I>(&x).into_iter().enumerate() {
                        let product = along_rows * PRODUCTS + along_columns;
                        store_part::<I>(to.add((product * tiles + at) * inputs + input), value, count);
                    }
                }
            }
        }
    }

    /// Panels of `C` vectors, through register tiles of up to `R` rows.
    #[inline(always)]
    unsafe fn panels<I: Isa, const C: usize, const R: usize>(&mut self) {
        let (weights, read, tiles) = (self.filter.weights, self.read.as_ptr(), self.tiles.len());
        for panel in 0..weights.panels() {
            Tiles { weights, read, of: tiles, tiles }.multiply::<I, C, R>(panel, self.products);
            self.write::<I, C>(panel);
        }
    }

    /// The products of a panel as elements of the answer.
    #[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
    #[inline(always)]
    unsafe fn write<I: Isa, const C: usize>(&self, panel: usize) {
        let (tiles, columns, first_output) = (self.tiles.len(), C * LANES, panel * C * LANES);
        let Filter { x, weights, bias, y, epilogue } = self.filter;
        let [_, _, outputs] = weights.shape();
        for (at, tile) in self.tiles.clone().enumerate() {
            let (first_row, first_column) = self.filter.place(tile);
            for output in (0..columns.min(outputs - first_output)).step_by(LANES) {
                let count = outputs - first_output - output;
                // [product along columns][row]
                let mut half = [[I::splat(0.0); TILE]; PRODUCTS];
                for (along_columns, half) in half.iter_mut().enumerate() {
                    let mut values = [I::splat(0.0); PRODUCTS];
                    for (along_rows, value) in values.iter_mut().enumerate() {
                        let product = along_rows * PRODUCTS + along_columns;
                        *value =
                            I::load(self.products.as_ptr().add((product * tiles + at) * columns + output));
                    }
                    *half = outputs_of::<I>(&values, I::splat(0.0));
                }
                let bias = load_part::<I>(bias.as_ptr().add(first_output + output), count, 0.0);
                for row in 0..TILE.min(x.rows - first_row) {
                    let mut values = [I::splat(0.0); PRODUCTS];
                    for (along_columns, value) in values.iter_mut().enumerate() {
                        *value = half[along_columns][row];
                    }
                    let place = (first_row + row + 1) * x.width + first_column + 1;
                    let y = y.get().add(place * outputs + first_output + output);
                    let sums = outputs_of::<I>(&values, bias);
                    for column in 0..TILE.min(x.columns - first_column) {
                        let (y, mut sum) = (y.add(column * outputs), sums[column]);
                        if epilogue.accumulates {
                            sum = I::add(sum, load_part::<I>(y.cast_const(), count, 0.0));
                        }
                        if epilogue.has_relu {
                            sum = I::max(sum, I::splat(0.0));
                        }
                        store_part::<I>(y, sum, count);
                    }
                }
            }
        }
    }
}

/// The products of a row or a column of a tile.
#[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
#[inline(always)]
unsafe fn products<I: Isa>(x: &[I::V; PRODUCTS]) -> [I::V; PRODUCTS] {
    let mut products = [I::splat(0.0); PRODUCTS];
    for product in 0..PRODUCTS {
        for at in 0..PRODUCTS {
            if INPUT[product][at] != 0.0 {
                products[product] = I::fma(I::splat(INPUT[product][at]), x[at], products[product]);
            }
        }
    }
    products
}

/// A row or a column of a tile of the answer, and `bias`.
#[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
#[inline(always)]
unsafe fn outputs_of<I: Isa>(products: &[I::V; PRODUCTS], bias: I::V) -> [I::V; TILE] {
    let mut sums = [bias; TILE];
    for row in 0..TILE {
        for product in 0..PRODUCTS {
            if OUTPUT[row][product] != 0.0 {
                sums[row] = I::fma(I::splat(OUTPUT[row][product]), products[product], sums[row]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    /// A plane of `values` within zeros.
    fn plane([rows, columns, width, inputs]: [usize; 4], values: &[f32]) -> Vec<f32> {
        let mut data = vec![0.0; (rows + 2) * width * inputs];
        for (row, values) in values.chunks_exact(columns * inputs).enumerate() {
            data[((row + 1) * width + 1) * inputs..][..values.len()].copy_from_slice(values);
        }
        data
    }

    #[test]
    fn every_level_convolves_as_a_plain_sum() {
        for (rows, columns, width, inputs, outputs) in
            [(1, 1, 3, 5, 3), (4, 4, 6, 16, 16), (9, 7, 9, 33, 17), (6, 10, 14, 32, 96), (50, 5, 7, 40, 70)]
        {
            let weight = values(outputs * 9 * inputs, 1);
            let weights = pack_winograd_2d(&weight, outputs, inputs);
            let x = plane([rows, columns, width, inputs], &values(rows * columns * inputs, 2));
            let before = plane([rows, columns, width, outputs], &values(rows * columns * outputs, 4));
            let bias = values(outputs, 3);
            for (accumulates, has_relu) in [(false, false), (true, true)] {
                let plain = |row: usize, column: usize, output: usize| {
                    let mut sum = f64::from(bias[output]);
                    for (tap, input) in (0..9).flat_map(|tap| (0..inputs).map(move |input| (tap, input))) {
                        let at = (row + tap / 3) * width + column + tap % 3;
                        let weight = weight[(output * 9 + tap) * inputs + input];
                        sum += f64::from(x[at * inputs + input]) * f64::from(weight);
                    }
                    let at = ((row + 1) * width + column + 1) * outputs + output;
                    sum += if accumulates { f64::from(before[at]) } else { 0.0 };
                    if has_relu { sum.max(0.0) } else { sum }
                };
                let run = || {
                    let mut y = before.clone();
                    let x = PaddedPlane { data: &x, rows, columns, width };
                    winograd_conv2d(x, &weights, &bias, &mut y, Epilogue { accumulates, has_relu });
                    y
                };
                check("winograd", 1e-3, run);
                let y = run();
                for (at, y) in y.iter().enumerate() {
                    let (place, output) = (at / outputs, at % outputs);
                    let (row, column) = (place / width, place % width);
                    if (1..=rows).contains(&row) && (1..=columns).contains(&column) {
                        let plain = plain(row - 1, column - 1, output);
                        assert!((f64::from(*y) - plain).abs() < 1e-4, "{row} {column} {output}: {y} {plain}");
                    } else {
                        assert_eq!(*y, 0.0);
                    }
                }
            }
        }
    }
}
