//! Dense convolutions of 1 x 1 or 3 x 3 over planes `[rows, columns, channels]`, in memory of the host.
//!
//! A plane has zeros around it and rows of whole triples of columns: three neighbours are then one row of a convolution
//! along time, read in place. With 3 x 3 taps, stride 1 and some channels the Winograd algorithm needs a quarter of the
//! products.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use crate::Error;
use crate::checkpoint::{Checkpoint, Recipe};
use crate::layers::cat_weights;
use crate::slices::with_slices;
pub use izwi_kernels::conv::winograd::Epilogue;
use izwi_kernels::conv::winograd::{PACKED_TAPS_2D, PaddedPlane, pack_winograd_2d, winograd_conv2d};
use izwi_kernels::conv::{ConvPanels, ConvRows, conv1d};
use izwi_types::Precision;

/// Taps of the larger kernel along each axis.
const SIDE: usize = 3;
/// Channels of the input from which on the Winograd algorithm is faster.
const WINOGRAD_INPUTS: usize = 16;

/// A plane `[rows, columns, channels]`; the default one is empty.
#[derive(Debug, Clone, Default)]
pub struct Plane {
    values: Vec<f32>, // [rows + 2, width, channels]
    rows: usize,
    columns: usize,
    channels: usize,
    width: usize,
}

impl Plane {
    /// Without its values.
    fn sized([rows, columns, channels]: [usize; 3]) -> Self {
        let width = (columns + 2).next_multiple_of(SIDE);
        Self { values: Vec::new(), rows, columns, channels, width }
    }

    /// Makes it a plane of these sizes, whose values are any.
    fn resize(&mut self, sizes: [usize; 3]) {
        if [self.rows, self.columns, self.channels] != sizes {
            let values = std::mem::take(&mut self.values);
            *self = Self { values, ..Self::sized(sizes) };
            self.values.clear();
            self.values.resize((self.rows + 2) * self.width * self.channels, 0.0);
        }
    }

    /// A plane of one channel from `values` `[rows, columns]`.
    ///
    /// # Errors
    /// There is no whole row.
    pub fn of_rows(values: &[f32], columns: usize) -> Result<Self> {
        if columns == 0 || values.is_empty() || !values.len().is_multiple_of(columns) {
            bail!("plane: {} values are no rows of {columns}", values.len())
        }
        let mut plane = Self::default();
        plane.resize([values.len() / columns, columns, 1]);
        for (row, values) in values.chunks_exact(columns).enumerate() {
            plane.values[(row + 1) * plane.width + 1..][..columns].copy_from_slice(values);
        }
        Ok(plane)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `row`, `[columns, channels]`.
    ///
    /// # Panics
    /// There is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.values[((row + 1) * self.width + 1) * self.channels..][..self.columns * self.channels]
    }
}

/// A convolution with as much zero padding as keeps the plane's size at stride 1. A clone shares the weight.
#[derive(Debug, Clone)]
pub struct Conv2d {
    weight: Arc<ConvPanels>,
    bias: Vec<f32>,
    sizes: Conv2dShape,
}

/// Sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Taps along each axis, 1 or 3.
    pub side: usize,
    /// Rows and columns from one output to the next.
    pub stride: usize,
}

impl Conv2dShape {
    fn is_winograd(&self) -> bool {
        self.side == SIDE && self.stride == 1 && self.inputs >= WINOGRAD_INPUTS
    }
}

impl Conv2d {
    /// Takes `{name}.weight` `[outputs, inputs, side, side]`, whose last axis is that of rows, and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`] and [`Self::new`].
    pub fn load(from: &mut Checkpoint, name: &str, sizes: Conv2dShape) -> std::result::Result<Self, Error> {
        let Conv2dShape { inputs, outputs, side, .. } = sizes;
        let part = (format!("{name}.weight"), vec![outputs, inputs, side, side]);
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        let (transform_id, packed_sizes) = match sizes.is_winograd() {
            true => ("winograd F(4 x 4, 3 x 3), ", [PACKED_TAPS_2D, inputs, outputs]),
            false => ("planes, ", [side, side * inputs, outputs]),
        };
        let precision = Precision::F32;
        let recipe = Recipe { parts: &[part], transform_id, precision, sizes: packed_sizes };
        let weight = from.take_packed(&recipe, |tensors| Ok(packed(&cat_weights(tensors)?, sizes)?))?;
        Ok(Self::assemble(weight, &bias, sizes)?)
    }

