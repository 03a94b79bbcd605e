//! ConvNeXt block over packed rows: <https://arxiv.org/abs/2201.03545>, one-dimensional.

use candle_core::{Result, Tensor};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::residual;
use crate::layers::conv::DepthwiseConv;
use crate::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, PackedRows};
use izwi_types::Precision;

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvNeXtConfig {
    /// Channels in and out.
    pub width: usize,
    /// Channels between the two linear layers.
    pub hidden: usize,
    /// Taps of the depthwise kernel.
    pub taps: usize,
    /// Rows between two taps.
    pub dilation: usize,
}

/// Depthwise convolution, norm, two linear layers with GELU between, layer scale, residual.
#[derive(Debug, Clone)]
pub struct ConvNeXtBlock {
    depthwise: DepthwiseConv,
    norm: LayerNorm,
    pwconv1: Linear,
    pwconv2: Linear, // with the layer scale multiplied in
}

impl ConvNeXtBlock {
    /// Takes `{name}.dw`, `.norm`, `.pw1`, `.pw2` and `.gamma`; the two linear layers are kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        config: ConvNeXtConfig,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let ConvNeXtConfig { width, hidden, taps, dilation } = config;
        let depthwise = DepthwiseConv::load(from, &format!("{name}.dw"), width, taps, dilation)?;
        let norm = LayerNorm::load(from, &format!("{name}.norm"), width)?;
        let pwconv1 = from.take(&format!("{name}.pw1.weight"), &[hidden, width])?;
        let pwconv1_bias = from.take(&format!("{name}.pw1.bias"), &[hidden])?;
        let gamma = from.take(&format!("{name}.gamma"), &[width])?;
        let weight = from.take(&format!("{name}.pw2.weight"), &[width, hidden])?;
        let weight = weight.broadcast_mul(&gamma.unsqueeze(1)?)?;
        let bias = (from.take(&format!("{name}.pw2.bias"), &[width])? * gamma)?;
        let pwconv2 = Linear::with_precision(&weight, Some(bias), precision)?;
        let pwconv1 = Linear::with_precision(&pwconv1, Some(pwconv1_bias), precision)?;
        Ok(Self { depthwise, norm, pwconv1, pwconv2 })
    }

    /// `[rows, width]` to the same; gaps are zero before and after, but for Metal, where they reach no span.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let h = self.depthwise.forward_packed(x, packed)?;
        let fused =
            Fused { norm: Some(Norm::Layer(&self.norm)), epilogue: Epilogue::Gelu, ..Fused::default() };
        let h = self.pwconv1.forward_fused(&h, fused)?; // [rows, hidden]
        if h.device().is_metal() {
            return self.pwconv2.forward_fused(&h, Fused { residual: Some(x), ..Fused::default() });
        }
        residual(x, packed.clear_gaps(&self.pwconv2.forward(&h)?)?)
    }
}
