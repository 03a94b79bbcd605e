//! Layer normalisation.

use candle_core::{Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::slices::with_slices;
use izwi_kernels::elementwise::layer_norm;

/// PyTorch's default: <https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html>.
const EPS: f32 = 1e-5;

/// Normalises the last axis, then scales and shifts it.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// From a weight and a bias, `[width]` each, and what is added to the variance.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self { weight, bias, eps: eps as f32 }
    }

    /// Takes `{name}.weight` and `{name}.bias`, `[width]` each.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(from: &mut Checkpoint, name: &str, width: usize) -> std::result::Result<Self, Error> {
        Self::load_with_eps(from, name, width, f64::from(EPS))
    }

    /// As [`Self::load`], with `eps` added to the variance.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_with_eps(
        from: &mut Checkpoint,
        name: &str,
        width: usize,
        eps: f64,
    ) -> std::result::Result<Self, Error> {
        let weight = from.take(&format!("{name}.weight"), &[width])?;
        let bias = from.take(&format!("{name}.bias"), &[width])?;
        Ok(Self { weight, bias, eps: eps as f32 })
    }

    /// For kernels on Metal.
    pub(crate) fn on_metal(&self) -> izwi_metal::Norm<'_> {
        izwi_metal::Norm::Layer { weight: &self.weight, bias: &self.bias, eps: self.eps }
    }

    /// `[rows, width]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !x.device().is_cpu() {
            return candle_nn::ops::layer_norm(x, &self.weight, &self.bias, self.eps);
        }
        if x.dims().last() != self.weight.dims().last() {
            bail!("layer norm: {:?} does not end in {:?}", x.dims(), self.weight.dims())
        }
        let y = with_slices([x, &self.weight, &self.bias], |[x, weight, bias]| {
            let mut y = vec![0f32; x.len()];
            layer_norm(x, weight, bias, self.eps, &mut y);
            y
        })?;
        Tensor::from_vec(y, x.dims(), x.device())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn norm_equals_candle() {
        for width in [5, 384, 512] {
            let x = Tensor::randn(3f32, 2.0, (70, width), &Device::Cpu).unwrap();
            let weight = Tensor::randn(0f32, 1.0, width, &Device::Cpu).unwrap();
            let bias = Tensor::randn(0f32, 1.0, width, &Device::Cpu).unwrap();
            let reference = candle_nn::ops::layer_norm(&x, &weight, &bias, EPS).unwrap();
            let norm = LayerNorm { weight, bias, eps: EPS };
            let off = (norm.forward(&x).unwrap() - reference).unwrap().abs().unwrap().max_all().unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-4, "{off}");
        }
    }
}
