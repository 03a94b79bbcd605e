//! The norm of a layer, of either kind. Knows no layer.

use candle_core::{Result, Tensor};

use super::{LayerNorm, Norm, RmsNorm};

/// A norm of rows `[rows, width]`.
#[derive(Debug, Clone)]
pub enum RowNorm {
    /// Root mean square.
    Rms(RmsNorm),
    /// Mean and variance, with a bias.
    Layer(LayerNorm),
}

impl RowNorm {
    /// For [`super::Fused`].
    pub fn of_rows(&self) -> Norm<'_> {
        match self {
            Self::Rms(norm) => Norm::Rms(norm),
            Self::Layer(norm) => Norm::Layer(norm),
        }
    }

    /// `[rows, width]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.of_rows().forward(x)
    }

    /// The sum of the residual `x` and `change`, both `[rows, width]`, and the norm of that sum.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_sum(&self, x: &Tensor, change: &Tensor) -> Result<(Tensor, Tensor)> {
        match self {
            Self::Rms(norm) => norm.forward_sum(x, change),
            Self::Layer(norm) => norm.forward_sum(x, change),
        }
    }

    /// For kernels on Metal.
    #[cfg(feature = "metal")]
    pub(crate) fn on_metal(&self) -> crate::metal::Norm<'_> {
        match self {
            Self::Rms(norm) => norm.on_metal(),
            Self::Layer(norm) => norm.on_metal(),
        }
    }
}
