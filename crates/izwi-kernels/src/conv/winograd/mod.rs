//! Convolutions by the Winograd algorithm: tiles of the input and the taps are transformed, so that a tile of the output needs
//! fewer products.
//!
//! The filter is that of Toom and Cook, transposed, at some points and infinity; points, scales and the order of sums are
//! chosen for small errors, as in <https://arxiv.org/abs/1803.10986>.

mod conv1d;
mod conv2d;

pub use conv1d::{PACKED_TAPS, RowGroups, TAPS, pack_winograd, winograd_conv1d};
pub use conv2d::{Epilogue, PACKED_TAPS_2D, PaddedPlane, pack_winograd_2d, winograd_conv2d};

use crate::arch::{Isa, LANES};
use crate::conv::conv1d::{ConvPanels, Tile};

/// Inputs of one pass over a task's tiles: a panel's share of them stays in the first-level cache.
const BLOCK_DEPTH: usize = 128;

/// Inputs of a tile to products, products to outputs, taps to products. Every entry of the first two is exact; a scale by
/// powers of two moves the size of each product from the input's side to the kernel's.
struct Matrices<const TAPS: usize, const TILE: usize, const PRODUCTS: usize> {
    input: [[f32; PRODUCTS]; PRODUCTS],
    output: [[f32; PRODUCTS]; TILE],
    kernel: [[f64; TAPS]; PRODUCTS],
}

impl<const TAPS: usize, const TILE: usize, const PRODUCTS: usize> Matrices<TAPS, TILE, PRODUCTS> {
    /// Products at `points` and, the last one, at infinity.
    const fn new(points: &[f64]) -> Self {
        assert!(points.len() + 1 == PRODUCTS && PRODUCTS == TILE + TAPS - 1, "points do not fit");
        let (mut input, mut output) = ([[0f32; PRODUCTS]; PRODUCTS], [[0f32; PRODUCTS]; TILE]);
        let mut kernel = [[0f64; TAPS]; PRODUCTS];
        let mut product = 0;
        while product < PRODUCTS {
            // The product of x - q over all other points: its coefficients weigh the inputs, its value at the point
            // divides the taps. At infinity the point is none of them and the value is 1.
            let (mut polynomial, mut value) = ([0f64; PRODUCTS], 1f64);
            polynomial[0] = 1.0;
            let mut other = 0;
            while other < points.len() {
                if other != product {
                    let mut power = PRODUCTS - 1;
                    while power > 0 {
                        polynomial[power] = polynomial[power - 1] - points[other] * polynomial[power];
                        power -= 1;
                    }
                    polynomial[0] *= -points[other];
                    if product < points.len() {
                        value *= points[product] - points[other];
                    }
                }
                other += 1;
            }
            let (mut largest, mut scale, mut k) = (0f64, 1f64, 0);
            while k < PRODUCTS {
                largest = if polynomial[k].abs() > largest { polynomial[k].abs() } else { largest };
                k += 1;
            }
            while largest * scale > 1.5 {
                scale /= 2.0;
            }
            while largest * scale < 0.75 {
                scale *= 2.0;
            }
            let (mut power, mut k) = (1f64, 0);
            while k < PRODUCTS {
                input[product][k] = (polynomial[k] * scale) as f32;
                let at_infinity = product == points.len();
                if k < TAPS {
                    let last = (k == TAPS - 1) as usize as f64;
                    kernel[product][k] = if at_infinity { last } else { power } / value / scale;
                }
                if k < TILE {
                    let last = (k == TILE - 1) as usize as f64;
                    output[k][product] = if at_infinity { last } else { power } as f32;
                }
                power *= if at_infinity { 0.0 } else { points[product] };
                k += 1;
            }
            product += 1;
        }
        Self { input, output, kernel }
    }
}

/// Transformed tiles `[product][of][inputs]`, of which the first `tiles` of each product are a task's.
struct Tiles<'a> {
    weights: &'a ConvPanels,
    read: *const f32,
    of: usize,
    tiles: usize,
}

impl Tiles<'_> {
    /// The products of a panel of `C` vectors, `[product][tile][columns]`, through register tiles of up to `R` rows.
    #[inline(always)]
    unsafe fn multiply<I: Isa, const C: usize, const R: usize>(&self, panel: usize, to: &mut Vec<f32>) {
        let ([products, inputs, _], tiles, columns) = (self.weights.shape(), self.tiles, C * LANES);
        to.resize(tiles * products * columns, 0.0);
        let mut rows = Vec::with_capacity(tiles);
        for tile in 0..tiles as u32 {
            rows.push(tile);
        }
        let zeros = [0f32; 6 * LANES];
        for product in 0..products {
            for k in (0..inputs).step_by(BLOCK_DEPTH) {
                let y = to.as_mut_ptr().add(product * tiles * columns);
                let w = (panel * products + product) * inputs + k;
                let (from, from_stride) =
                    if k == 0 { (zeros.as_ptr(), 0) } else { (y.cast_const(), columns) };
                Tile {
                    x: self.read.add(product * self.of * inputs),
                    inputs,
                    tap_step: 0,
                    k: k..inputs.min(k + BLOCK_DEPTH),
                    w: self.weights.elements().as_ptr().add(w * columns),
                    from,
                    from_stride,
                    y,
                    y_stride: columns,
                    fetch: (0, 0),
                }
                .all::<I, false, C, R>(&rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters_exactly<const TAPS: usize, const TILE: usize, const PRODUCTS: usize>(points: &[f64]) {
        let Matrices { input, output, kernel } = Matrices::<TAPS, TILE, PRODUCTS>::new(points);
        let taps = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, -2.0];
        let x = [2.0, -7.0, 1.0, 8.0, -2.0, 8.0, 1.0, -8.0, 2.0, 8.0];
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let products: Vec<f64> =
            (0..PRODUCTS).map(|at| sum(&x, &input[at].map(f64::from)) * sum(&taps, &kernel[at])).collect();
        for (row, weights) in output.iter().enumerate() {
            let y = sum(&products, &weights.map(f64::from));
            assert!((y - sum(&taps[..TAPS], &x[row..])).abs() < 1e-9, "{row}: {y}");
        }
    }

    #[test]
    fn the_matrices_filter_exactly_at_any_points() {
        filters_exactly::<7, 4, 10>(&[0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 0.25, -4.0]);
        filters_exactly::<3, 4, 6>(&[0.0, 0.625, -0.625, 1.5, -1.5]);
        filters_exactly::<3, 2, 4>(&[0.0, 1.0, -1.0]);
    }
}
