//! A stack of causal decoder layers: pre-norm, grouped-query attention with normed and rotated heads over the paged
//! pool, gated SiLU feed-forward. Rows of any number of sequences, at any positions, in one pass per layer.
//!
//! Architecture: <https://arxiv.org/abs/2505.09388> (Qwen3). Knows no embedding, no head and no model.

use candle_core::{DType, Result, Tensor};

use super::activation::silu_gate;
use super::attention::{PagedSpan, paged};
use super::checkpoint::Checkpoint;
use super::kv_pool::{KvLayout, KvPool};
use super::precision::Precision;
use super::rms_norm::RmsNorm;
use super::rope::Rope;
use super::row_linear::RowLinear;
use crate::model::ModelError;

/// Sizes of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackShape {
    /// Width of a row.
    pub width: usize,
    /// Width of the feed-forward.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; they divide the query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Of every norm.
    pub eps: f64,
    /// Longest wave length of the rotation, over 2π.
    pub theta: f64,
}

/// Weights of a stack and the norm behind it.
#[derive(Debug)]
pub struct DecoderStack {
    shape: StackShape,
    layers: Vec<Layer>,
    norm: RmsNorm,
    rope: Rope,
}

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    query_key_value: RowLinear,
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    output: RowLinear,
    feed_forward_norm: RmsNorm,
    gate_up: RowLinear,
    down: RowLinear,
}

/// Which rows of a pass belong to whom.
#[derive(Debug)]
pub struct StackRows<'a> {
    spans: Vec<PagedSpan<'a>>,
    slots: Vec<u32>,
    positions: Vec<u32>,
}

impl<'a> StackRows<'a> {
    /// The rows of `spans`, one behind another, in a pool.
    pub fn new(kv: &KvPool, spans: Vec<PagedSpan<'a>>) -> Self {
        let slots = spans.iter().flat_map(|span| kv.slots(span.block_table, span.start, span.num_tokens));
        let positions = spans.iter().flat_map(|span| (span.start..).take(span.num_tokens));
        Self { slots: slots.collect(), positions: positions.map(|at| at as u32).collect(), spans }
    }
}

impl DecoderStack {
    /// Takes `{name}.layers.*` and `{name}.norm`, with the names of the transformers library.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: StackShape,
        precision: Precision,
    ) -> std::result::Result<Self, ModelError> {
        let layers = (0..shape.layers)
            .map(|layer| Layer::load(from, &format!("{name}.layers.{layer}"), shape, precision));
        Ok(Self {
            shape,
            layers: layers.collect::<std::result::Result<_, _>>()?,
            norm: RmsNorm::load(from, &format!("{name}.norm"), shape.width, shape.eps)?,
            rope: Rope::new(shape.head_dim, shape.theta),
        })
    }

    /// Bytes of the weights, the norms aside.
    pub fn bytes(&self) -> usize {
        let linears = self.layers.iter().flat_map(|layer| {
            [&layer.query_key_value, &layer.output, &layer.gate_up, &layer.down].map(RowLinear::bytes)
        });
        linears.sum()
    }

    /// Shape of one position's keys and values.
    pub fn kv_layout(&self, dtype: DType) -> KvLayout {
        let StackShape { layers, kv_heads, head_dim, .. } = self.shape;
        KvLayout { layers, kv_heads, head_dim, dtype }
    }

    /// Rows `[rows, width]` through every layer, without the last norm. `watch` sees the rows behind each layer.
    ///
    /// # Errors
    /// Shapes do not fit, or a block lies outside the pool.
    pub fn forward(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        rows: &StackRows<'_>,
        mut watch: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let mut x = x;
        let mut normed = match self.layers.first() {
            Some(layer) => layer.attention_norm.forward(&x)?,
            None => return Ok(x),
        };
        for (index, layer) in self.layers.iter().enumerate() {
            let change = self.attention(layer, index, &normed, kv, rows)?;
            (x, normed) = layer.feed_forward_norm.forward_sum(&x, &change)?;
            let change = layer.down.forward(&silu_gate(&layer.gate_up.forward(&normed)?)?)?;
            match self.layers.get(index + 1) {
                Some(next) => (x, normed) = next.attention_norm.forward_sum(&x, &change)?,
                None => x = (x + change)?,
            }
            watch(&x);
        }
        Ok(x)
    }

    /// The norm behind the last layer: `[rows, width]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn norm(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(x)
    }

    fn attention(
        &self,
        layer: &Layer,
        index: usize,
        normed: &Tensor,
        kv: &mut KvPool,
        rows: &StackRows<'_>,
    ) -> Result<Tensor> {
        let StackShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (q, own) = (heads * head_dim, kv_heads * head_dim);
        let mixed = layer.query_key_value.forward(normed)?; // [rows, (heads + 2 kv_heads) * head_dim]
        let count = mixed.dim(0)?;
        let part = |start: usize, width: usize| mixed.narrow(1, start, width);
        let queries = self.rope.forward_normed(&part(0, q)?, &rows.positions, &layer.query_norm)?;
        let keys = self.rope.forward_normed(&part(q, own)?, &rows.positions, &layer.key_norm)?;
        let values = part(q + own, own)?.contiguous()?;
        let shape = (count, kv_heads, head_dim);
        kv.write(index, &rows.slots, &keys.reshape(shape)?, &values.reshape(shape)?)?;
        layer.output.forward(&paged(kv, index, &queries, &rows.spans, heads)?)
    }
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: StackShape,
        precision: Precision,
    ) -> std::result::Result<Self, ModelError> {
        let StackShape { width, hidden, heads, kv_heads, head_dim, eps, .. } = shape;
        let own = kv_heads * head_dim;
        let attention = format!("{name}.self_attn");
        let projection = |part: &str| format!("{attention}.{part}_proj");
        let (gate, up) = (format!("{name}.mlp.gate_proj"), format!("{name}.mlp.up_proj"));
        let (q, k, v) = (projection("q"), projection("k"), projection("v"));
        Ok(Self {
            attention_norm: RmsNorm::load(from, &format!("{name}.input_layernorm"), width, eps)?,
            query_key_value: RowLinear::load_stacked(
                from,
                &[(&q, heads * head_dim), (&k, own), (&v, own)],
                width,
                precision,
            )?,
            query_norm: RmsNorm::load(from, &format!("{attention}.q_norm"), head_dim, eps)?,
            key_norm: RmsNorm::load(from, &format!("{attention}.k_norm"), head_dim, eps)?,
            output: RowLinear::load_stacked(from, &[(&projection("o"), width)], heads * head_dim, precision)?,
            feed_forward_norm: RmsNorm::load(from, &format!("{name}.post_attention_layernorm"), width, eps)?,
            gate_up: RowLinear::load_stacked(from, &[(&gate, hidden), (&up, hidden)], width, precision)?,
            down: RowLinear::load_stacked(
                from,
                &[(&format!("{name}.mlp.down_proj"), width)],
                hidden,
                precision,
            )?,
        })
    }
}
