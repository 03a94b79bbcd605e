//! Strided depthwise convolution over planes `[rows, columns, channels]`, for the subsampling of spectra.

use candle_core::{Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::slices::with_slices;
use izwi_kernels::conv::{self, KERNEL_SIDE};

/// Depthwise 3 x 3 convolution with stride 2 and zero padding 1.
#[derive(Debug, Clone)]
pub struct DepthwiseConv2d {
    weight: Tensor, // [9, channels]
    bias: Tensor,   // [channels]
}

impl DepthwiseConv2d {
    /// Takes `{name}.weight` `[channels, 1, 3, 3]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(from: &mut Checkpoint, name: &str, channels: usize) -> std::result::Result<Self, Error> {
        let weight = from.take(&format!("{name}.weight"), &[channels, 1, KERNEL_SIDE, KERNEL_SIDE])?;
        Ok(Self::new(&weight, from.take(&format!("{name}.bias"), &[channels])?)?)
    }

    /// From a weight `[channels, 1, 3, 3]` and a bias `[channels]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, bias: Tensor) -> Result<Self> {
        let weight = weight.reshape((bias.elem_count(), KERNEL_SIDE * KERNEL_SIDE))?.t()?.contiguous()?;
        Ok(Self { weight, bias })
    }

    /// `rows` rows of the answer `[rows, ceil(columns / 2), channels]`, the first of them around row `shift` of `x`
    /// `[n, columns, channels]`, each next one 2 rows on. With `x` a part of a plane they are the plane's, if the part
    /// has all rows that they read.
    ///
    /// # Errors
    /// Shapes do not fit, or an answer would lie outside the plane.
    pub fn forward(&self, x: &Tensor, shift: usize, rows: usize) -> Result<Tensor> {
        let (count, columns, channels) = x.dims3()?;
        if channels != self.bias.elem_count() || rows == 0 || 2 * (rows - 1) + shift >= count || columns == 0
        {
            bail!("depthwise conv2d: {:?} for {rows} rows from {shift} on", x.dims())
        }
        if x.device().is_metal() {
            return izwi_metal::depthwise_2d(x, [&self.weight, &self.bias], shift, rows);
        }
        if !x.device().is_cpu() {
            return self.composite(x, shift, rows);
        }
        let halved = columns.div_ceil(2);
        let y = with_slices([x, &self.weight, &self.bias], |[x, weight, bias]| {
            let mut y = vec![0f32; rows * halved * channels];
            conv::DepthwiseConv2d { x, size: [count, columns], weight, bias }.convolve(shift, &mut y);
            y
        })?;
        Tensor::from_vec(y, (rows, halved, channels), x.device())
    }

    fn composite(&self, x: &Tensor, shift: usize, rows: usize) -> Result<Tensor> {
        let (count, columns, channels) = x.dims3()?;
        let halved = columns.div_ceil(2);
        // Both sides even, a zero before, and as many after as the last kernel and the pairs need.
        let x = x.pad_with_zeros(0, 1, (2 * rows + shift + 2).saturating_sub(count + 1))?;
        let x = x.pad_with_zeros(1, 1, 2 * halved + 2 - columns - 1)?;
        let mut y = self.bias.broadcast_as((rows, halved, channels))?.contiguous()?;
        for tap in 0..KERNEL_SIDE * KERNEL_SIDE {
            let part =
                x.narrow(0, shift + tap / KERNEL_SIDE, 2 * rows)?.narrow(1, tap % KERNEL_SIDE, 2 * halved)?;
            let part = part.contiguous()?.reshape((rows, 2, halved, 2, channels))?;
            let part =
                part.narrow(1, 0, 1)?.narrow(3, 0, 1)?.contiguous()?.reshape((rows, halved, channels))?;
            y = (y + part.broadcast_mul(&self.weight.narrow(0, tap, 1)?)?)?;
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

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        assert_eq!(a.dims(), b.dims());
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn planes_equal_candle_whole_and_in_parts() {
        for (rows, columns) in [(1, 1), (2, 5), (9, 8), (16, 3)] {
            let (weight, bias, x) = (random((5, 1, 3, 3)), random(5), random((rows, columns, 5)));
            let conv = DepthwiseConv2d::new(&weight, bias.clone()).unwrap();
            let planes = x.permute((2, 0, 1)).unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let y =
                planes.conv2d(&weight, 1, 2, 1, 5).unwrap().squeeze(0).unwrap().permute((1, 2, 0)).unwrap();
            let reference = y.broadcast_add(&bias).unwrap().contiguous().unwrap();
            let outputs = rows.div_ceil(2);
            let whole = conv.forward(&x, 0, outputs).unwrap();
            assert!(worst(&whole, &reference) < 1e-5);
            assert!(worst(&conv.composite(&x, 0, outputs).unwrap(), &reference) < 1e-5);
            for first in 1..outputs {
                let part = x.narrow(0, 2 * first - 1, rows + 1 - 2 * first).unwrap();
                let own = reference.narrow(0, first, outputs - first).unwrap();
                let ours = conv.forward(&part, 1, outputs - first).unwrap();
                let alone = whole.narrow(0, first, outputs - first).unwrap();
                assert_eq!(worst(&ours, &alone), 0.0);
                assert!(worst(&conv.composite(&part, 1, outputs - first).unwrap(), &own) < 1e-5);
            }
            assert!(conv.forward(&x, 0, outputs + 1).is_err());
        }
    }
}
