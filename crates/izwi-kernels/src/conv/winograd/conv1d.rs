//! Convolution along rows with seven taps by F(4, 7): 10 products per 4 output rows instead of 28.
//!
//! Rows come in groups of one size, each cut into tiles by itself: a row is the same bits alongside any other groups.
//! Errors are about 105 dB below the output where a plain sum has 129.

use std::ops::Range;

use super::{Matrices, Tiles};
use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::conv::conv1d::ConvPanels;
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Taps of the filter.
pub const TAPS: usize = 7;
/// Output rows of a tile.
const TILE: usize = 4;
/// Products of a tile, one of them at infinity; and the input rows it reads.
const PRODUCTS: usize = TILE + TAPS - 1;
/// Where the polynomials are multiplied.
const POINTS: [f64; PRODUCTS - 1] = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 0.25, -4.0];
const MATRICES: Matrices<TAPS, TILE, PRODUCTS> = Matrices::new(&POINTS);
const INPUT: [[f32; PRODUCTS]; PRODUCTS] = MATRICES.input;
const OUTPUT: [[f32; PRODUCTS]; TILE] = MATRICES.output;
const KERNEL: [[f64; TAPS]; PRODUCTS] = MATRICES.kernel;
/// Tiles of a task, where there are more: their products stay in the second-level cache.
const BLOCK_TILES: usize = 48;
/// Multiply-adds up to which one thread is faster than two.
const SPLIT_WORK: usize = 512 * 1024;

/// Packs a weight `[outputs, 7, inputs]` for [`winograd_conv1d`].
///
/// # Panics
/// The length of the weight does not fit.
pub fn pack_winograd(weight: &[f32], outputs: usize, inputs: usize) -> ConvPanels {
    assert!(weight.len() == outputs * TAPS * inputs, "a weight of another size");
    let mut products = vec![0f32; outputs * PRODUCTS * inputs];
    let of_outputs = weight.chunks_exact((TAPS * inputs).max(1));
    for (weight, products) in of_outputs.zip(products.chunks_exact_mut((PRODUCTS * inputs).max(1))) {
        for (taps, product) in KERNEL.iter().zip(products.chunks_exact_mut(inputs)) {
            for (input, product) in product.iter_mut().enumerate() {
                let terms =
                    taps.iter().enumerate().map(|(t, tap)| tap * f64::from(weight[t * inputs + input]));
                *product = terms.sum::<f64>() as f32;
            }
        }
    }
    ConvPanels::pack(&products, outputs, PRODUCTS, inputs)
}

/// Taps of a weight that [`pack_winograd`] returns: its sizes are `[PACKED_TAPS, inputs, outputs]`.
pub const PACKED_TAPS: usize = PRODUCTS;

/// Groups of output rows: tap `t` of row `i` of group `g` reads row `starts[g] + i + t * dilation` of `data`
/// `[n, inputs]`.
#[derive(Debug, Clone, Copy)]
pub struct RowGroups<'a> {
    /// Input rows `[n, inputs]`.
    pub data: &'a [f32],
    /// For each group the first input row that it reads.
    pub starts: &'a [u32],
    /// Output rows of a group.
    pub rows: usize,
    /// Input rows from one tap to the next.
    pub dilation: usize,
}

impl RowGroups<'_> {
    /// The first output rows of a group's tiles, each of which continues in steps of the dilation.
    fn tiles(&self) -> Vec<usize> {
        let phases = 0..self.dilation.min(self.rows);
        phases.flat_map(|phase| (phase..self.rows).step_by(TILE * self.dilation)).collect()
    }
}

