//! Bidirectional pre-norm transformer layer over packed rows: every sequence attends to itself only.

use candle_core::{Result, Tensor, bail};

use super::{Epilogue, Fused, JointLinear, JointPart, LayerNorm, Linear, Norm, PackedRows};
use crate::Error;
use crate::attention::bidirectional;
use crate::checkpoint::Checkpoint;
use izwi_types::Precision;

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

/// Names of a layer's parts where queries, keys and values are layers of their own.
#[derive(Debug, Clone, Copy)]
pub struct EncoderNames {
    /// The norm before attention.
    pub attention_norm: &'static str,
    /// The layers of queries, keys and values, and whether each has a bias.
    pub qkv: [(&'static str, bool); 3],
    /// The layer after attention.
    pub output: &'static str,
    /// The norm before the feed-forward part.
    pub feed_forward_norm: &'static str,
    /// Its two layers.
    pub feed_forward: [&'static str; 2],
}

/// Pre-norm attention and feed-forward with residuals; PyTorch's `TransformerEncoderLayer` with
/// `norm_first`: <https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html>.
#[derive(Debug, Clone)]
pub struct EncoderLayer {
    attention_norm: LayerNorm,
    qkv: JointLinear,
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
            qkv: JointLinear::stacked(Linear::new(&qkv, Some(qkv_bias))?, 3),
            output: Linear::load(from, &format!("{name}.self_attn.out_proj"), width, width)?,
            heads,
            feed_forward_norm: LayerNorm::load(from, &format!("{name}.norm2"), width)?,
            fc1: Linear::new(&fc1, Some(from.take(&format!("{name}.linear1.bias"), &[hidden])?))?,
            fc2: Linear::load(from, &format!("{name}.linear2"), hidden, width)?,
        })
    }

    /// Takes the layer under other names, the weights kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_named(
        from: &mut Checkpoint,
        name: &str,
        names: &EncoderNames,
        config: EncoderConfig,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let EncoderConfig { width, heads, hidden } = config;
        let full = |part: &str| format!("{name}.{part}");
        let qkv = names.qkv.map(|(part, has_bias)| (full(part), has_bias));
        let qkv =
            qkv.each_ref().map(|(name, has_bias)| JointPart { name, outputs: width, has_bias: *has_bias });
        let [fc1, fc2] = names.feed_forward;
        let mut linear = |part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &full(part), sizes, true, precision)
        };
        let (output, fc1, fc2) = (
            linear(names.output, (width, width))?,
            linear(fc1, (width, hidden))?,
            linear(fc2, (hidden, width))?,
        );
        Ok(Self {
            attention_norm: LayerNorm::load(from, &full(names.attention_norm), width)?,
            qkv: JointLinear::load(from, &qkv, width, precision)?,
            output,
            heads,
            feed_forward_norm: LayerNorm::load(from, &full(names.feed_forward_norm), width)?,
            fc1,
            fc2,
        })
    }

    /// `[rows, width]` to the same; gap rows are undefined.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let rows = self.qkv.forward(x, Some(Norm::Layer(&self.attention_norm)))?;
        let mixed = attend(&rows.parts, self.heads, packed)?;
        let x = &self.output.forward_fused(&mixed, Fused { residual: Some(x), ..Fused::default() })?;
        let norm = Some(Norm::Layer(&self.feed_forward_norm));
        let hidden =
            self.fc1.forward_fused(x, Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() })?;
        self.fc2.forward_fused(&hidden, Fused { residual: Some(x), ..Fused::default() })
    }
}

/// Softmax attention within each sequence: queries, keys and values `[rows, width]` to the same. Gap rows attend to each
/// other.
///
/// # Errors
/// Shapes do not fit.
pub fn attend(qkv: &[Tensor], heads: usize, packed: &PackedRows) -> Result<Tensor> {
    let [q, k, v] = qkv else { bail!("attention: {} layers instead of queries, keys and values", qkv.len()) };
    let mut lengths = Vec::with_capacity(2 * packed.spans().len());
    let ends = packed.spans().iter().skip(1).map(|next| next.start).chain([packed.rows()]);
    for (span, end) in packed.spans().iter().zip(ends) {
        lengths.extend([span.len(), end - span.end].into_iter().filter(|&length| length > 0));
    }
    bidirectional(q, k, v, heads, &lengths)
}
