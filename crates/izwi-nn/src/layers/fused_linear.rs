//! Linear layers with the norm before and the operations behind: one kernel on Metal, one operation after another
//! elsewhere. Knows no layer above them.

use candle_core::{DType, Result, Tensor, bail};
use izwi_metal::Pass;

use super::activation::{Epilogue, bias_gelu, bias_gelu_tanh, bias_silu, residual, silu_gate};
use super::{LayerNorm, Linear, RmsNorm};

/// A norm of rows.
#[derive(Debug, Clone, Copy)]
pub enum Norm<'a> {
    /// Root mean square.
    Rms(&'a RmsNorm),
    /// Mean and variance.
    Layer(&'a LayerNorm),
}

impl Norm<'_> {
    pub(super) fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }
}

/// What is fused with a product, in this order: norm, product and bias, epilogue, scale, residual.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fused<'a> {
    /// Of the rows before.
    pub norm: Option<Norm<'a>>,
    /// After the bias.
    pub epilogue: Epilogue,
    /// Factors of the outputs, `[outputs]`.
    pub scale: Option<&'a Tensor>,
    /// Added to the result, of its shape.
    pub residual: Option<&'a Tensor>,
}

impl Linear {
    /// `[rows, inputs]` f32 to `[rows, outputs]` f32, or half the outputs after a gate.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_fused(&self, x: &Tensor, fused: Fused<'_>) -> Result<Tensor> {
        self.forward_in(None, x, fused)
    }

    /// As [`Self::forward_fused`]; the rows are on Metal if there is a pass, and each is contiguous.
    pub(crate) fn forward_in(&self, pass: Option<&Pass<'_>>, x: &Tensor, fused: Fused<'_>) -> Result<Tensor> {
        if let Some(weights) = self.on_metal() {
            let fused = izwi_metal::Fused {
                norm: match fused.norm {
                    None => izwi_metal::Norm::None,
                    Some(Norm::Rms(norm)) => norm.on_metal(),
                    Some(Norm::Layer(norm)) => norm.on_metal(),
                },
                bias: self.bias(),
                epilogue: fused.epilogue,
                scale: fused.scale,
                residual: fused.residual,
            };
            if let Some(pass) = pass {
                return pass.linear(x, weights, fused);
            }
            let x = x.contiguous()?;
            return Pass::of(&x)?.linear(&x, weights, fused);
        }
        if pass.is_some() {
            bail!("linear: the weight is not on the device of its rows")
        }
        let normed = fused.norm.map(|norm| norm.forward(x)).transpose()?;
        let x = normed.as_ref().unwrap_or(x);
        let y = match fused.epilogue {
            Epilogue::None => self.forward(x)?,
            Epilogue::Silu => bias_silu(&self.product(x)?, &self.bias_or_zeros(x)?)?,
            Epilogue::Gelu => bias_gelu(&self.product(x)?, &self.bias_or_zeros(x)?)?,
            Epilogue::GeluTanh => bias_gelu_tanh(&self.product(x)?, &self.bias_or_zeros(x)?)?,
            Epilogue::Relu => self.forward(x)?.relu()?,
            Epilogue::GatedSilu => silu_gate(&self.forward(x)?)?,
        };
        let y = if let Some(scale) = fused.scale { y.broadcast_mul(scale)? } else { y };
        if let Some(x) = fused.residual { residual(x, y) } else { Ok(y) }
    }

    fn bias_or_zeros(&self, x: &Tensor) -> Result<Tensor> {
        match self.bias() {
            Some(bias) => Ok(bias.clone()),
            None => Tensor::zeros(self.outputs(), DType::F32, x.device()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn fused_products_equal_the_single_operations_to_the_bit() {
        let random =
            |rows: usize, width: usize| Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap();
        let column = |width| random(1, width).squeeze(0).unwrap();
        let (bias, scale, x, addend) = (column(20), column(20), random(3, 12), random(3, 20));
        let linear = Linear::new(&random(20, 12), Some(bias.clone())).unwrap();
        let norm = RmsNorm::new(column(12), 1e-6);
        let fused = Fused {
            norm: Some(Norm::Rms(&norm)),
            epilogue: Epilogue::Gelu,
            scale: Some(&scale),
            residual: Some(&addend),
        };
        let product = linear.product(&norm.forward(&x).unwrap()).unwrap();
        let expected = bias_gelu(&product, &bias).unwrap().broadcast_mul(&scale).unwrap();
        let expected = (addend.clone() + expected).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(linear.forward_fused(&x, fused).unwrap().to_vec2::<f32>().unwrap(), expected);
        let gated = Fused { epilogue: Epilogue::GatedSilu, ..Fused::default() };
        let expected = silu_gate(&linear.forward(&x).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(linear.forward_fused(&x, gated).unwrap().to_vec2::<f32>().unwrap(), expected);
    }
}
