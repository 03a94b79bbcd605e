//! Root-mean-square normalisation.

use candle_core::{Result, Tensor, bail};

use super::checkpoint::Checkpoint;
use super::slices::with_slices;
use crate::model::ModelError;

/// Scales each row to a root mean square of 1, then by a weight. All in f32.
/// <https://arxiv.org/abs/1910.07467>.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor, // [width]
    eps: f32,
}

impl RmsNorm {
    /// Takes `{name}.weight` `[width]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        width: usize,
        eps: f64,
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self { weight: from.take(&format!("{name}.weight"), &[width])?, eps: eps as f32 })
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.weight.elem_count()
    }

    /// `[rows, n * width]` to the same; every `width` elements of a row are normalised by themselves.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let width = self.width();
        if width == 0 || !x.elem_count().is_multiple_of(width) {
            bail!("rms norm: {:?} does not divide into rows of {width}", x.dims())
        }
        if !x.device().is_cpu() {
            let rows = x.contiguous()?.reshape((x.elem_count() / width, width))?;
            return candle_nn::ops::rms_norm(&rows, &self.weight, self.eps)?.reshape(x.dims());
        }
        let y = with_slices([x, &self.weight], |[x, weight]| {
            let mut y = vec![0f32; x.len()];
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                let squares: f32 = x.iter().map(|x| x * x).sum();
                let scale = 1.0 / (squares / width as f32 + self.eps).sqrt();
                y.iter_mut().zip(x).zip(weight).for_each(|((y, x), weight)| *y = weight * (x * scale));
            }
            y
        })?;
        Tensor::from_vec(y, x.dims(), x.device())
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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn norm_equals_candles_and_works_head_by_head() {
        let x = Tensor::randn(1f32, 2.0, (7, 3 * 40), &Device::Cpu).unwrap();
        let norm = RmsNorm { weight: Tensor::randn(0f32, 1.0, 40, &Device::Cpu).unwrap(), eps: 1e-6 };
        let rows = x.reshape((21, 40)).unwrap();
        let reference =
            candle_nn::ops::rms_norm(&rows, &norm.weight, 1e-6).unwrap().reshape((7, 120)).unwrap();
        let off = (norm.forward(&x).unwrap() - reference).unwrap().abs().unwrap();
        assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
        let zeros = Tensor::zeros((2, 40), DType::F32, &Device::Cpu).unwrap();
        let (sum, normed) = norm.forward_sum(&zeros, &zeros).unwrap();
        assert_eq!((sum.dims(), normed.dims()), (&[2, 40][..], &[2, 40][..]));
        assert!(norm.forward(&Tensor::zeros((1, 41), DType::F32, &Device::Cpu).unwrap()).is_err());
    }
}
