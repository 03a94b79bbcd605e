//! Layer normalisation.

use candle_core::{Result, Tensor};

use super::checkpoint::Checkpoint;
use crate::model::ModelError;

/// PyTorch's default: <https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html>.
const EPS: f32 = 1e-5;

/// Normalises the last axis, then scales and shifts it.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    /// Takes `{name}.weight` and `{name}.bias`, `[width]` each.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(from: &mut Checkpoint, name: &str, width: usize) -> std::result::Result<Self, ModelError> {
        let weight = from.take(&format!("{name}.weight"), &[width])?;
        let bias = from.take(&format!("{name}.bias"), &[width])?;
        Ok(Self { weight, bias })
    }

    /// `[rows, width]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm(x, &self.weight, &self.bias, EPS)
    }

    /// The sum of the residual `x` and `change`, both `[rows, width]`, and the norm of that sum.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_sum(&self, x: &Tensor, change: &Tensor) -> Result<(Tensor, Tensor)> {
        let sum = (x + change)?;
        let normed = self.forward(&sum)?;
        Ok((sum, normed))
    }
}
