//! Dense convolutions of 1 x 1 or 3 x 3 over planes `[rows, columns, channels]`, in memory of the host.
//!
//! A plane has zeros around it and rows of whole triples of columns: three neighbours are then one row of a convolution
//! along time, read in place.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::slices::with_slices;
use izwi_kernels::conv::{ConvPanels, ConvRows, conv1d};

/// Taps of the larger kernel along each axis.
const SIDE: usize = 3;

/// A plane `[rows, columns, channels]`.
#[derive(Debug, Clone)]
pub struct Plane {
    values: Vec<f32>, // [rows + 2, width, channels]
    rows: usize,
    columns: usize,
    channels: usize,
    width: usize,
}

impl Plane {
    fn zeros([rows, columns, channels]: [usize; 3]) -> Self {
        let width = (columns + 2).next_multiple_of(SIDE);
        Self { values: vec![0.0; (rows + 2) * width * channels], rows, columns, channels, width }
    }

    /// A plane of one channel from `values` `[rows, columns]`.
    ///
    /// # Errors
    /// There is no whole row.
    pub fn of_rows(values: &[f32], columns: usize) -> Result<Self> {
        if columns == 0 || values.is_empty() || !values.len().is_multiple_of(columns) {
            bail!("plane: {} values are no rows of {columns}", values.len())
        }
        let mut plane = Self::zeros([values.len() / columns, columns, 1]);
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

/// A convolution with as much zero padding as keeps the plane's size at stride 1.
#[derive(Debug, Clone)]
pub struct Conv2d {
    weight: ConvPanels,
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

impl Conv2d {
    /// Takes `{name}.weight` `[outputs, inputs, side, side]`, whose last axis is that of rows, and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`] and [`Self::new`].
    pub fn load(from: &mut Checkpoint, name: &str, sizes: Conv2dShape) -> std::result::Result<Self, Error> {
        let Conv2dShape { inputs, outputs, side, .. } = sizes;
        let weight = from.take(&format!("{name}.weight"), &[outputs, inputs, side, side])?;
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        Ok(Self::new(&weight, &bias, sizes.stride)?)
    }

    /// From a weight `[outputs, inputs, side, side]`, whose last axis is that of rows, and a bias `[outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, bias: &Tensor, stride: usize) -> Result<Self> {
        let (outputs, inputs, side, taps) = weight.dims4()?;
        if ![1, SIDE].contains(&side) || taps != side || stride == 0 || bias.dims() != [outputs] {
            bail!("conv2d: weight {:?}, bias {:?}, stride {stride}", weight.dims(), bias.dims())
        }
        let by_taps = weight.permute((0, 3, 2, 1))?.contiguous()?; // [outputs, rows, columns, inputs]
        let pack = |[weight]: [&[f32]; 1]| ConvPanels::pack(weight, outputs, side, side * inputs);
        let weight = with_slices([&by_taps], pack)?;
        let sizes = Conv2dShape { inputs, outputs, side, stride };
        Ok(Self { weight, bias: bias.to_vec1()?, sizes })
    }

    /// `x` to `[ceil(rows / stride), ceil(columns / stride), outputs]`, `added` added, and nothing below 0 if
    /// `is_rectified`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Plane, added: Option<&Plane>, is_rectified: bool) -> Result<Plane> {
        let Conv2dShape { inputs, outputs, side, stride } = self.sizes;
        let mut y = Plane::zeros([x.rows.div_ceil(stride), x.columns.div_ceil(stride), outputs]);
        let fits =
            |plane: &Plane| [plane.rows, plane.columns, plane.channels] == [y.rows, y.columns, outputs];
        if x.channels != inputs || !added.is_none_or(fits) {
            bail!("conv2d: {} channels, or another sum than {} x {}", x.channels, y.rows, y.columns)
        }
        // The columns whose first tap is in the same place of a triple are computed together.
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
                    let at = (column + 1) * outputs;
                    let to = &mut values[at..at + outputs];
                    to.copy_from_slice(found);
                    if let Some(added) = added {
                        let added = &added.values[row * width * outputs + at..][..outputs];
                        to.iter_mut().zip(added).for_each(|(to, added)| *to += added);
                    }
                    if is_rectified {
                        to.iter_mut().for_each(|to| *to = to.max(0.0));
                    }
                }
            });
        }
        Ok(y)
    }
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

    #[test]
    fn planes_equal_candle() {
        for (rows, columns, stride) in [(1, 1, 1), (7, 5, 2), (12, 8, 1), (9, 10, 2), (3, 4, 2)] {
            let x = Plane::of_rows(&random(rows * columns).to_vec1::<f32>().unwrap(), columns).unwrap();
            let widen = Conv2d::new(&random((4, 1, 3, 3)), &random(4), 1).unwrap();
            let x = widen.forward(&x, None, false).unwrap();
            for side in [1, 3] {
                let (weight, bias) = (random((6, 4, side, side)), random(6));
                let conv = Conv2d::new(&weight, &bias, stride).unwrap();
                let plain = planes(&x).conv2d(&weight, side / 2, stride, 1, 1).unwrap();
                let expected = plain.broadcast_add(&bias.reshape((1, 6, 1, 1)).unwrap()).unwrap();
                let y = conv.forward(&x, None, false).unwrap();
                let sum = conv.forward(&x, Some(&y), true).unwrap();
                for (ours, theirs) in
                    [(&y, expected.clone()), (&sum, (expected * 2.0).unwrap().relu().unwrap())]
                {
                    let off = (planes(ours) - theirs).unwrap().abs().unwrap().max_all().unwrap();
                    assert!(off.to_scalar::<f32>().unwrap() < 1e-4, "{rows} x {columns}, {side}, {stride}");
                }
                assert!(conv.forward(&y, None, false).is_err());
                assert!(conv.forward(&x, Some(&x), false).is_err());
            }
        }
        assert!(Plane::of_rows(&[1.0; 5], 2).is_err() && Plane::of_rows(&[], 2).is_err());
        assert!(Conv2d::new(&random((2, 2, 2, 2)), &random(2), 1).is_err());
    }
}
