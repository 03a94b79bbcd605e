//! Bidirectional pre-norm transformer layer over packed rows: every sequence attends to itself only.

use candle_core::{Result, Tensor};

use crate::Error;
use crate::attention::bidirectional;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::{bias_gelu, residual};
use crate::layers::{LayerNorm, Linear, PackedRows};

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

/// Attention and feed-forward, each behind its norm and around a residual; PyTorch's `TransformerEncoderLayer` with
/// `norm_first`: <https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html>.
#[derive(Debug, Clone)]
pub struct EncoderLayer {
    attention_norm: LayerNorm,
    qkv: Linear,
    output: Linear,
    heads: usize,
    feed_forward_norm: LayerNorm,
    fc1: Linear,
    fc1_bias: Tensor,
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
            fc1: Linear::new(&fc1, None)?,
            fc1_bias: from.take(&format!("{name}.linear1.bias"), &[hidden])?,
            fc2: Linear::load(from, &format!("{name}.linear2"), hidden, width)?,
        })
    }

    /// `[rows, width]` to the same; what comes out in the gaps means nothing.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.attention_norm.forward(x)?)?; // [rows, 3 * width]
        let x = residual(x, self.output.forward(&attend(&qkv, self.heads, packed)?)?)?;
        let h = self.fc1.product(&self.feed_forward_norm.forward(&x)?)?;
        let h = bias_gelu(&h, &self.fc1_bias)?; // [rows, hidden]
        residual(&x, self.fc2.forward(&h)?)
    }
}

/// Softmax attention within each sequence: `qkv` `[rows, 3 * width]` to `[rows, width]`. Rows of a gap see each other.
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
