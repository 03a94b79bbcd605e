//! Linear layers over packed rows, hundreds at a time: the weights of [`RowLinear`].

use candle_core::{Result, Tensor};

use super::checkpoint::Checkpoint;
use super::row_linear::RowLinear;
use crate::Error;
use izwi_types::Precision;

/// `y = x Wᵀ (+ b)`; a row of `y` is the same bits however many rows `x` has (on the CPU).
#[derive(Debug, Clone)]
pub struct Linear(RowLinear);

impl From<RowLinear> for Linear {
    fn from(linear: RowLinear) -> Self {
        Self(linear)
    }
}

impl Linear {
    /// From a weight `[outputs, inputs]` and a bias `[outputs]`.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        Ok(Self(RowLinear::new(weight, bias)?))
    }

    /// As [`Self::new`], the weight `[outputs, inputs]` kept in `precision`.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn with_precision(weight: &Tensor, bias: Option<Tensor>, precision: Precision) -> Result<Self> {
        Ok(Self(RowLinear::with_precision(weight, bias, precision)?))
    }

    /// Takes `{name}.weight` `[outputs, inputs]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> std::result::Result<Self, Error> {
        Self::load_with_precision(from, name, (inputs, outputs), true, Precision::F32)
    }

    /// Takes `{name}.weight` `[outputs, inputs]`, to be kept in `precision`, and, with `bias`, `{name}.bias`;
    /// `shape` is inputs and outputs.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_with_precision(
        from: &mut Checkpoint,
        name: &str,
        (inputs, outputs): (usize, usize),
        bias: bool,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        Ok(Self(RowLinear::load_with_precision(from, name, (inputs, outputs), bias, precision)?))
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }

    /// The product without the bias, for callers that fuse the bias with what follows.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn product(&self, x: &Tensor) -> Result<Tensor> {
        self.0.product(x)
    }

    /// The bias `[outputs]`, where there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_row_is_the_same_bits_in_any_batch() {
        for (inputs, outputs) in [(192, 1), (192, 4), (910, 256), (768, 256), (256, 3005)] {
            let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu).unwrap();
            let linear = Linear::new(&weight, None).unwrap();
            let x = Tensor::randn(0f32, 1.0, (16 * 40, inputs), &Device::Cpu).unwrap();
            let whole: Vec<Vec<f32>> = linear.forward(&x).unwrap().to_vec2().unwrap();
            assert_eq!(whole[0].len(), outputs);
            for (start, rows) in [(0, 16), (16, 32), (48, 208), (320, 320)] {
                let part = linear.forward(&x.narrow(0, start, rows).unwrap()).unwrap();
                assert_eq!(part.to_vec2::<f32>().unwrap(), whole[start..start + rows], "{inputs} {outputs}");
            }
        }
    }
}
