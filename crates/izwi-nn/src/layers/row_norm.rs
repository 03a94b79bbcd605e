//! The norm of a layer, of either kind. Knows no layer.

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
}
