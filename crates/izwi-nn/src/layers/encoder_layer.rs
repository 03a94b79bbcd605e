//! Bidirectional pre-norm transformer layer over packed rows: every sequence attends to itself only.

use candle_core::{Result, Tensor};

use crate::Error;
use crate::attention::bidirectional;
use crate::checkpoint::Checkpoint;
use crate::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, PackedRows};

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Channels in and out.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels between the two linear layers.
    pub hidden: usize,
}

/// Pre-norm attention and feed-forward with residuals; PyTorch's `TransformerEncoderLayer` with
/// `norm_first`: <https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html>.
#[derive(Debug, Clone)]
pub struct EncoderLayer {
    attention_norm: LayerNorm,
    qkv: Linear,
    output: Linear,
    heads: usize,
    feed_forward_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl EncoderLayer {
    /// Takes the layer under PyTorch's names.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        config: EncoderConfig,
    ) -> std::result::Result<Self, Error> {
        let EncoderConfig { width, heads, hidden } = config;
        let qkv = from.take(&format!("{name}.self_attn.in_proj_weight"), &[3 * width, width])?;
        let qkv_bias = from.take(&format!("{name}.self_attn.in_proj_bias"), &[3 * width])?;
        let fc1 = from.take(&format!("{name}.linear1.weight"), &[hidden, width])?;
        Ok(Self {
            attention_norm: LayerNorm::load(from, &format!("{name}.norm1"), width)?,
            qkv: Linear::new(&qkv, Some(qkv_bias))?,
            output: Linear::load(from, &format!("{name}.self_attn.out_proj"), width, width)?,
            heads,
            feed_forward_norm: LayerNorm::load(from, &format!("{name}.norm2"), width)?,
            fc1: Linear::new(&fc1, Some(from.take(&format!("{name}.linear1.bias"), &[hidden])?))?,
            fc2: Linear::load(from, &format!("{name}.linear2"), hidden, width)?,
        })
    }

    /// `[rows, width]` to the same; gap rows are undefined.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let norm = Some(Norm::Layer(&self.attention_norm));
        let qkv = self.qkv.forward_fused(x, Fused { norm, ..Fused::default() })?; // [rows, 3 * width]
        let added = Fused { residual: Some(x), ..Fused::default() };
        let x = self.output.forward_fused(&attend(&qkv, self.heads, packed)?, added)?;
        let norm = Some(Norm::Layer(&self.feed_forward_norm));
        let gelu = Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() };
        let h = self.fc1.forward_fused(&x, gelu)?; // [rows, hidden]
        self.fc2.forward_fused(&h, Fused { residual: Some(&x), ..Fused::default() })
    }
}

/// Softmax attention within each sequence: `qkv` `[rows, 3 * width]` to `[rows, width]`. Gap rows attend to each other.
fn attend(qkv: &Tensor, heads: usize, packed: &PackedRows) -> Result<Tensor> {
    let width = qkv.dim(1)? / 3;
    let part = |index: usize| qkv.narrow(1, index * width, width)?.contiguous();
    let mut lengths = Vec::with_capacity(2 * packed.spans().len());
    let ends = packed.spans().iter().skip(1).map(|next| next.start).chain([packed.rows()]);
    for (span, end) in packed.spans().iter().zip(ends) {
        lengths.extend([span.len(), end - span.end].into_iter().filter(|&length| length > 0));
    }
    bidirectional(&part(0)?, &part(1)?, &part(2)?, heads, &lengths)
}