    /// From a weight `[outputs, inputs, side, side]`, whose last axis is that of rows, and a bias `[outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, bias: &Tensor, stride: usize) -> Result<Self> {
        let (outputs, inputs, side, _) = weight.dims4()?;
        let sizes = Conv2dShape { inputs, outputs, side, stride };
        Self::assemble(Arc::new(packed(weight, sizes)?), bias, sizes)
    }

    fn assemble(weight: Arc<ConvPanels>, bias: &Tensor, sizes: Conv2dShape) -> Result<Self> {
        if sizes.stride == 0 || bias.dims() != [sizes.outputs] {
            bail!("conv2d: bias {:?} for {sizes:?}", bias.dims())
        }
        Ok(Self { weight, bias: bias.to_vec1()?, sizes })
    }

    /// `x` to `y` `[ceil(rows / stride), ceil(columns / stride), outputs]`; a `y` of other sizes becomes one of these, if
    /// it is no sum.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_into(&self, x: &Plane, y: &mut Plane, epilogue: Epilogue) -> Result<()> {
        let Conv2dShape { inputs, outputs, stride, .. } = self.sizes;
        let sizes = [x.rows.div_ceil(stride), x.columns.div_ceil(stride), outputs];
        if x.channels != inputs || (epilogue.accumulates && [y.rows, y.columns, y.channels] != sizes) {
            bail!("conv2d: {} channels for {:?}, or a sum of another size", x.channels, self.sizes)
        }
        y.resize(sizes);
        if self.sizes.is_winograd() {
            let plane = PaddedPlane { data: &x.values, rows: x.rows, columns: x.columns, width: x.width };
            winograd_conv2d(plane, &self.weight, &self.bias, &mut y.values, epilogue);
        } else {
            self.in_triples(x, y, epilogue);
        }
        Ok(())
    }

    /// Computes the columns together whose first tap is in the same place of a triple.
    fn in_triples(&self, x: &Plane, y: &mut Plane, epilogue: Epilogue) {
        let Conv2dShape { inputs, outputs, side, stride } = self.sizes;
        for place in 0..side {
            let columns: Vec<usize> = (0..y.columns).filter(|at| at * stride % side == place).collect();
            let margin = usize::from(side == 1);
            let start = |row: usize, column: usize| {
                ((row * stride + margin) * x.width + column * stride + margin) / side
            };
            let starts: Vec<u32> = (0..y.rows)
                .flat_map(|row| columns.iter().map(move |&column| start(row, column) as u32))
                .collect();
            if starts.is_empty() {
                continue;
            }
            let data = &x.values[place * inputs..];
            let mut found = vec![0f32; starts.len() * outputs];
            let rows = ConvRows { data, starts: &starts, dilation: x.width / side };
            conv1d(rows, &self.weight, Some(&self.bias), &mut found);
            let (width, count) = (y.width, y.rows);
            let own = y.values.par_chunks_mut(width * outputs).enumerate().skip(1).take(count);
            own.for_each(|(row, values)| {
                let found = found[(row - 1) * columns.len() * outputs..].chunks_exact(outputs);
                for (found, column) in found.zip(&columns) {
                    let to = &mut values[(column + 1) * outputs..][..outputs];
                    if epilogue.accumulates {
                        to.iter_mut().zip(found).for_each(|(to, found)| *to += found);
                    } else {
                        to.copy_from_slice(found);
                    }
                    if epilogue.has_relu {
                        to.iter_mut().for_each(|to| *to = to.max(0.0));
                    }
                }
            });
        }
    }
}

/// Packs a weight `[outputs, inputs, side, side]`.
fn packed(weight: &Tensor, sizes: Conv2dShape) -> Result<ConvPanels> {
    let Conv2dShape { inputs, outputs, side, .. } = sizes;
    if ![1, SIDE].contains(&side) || weight.dims() != [outputs, inputs, side, side] {
        bail!("conv2d: a weight {:?}; one of 1 x 1 or 3 x 3 taps fits", weight.dims())
    }
    let weight = weight.to_dtype(DType::F32)?;
    let by_taps = weight.permute((0, 3, 2, 1))?.contiguous()?; // [outputs, rows, columns, inputs]
    with_slices([&by_taps], |[weight]| match sizes.is_winograd() {
        true => pack_winograd_2d(weight, outputs, inputs),
        false => ConvPanels::pack(weight, outputs, side, side * inputs),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    /// `[1, channels, columns, rows]`.
    fn planes(plane: &Plane) -> Tensor {
        let values: Vec<f32> = (0..plane.rows()).flat_map(|row| plane.row(row).to_vec()).collect();
        let shape = (plane.rows, plane.columns, plane.channels);
        let x = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        x.permute((2, 1, 0)).unwrap().unsqueeze(0).unwrap().contiguous().unwrap()
    }

    fn off(plane: &Plane, expected: &Tensor) -> f32 {
        (planes(plane) - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn planes_equal_candle() {
        const PLAIN: Epilogue = Epilogue { accumulates: false, has_relu: false };
        const SUM: Epilogue = Epilogue { accumulates: true, has_relu: true };
        let mut y = Plane::default();
        for (channels, rows, columns, stride) in
            [(4, 1, 1, 1), (4, 7, 5, 2), (4, 12, 8, 1), (20, 9, 10, 1), (20, 3, 4, 2), (36, 13, 7, 1)]
        {
            let image = Plane::of_rows(&random(rows * columns).to_vec1::<f32>().unwrap(), columns).unwrap();
            let widen = Conv2d::new(&random((channels, 1, 3, 3)), &random(channels), 1).unwrap();
            let mut x = Plane::default();
            widen.forward_into(&image, &mut x, PLAIN).unwrap();
            for side in [1, 3] {
                let (weight, bias) = (random((6, channels, side, side)), random(6));
                let conv = Conv2d::new(&weight, &bias, stride).unwrap();
                let plain = planes(&x).conv2d(&weight, side / 2, stride, 1, 1).unwrap();
                let expected = plain.broadcast_add(&bias.reshape((1, 6, 1, 1)).unwrap()).unwrap();
                conv.forward_into(&x, &mut y, PLAIN).unwrap();
                assert!(off(&y, &expected) < 1e-3, "{channels}, {rows} x {columns}, {side}, {stride}");
                conv.forward_into(&x, &mut y, SUM).unwrap();
                let twice = (expected * 2.0).unwrap().relu().unwrap();
                assert!(off(&y, &twice) < 1e-3, "{channels}, {rows} x {columns}, {side}, {stride}");
                assert!(conv.forward_into(&y, &mut Plane::default(), PLAIN).is_err());
                assert!(conv.forward_into(&x, &mut Plane::default(), SUM).is_err());
            }
        }
        assert!(Plane::of_rows(&[1.0; 5], 2).is_err() && Plane::of_rows(&[], 2).is_err());
        assert!(Conv2d::new(&random((2, 2, 2, 2)), &random(2), 1).is_err());
        assert!(Conv2d::new(&random((2, 2, 3, 3)), &random(3), 1).is_err());
    }
}
