//! The periodic activation of vocoders, with a frequency and an amplitude for each channel.

use candle_core::{Result, Tensor};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::{Activation, snake};

/// Added to the amplitude's divisor: <https://github.com/NVIDIA/BigVGAN/blob/main/activations.py>.
const EPS: f64 = 1e-9;

/// `x + sin²(e^alpha x) / (e^beta + 1e-9)`.
#[derive(Debug, Clone)]
pub struct SnakeBeta {
    frequency: Tensor, // [channels]
    amplitude: Tensor, // [channels]
}

impl SnakeBeta {
    /// Takes `{name}.alpha` and `{name}.beta`, `[channels]` each, logarithms.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(from: &mut Checkpoint, name: &str, channels: usize) -> std::result::Result<Self, Error> {
        let frequency = from.take(&format!("{name}.alpha"), &[channels])?.exp()?;
        let beta = from.take(&format!("{name}.beta"), &[channels])?.exp()?;
        Ok(Self { frequency, amplitude: (beta + EPS)?.recip()? })
    }

    /// For a layer that fuses it.
    pub fn activation(&self) -> Activation<'_> {
        Activation::Snake { frequency: &self.frequency, amplitude: &self.amplitude }
    }

    /// `[rows, channels]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        snake(x, &self.frequency, &self.amplitude)
    }
}
