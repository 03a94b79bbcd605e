//! Root-mean-square normalisation.

use candle_core::{Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::slices::{with_rows, with_slices};
use izwi_kernels::elementwise;

/// Scales each row to a root mean square of 1, then by a weight. All in f32.
/// <https://arxiv.org/abs/1910.07467>.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor, // [width]
    eps: f32,
}

impl RmsNorm {
    /// From a weight `[width]`.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps: eps as f32 }
    }

    /// Takes `{name}.weight` `[width]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        width: usize,
        eps: f64,
    ) -> std::result::Result<Self, Error> {
        Ok(Self { weight: from.take(&format!("{name}.weight"), &[width])?, eps: eps as f32 })
    }

    /// For kernels on Metal.
    pub(crate) fn on_metal(&self) -> izwi_metal::Norm<'_> {
        izwi_metal::Norm::Rms { weight: &self.weight, eps: self.eps }
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.weight.elem_count()
    }

    /// `[rows, n * width]` to the same; every `width` elements are normalised on their own.
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
        let flat = x.rank() == 2;
        let rows = if flat { x.clone() } else { x.contiguous()?.reshape(((), width))? };
        let (count, row) = rows.dims2()?;
        let y = self.with(|norm| {
            let mut y = vec![0f32; count * row];
            with_rows(&rows, |rows| norm.forward(rows, row, &mut y))?;
            Ok(y)
        })?;
        Tensor::from_vec(y, x.dims(), x.device())
    }

    /// The norm for the CPU kernels.
    pub(crate) fn with<T>(&self, work: impl FnOnce(elementwise::RmsNorm<'_>) -> Result<T>) -> Result<T> {
        with_slices([&self.weight], |[weight]| work(elementwise::RmsNorm { weight, eps: self.eps }))?
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn norm_equals_candle_for_each_head() {
        let x = Tensor::randn(1f32, 2.0, (7, 3 * 40), &Device::Cpu).unwrap();
        let norm = RmsNorm { weight: Tensor::randn(0f32, 1.0, 40, &Device::Cpu).unwrap(), eps: 1e-6 };
        let rows = x.reshape((21, 40)).unwrap();
        let reference =
            candle_nn::ops::rms_norm(&rows, &norm.weight, 1e-6).unwrap().reshape((7, 120)).unwrap();
        let off = (norm.forward(&x).unwrap() - reference).unwrap().abs().unwrap();
        assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
        assert!(norm.forward(&Tensor::zeros((1, 41), DType::F32, &Device::Cpu).unwrap()).is_err());
    }

    #[test]
    fn strided_rows_and_a_row_alone_have_the_same_norm_to_the_bit() {
        let norm = RmsNorm { weight: Tensor::randn(0f32, 1.0, 33, &Device::Cpu).unwrap(), eps: 1e-6 };
        let [x, other] = [0, 1].map(|_| Tensor::randn(1f32, 2.0, (90, 33), &Device::Cpu).unwrap());
        let rows = |x: &Tensor| x.to_vec2::<f32>().unwrap();
        let normed = norm.forward(&x).unwrap();
        let wide = Tensor::cat(&[&other, &x, &other], 1).unwrap();
        assert_eq!(rows(&norm.forward(&wide.narrow(1, 33, 33).unwrap()).unwrap()), rows(&normed));
        let alone = norm.forward(&x.narrow(0, 7, 1).unwrap()).unwrap();
        assert_eq!(rows(&alone)[0], rows(&normed)[7]);
    }
}