/// The convolution: `bias` `[outputs]`, `y` `[starts * rows, outputs]`.
///
/// # Panics
/// A row reads outside the data, or lengths do not fit.
pub fn winograd_conv1d(x: RowGroups<'_>, weights: &ConvPanels, bias: Option<&[f32]>, y: &mut [f32]) {
    let ([products, inputs, outputs], rows) = (weights.shape(), x.starts.len() * x.rows);
    assert!(products == PRODUCTS && x.dilation > 0, "weights of another kind");
    assert!(y.len() == rows * outputs && bias.is_none_or(|bias| bias.len() == outputs));
    if rows == 0 || inputs == 0 {
        return;
    }
    let last = x.starts.iter().copied().max().unwrap_or(0) as usize + x.rows - 1 + (TAPS - 1) * x.dilation;
    assert!((last + 1) * inputs <= x.data.len(), "a row reads outside the data");
    let firsts = x.tiles();
    let tiles = x.starts.len() * firsts.len();
    let work = Filter { x, firsts: &firsts, weights, bias, y: SyncPtr(y.as_mut_ptr()) };
    let alone = tiles * PRODUCTS * inputs * outputs <= SPLIT_WORK;
    let threads = if alone { 1 } else { num_threads() };
    let blocks = tiles.div_ceil(BLOCK_TILES);
    let block = |index: usize| index * tiles / blocks..(index + 1) * tiles / blocks;
    let panels = weights.panels();
    if blocks >= 3 * threads || threads == 1 {
        // Each task transforms and multiplies its own tiles.
        let scratch = || (Vec::new(), Vec::new());
        return for_each_task(blocks, threads, scratch, |(read, products), index| {
            let tiles = block(index);
            read.resize(tiles.len() * PRODUCTS * inputs, 0f32);
            let part =
                Reading { filter: &work, tiles: tiles.clone(), to: read.as_mut_ptr(), step: tiles.len() };
            dispatch(part);
            dispatch(Multiplying {
                filter: &work,
                read,
                from: 0,
                of: tiles.len(),
                tiles,
                panels: 0..panels,
                products,
            });
        });
    }
    // Few tiles of many channels: all threads transform them, then each multiplies them with its own panels.
    let mut read = vec![0f32; tiles * PRODUCTS * inputs];
    let out = SyncPtr(read.as_mut_ptr());
    let parts = tiles.min(4 * threads);
    for_each_task(
        parts,
        threads,
        || (),
        |(), index| {
            let own = index * tiles / parts..(index + 1) * tiles / parts;
            // SAFETY: inside `read`, where each task has rows of its own.
            let to = unsafe { out.get().add(own.start * inputs) };
            dispatch(Reading { filter: &work, tiles: own, to, step: tiles });
        },
    );
    let groups = (4 * threads).div_ceil(blocks).clamp(1, panels);
    for_each_task(blocks * groups, threads, Vec::new, |products, index| {
        let (tiles_of, group) = (block(index / groups), index % groups);
        let panels = group * panels / groups..(group + 1) * panels / groups;
        let from = tiles_of.start;
        dispatch(Multiplying {
            filter: &work,
            read: &read,
            from,
            of: tiles,
            tiles: tiles_of,
            panels,
            products,
        });
    });
}

/// The operands of a call, which all tasks share.
struct Filter<'a> {
    x: RowGroups<'a>,
    firsts: &'a [usize],
    weights: &'a ConvPanels,
    bias: Option<&'a [f32]>,
    y: SyncPtr,
}

impl Filter<'_> {
    /// Group and first row in it of a tile.
    fn place(&self, tile: usize) -> (usize, usize) {
        (tile / self.firsts.len(), self.firsts[tile % self.firsts.len()])
    }
}

/// Input rows of tiles to `[product][tile][inputs]`, `step` tiles to a product.
struct Reading<'a> {
    filter: &'a Filter<'a>,
    tiles: Range<usize>,
    to: *mut f32,
    step: usize,
}

// SAFETY: `winograd_conv1d` checks that every row read is inside the data; each task has its own tiles of `to`.
unsafe impl Kernel for Reading<'_> {
    #[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let RowGroups { data, starts, rows, dilation } = self.filter.x;
        let inputs = self.filter.weights.shape()[1];
        let zeros = [0f32; LANES];
        for (at, tile) in self.tiles.enumerate() {
            let (group, first) = self.filter.place(tile);
            // Rows after those that the group reads count as zero.
            let own = rows + (TAPS - 1) * dilation;
            let start = data.as_ptr().add((starts[group] as usize + first) * inputs);
            for input in (0..inputs).step_by(LANES) {
                let width = inputs - input;
                let mut x = [I::splat(0.0); PRODUCTS];
                for (row, x) in x.iter_mut().enumerate() {
                    let is_own = first + row * dilation < own;
                    let from =
                        if is_own { start.add(row * dilation * inputs + input) } else { zeros.as_ptr() };
                    *x = load_part::<I>(from, width, 0.0);
                }
                for product in 0..PRODUCTS {
                    let mut sum = I::splat(0.0);
                    for row in 0..PRODUCTS {
                        if INPUT[product][row] != 0.0 {
                            sum = I::fma(I::splat(INPUT[product][row]), x[row], sum);
                        }
                    }
                    store_part::<I>(self.to.add((product * self.step + at) * inputs + input), sum, width);
                }
            }
        }
    }
}

/// Tiles through some panels to output rows. The tiles stand in `read` from the tile `from` on, `of` to a product.
struct Multiplying<'a> {
    filter: &'a Filter<'a>,
    read: &'a [f32],
    from: usize,
    of: usize,
    tiles: Range<usize>,
    panels: Range<usize>,
    products: &'a mut Vec<f32>, // [product][tile][columns]
}

// SAFETY: `winograd_conv1d` checks all lengths; each task has its own tiles and panels, and so its own elements of `y`.
unsafe impl Kernel for Multiplying<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        match self.filter.weights.vectors() {
            1 if I::WIDE => self.panels::<I, 1, 8>(),
            1 => self.panels::<I, 1, 6>(),
            4 => self.panels::<I, 4, 6>(),
            _ => self.panels::<I, 6, 4>(),
        }
    }
}

impl Multiplying<'_> {
    /// Panels of `C` vectors, through register tiles of up to `R` rows.
    #[inline(always)]
    unsafe fn panels<I: Isa, const C: usize, const R: usize>(&mut self) {
        let (of, tiles) = (self.of, self.tiles.len());
        let read = self.read.as_ptr().add(self.from * self.filter.weights.shape()[1]);
        for panel in self.panels.clone() {
            Tiles { weights: self.filter.weights, read, of, tiles }.multiply::<I, C, R>(panel, self.products);
            self.write::<I, C>(panel);
        }
    }

    /// The products of a panel as output rows.
    #[allow(clippy::needless_range_loop, reason = "the plain form is the one that is unrolled")]
    #[inline(always)]
    unsafe fn write<I: Isa, const C: usize>(&self, panel: usize) {
        let (tiles, columns, first_column) = (self.tiles.len(), C * LANES, panel * C * LANES);
        let Filter { x, weights, bias, y, .. } = self.filter;
        let [_, _, outputs] = weights.shape();
        for (at, tile) in self.tiles.clone().enumerate() {
            let (group, first) = self.filter.place(tile);
            let count = (x.rows - first).div_ceil(x.dilation).min(TILE);
            for column in (0..columns.min(outputs - first_column)).step_by(LANES) {
                let width = outputs - first_column - column;
                let mut products = [I::splat(0.0); PRODUCTS];
                for (product, value) in products.iter_mut().enumerate() {
                    *value = I::load(self.products.as_ptr().add((product * tiles + at) * columns + column));
                }
                let bias = match bias {
                    Some(bias) => load_part::<I>(bias.as_ptr().add(first_column + column), width, 0.0),
                    None => I::splat(0.0),
                };
                let y = y.get().add((group * x.rows + first) * outputs + first_column + column);
                for row in 0..TILE {
                    let mut sum = bias;
                    for product in 0..PRODUCTS {
                        if OUTPUT[row][product] != 0.0 {
                            sum = I::fma(I::splat(OUTPUT[row][product]), products[product], sum);
                        }
                    }
                    if row < count {
                        store_part::<I>(y.add(row * x.dilation * outputs), sum, width);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_filters_alike() {
        for (outputs, inputs, rows, dilation) in
            [(1, 5, 3, 2), (17, 33, 16, 1), (96, 20, 30, 9), (130, 10, 8, 3), (20, 150, 8, 3)]
        {
            let weights = pack_winograd(&values(outputs * TAPS * inputs, 1), outputs, inputs);
            let (x, bias) = (values((9 + rows + (TAPS - 1) * dilation) * inputs, 2), values(outputs, 3));
            check("filter", 1e-3, || {
                let mut y = vec![0.0; 3 * rows * outputs];
                let x = RowGroups { data: &x, starts: &[0, 9, 4], rows, dilation };
                winograd_conv1d(x, &weights, Some(&bias), &mut y);
                y
            });
        }
    }
}
