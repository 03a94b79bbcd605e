//! The text decoder: rows of any number of sequences, at any positions, through one pass per layer.
//!
//! Keys and values of self-attention are in the paged pool, those of cross-attention in the sequence's state. Source of the
//! architecture: <https://github.com/openai/whisper/blob/main/whisper/model.py> (`TextDecoder`).

use std::borrow::Cow;

use candle_core::{DType, Tensor};

use super::config::Config;
use izwi_nn::Error;
use izwi_nn::attention::{CrossKv, PagedRows, PagedSpan, Qkv, cross, write_and_attend};
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{ConvStateLayout, KvLayout, KvPool};
use izwi_nn::layers::{Epilogue, Fused, JointLinear, JointPart, LayerNorm, Linear, Norm};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Type of the cross-attention keys and values: half the memory traffic of f32.
const CROSS_DTYPE: DType = DType::F16;

/// A joint layer with another number of parts than was asked for.
const NOT_PARTS: Error = Error::Internal("a joint layer has other parts");

/// The output head, if the file has a copy of the embedding that it is tied to.
pub(super) const HEAD: &str = "proj_out.weight";

/// Consecutive positions of one sequence, or one position of all branches of a search.
#[derive(Debug)]
pub(super) struct Span<'a> {
    /// Tokens of the positions, or, of a search, the token of each branch at the first of them.
    pub(super) tokens: Cow<'a, [u32]>,
    /// The first position.
    pub(super) start: usize,
    /// Blocks of the sequence.
    pub(super) block_table: &'a [u32],
    /// Blocks of its further branches; empty without a search.
    pub(super) branch_tables: &'a [Vec<u32>],
    /// Cross-attention keys and values, one for each layer.
    pub(super) window: &'a [CrossKv],
    /// Rows, relative to the first, whose logits are returned.
    pub(super) heads: Vec<usize>,
    /// Whether to return the cross-attention weights of the alignment heads.
    pub(super) record_cross_weights: bool,
}

impl<'a> Span<'a> {
    /// A position of a search, whose branches have these tokens and block tables. They share the window.
    pub(super) fn of_branches(
        tokens: Vec<u32>,
        start: usize,
        (block_table, branch_tables): (&'a [u32], &'a [Vec<u32>]),
        window: &'a [CrossKv],
    ) -> Self {
        let heads = (0..tokens.len()).collect();
        let tokens = tokens.into();
        Self { tokens, start, block_table, branch_tables, window, heads, record_cross_weights: false }
    }

    /// Its rows of self-attention.
    fn paged(&self) -> impl Iterator<Item = PagedSpan<'a>> {
        let start = self.start;
        let num_tokens = if self.branch_tables.is_empty() { self.tokens.len() } else { 1 };
        let others = self.branch_tables.iter().map(Vec::as_slice);
        let tables = std::iter::once(self.block_table).chain(others);
        tables.map(move |block_table| PagedSpan { start, num_tokens, block_table })
    }

    /// The position of each token.
    fn places(&self) -> impl Iterator<Item = u32> {
        let step = usize::from(self.branch_tables.is_empty());
        (0..self.tokens.len()).map(move |row| (self.start + row * step) as u32)
    }
}

/// Output of a pass for one span.
#[derive(Debug, Default)]
pub(super) struct SpanOutput {
    /// `[vocabulary]` for each row of `heads`.
    pub(super) logits: Vec<Vec<f32>>,
    /// If recorded, the cross-attention weights of each alignment head, `[rows, positions]`.
    pub(super) cross_weights: Vec<Vec<f32>>,
}

/// The decoder's weights.
#[derive(Debug)]
pub(super) struct Decoder {
    embedding: Linear, // also the output head
    positions: Tensor, // [max positions, width]
    layers: Vec<Layer>,
    norm: LayerNorm,
    heads: usize,
    width: usize,
    /// For each layer, the alignment heads in it.
    alignment_heads: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Layer {
    self_attn_norm: LayerNorm,
    /// Queries, keys and values.
    qkv: JointLinear,
    self_output: Linear,
    cross_attn_norm: LayerNorm,
    cross_query: Linear,
    /// Keys and values over the encoder's output.
    window: JointLinear,
    cross_output: Linear,
    feed_forward_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Decoder {
    /// Takes everything under `model.decoder`; with `repeats_head`, also the copy of the embedding that some files have as
    /// the output head. Large weights are kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the head differs from the embedding.
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        alignment_heads: &[(usize, usize)],
        repeats_head: bool,
        precision: Precision,
    ) -> Result<Self, Error> {
        let (width, name) = (config.d_model, "model.decoder");
        let shape = (width, config.decoder_ffn_dim);
        let layers = (0..config.decoder_layers)
            .map(|layer| Layer::load(from, &format!("{name}.layers.{layer}"), shape, precision));
        let layers = layers.collect::<Result<_, _>>()?;
        let in_layer = |layer: usize| {
            let heads = alignment_heads.iter().filter(|&&(of, _)| of == layer);
            heads.map(|&(_, head)| head).collect()
        };
        let shape = vec![config.vocab_size, width];
        let head = repeats_head.then(|| (HEAD.to_owned(), shape.clone()));
        let tables = [(format!("{name}.embed_tokens.weight"), shape)].into_iter().chain(head);
        let sizes = (width, config.vocab_size);
        let tables = (&tables.collect::<Vec<_>>()[..], "tied, ");
        Ok(Self {
            embedding: Linear::load_transformed(from, tables, sizes, precision, first_of_equals)?,
            positions: from
                .take(&format!("{name}.embed_positions.weight"), &[config.max_target_positions, width])?,
            layers,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            heads: config.decoder_attention_heads,
            width,
            alignment_heads: (0..config.decoder_layers).map(in_layer).collect(),
        })
    }

    /// Shape of one position's keys and values in the pool.
    pub(super) fn kv_layout(&self) -> KvLayout {
        KvLayout {
            layers: self.layers.len(),
            kv_heads: self.heads,
            head_dim: self.width / self.heads,
            dtype: DType::F32,
            conv_state: ConvStateLayout::NONE,
        }
    }

    /// Bytes of the embedding, which is the output head too.
    #[cfg(test)]
    pub(super) fn embedding_bytes(&self) -> usize {
        self.embedding.bytes()
    }

    /// Bytes of the keys and values of a window of `positions`.
    pub(super) fn window_bytes(&self, positions: usize) -> usize {
        2 * self.layers.len() * positions * self.width * CROSS_DTYPE.size_in_bytes()
    }

    /// Keys and values of each layer over each window's encoder output `[positions, width]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub(super) fn windows(&self, encoded: &[Tensor]) -> Result<Vec<Vec<CrossKv>>, Error> {
        let window = |rows: &Tensor| {
            let layers = self.layers.iter().map(|layer| {
                let both = layer.window.forward(rows, None)?;
                let [keys, values] = &both.parts[..] else { return Err(NOT_PARTS) };
                Ok(CrossKv::new(keys, values, self.heads, CROSS_DTYPE)?)
            });
            layers.collect()
        };
        encoded.iter().map(window).collect()
    }

    /// Computes the rows of the spans; one output per span, in order.
    ///
    /// # Errors
    /// A token, position or block does not exist.
    pub(super) fn forward(&self, kv: &mut KvPool, spans: &[Span<'_>]) -> Result<Vec<SpanOutput>, Error> {
        let mut outputs: Vec<SpanOutput> = spans.iter().map(|_| SpanOutput::default()).collect();
        let paged: Vec<_> = spans.iter().flat_map(Span::paged).collect();
        let rows = PagedRows::new(kv, &paged)?;
        let mut x = self.embed(spans)?; // [rows, width]
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            x = self.self_attention(layer, index, &x, kv, &rows)?;
            let cross_weights;
            (x, cross_weights) = self.cross_attention(layer, index, &x, spans)?;
            for ((output, cross_weights), span) in outputs.iter_mut().zip(cross_weights).zip(spans) {
                if span.record_cross_weights && !cross_weights.is_empty() {
                    let one = cross_weights.len() / self.alignment_heads[index].len();
                    output.cross_weights.extend(cross_weights.chunks_exact(one).map(<[f32]>::to_vec));
                }
            }
            let norm = Some(Norm::Layer(&layer.feed_forward_norm));
            let into = Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() };
            let hidden = layer.fc1.forward_fused(&x, into)?; // [rows, hidden]
            x = layer.fc2.forward_fused(&hidden, sum_with(&x))?;
        }
        self.head(&x, spans, &mut outputs)?;
        Ok(outputs)
    }

    fn embed(&self, spans: &[Span<'_>]) -> Result<Tensor, Error> {
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens.iter()).copied().collect();
        let places: Vec<u32> = spans.iter().flat_map(Span::places).collect();
        let places = self.positions.index_select(&Tensor::new(places, self.positions.device())?, 0)?;
        Ok((self.embedding.select_rows(&tokens)? + places)?)
    }

    /// Causal self-attention with its residual.
    fn self_attention(
        &self,
        layer: &Layer,
        index: usize,
        x: &Tensor,
        kv: &mut KvPool,
        rows: &PagedRows<'_>,
    ) -> Result<Tensor, Error> {
        let projected = layer.qkv.forward(x, Some(Norm::Layer(&layer.self_attn_norm)))?;
        let [q, k, v] = &projected.parts[..] else { return Err(NOT_PARTS) };
        let qkv = Qkv { parts: [q, k, v], joint: projected.joint.as_ref() };
        let mixed = write_and_attend(kv, index, qkv, rows, self.heads)?;
        Ok(layer.self_output.forward_fused(&mixed, sum_with(x))?)
    }

    /// Cross-attention with its residual: the sum and the recorded weights of each span.
    fn cross_attention(
        &self,
        layer: &Layer,
        index: usize,
        x: &Tensor,
        spans: &[Span<'_>],
    ) -> Result<(Tensor, Vec<Vec<f32>>), Error> {
        let alignment_heads = &self.alignment_heads[index];
        let record = spans.iter().any(|span| span.record_cross_weights) && !alignment_heads.is_empty();
        let windows = spans.iter().map(|span| match span.window.get(index) {
            Some(window) => Ok((span.tokens.len(), window)),
            None => Err(Error::Internal("a window is not encoded")),
        });
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let norm = Some(Norm::Layer(&layer.cross_attn_norm));
        let q = layer.cross_query.forward_fused(x, Fused { norm, ..Fused::default() })?;
        let (mixed, cross_weights) = cross(&q, &windows, self.heads, record.then_some(alignment_heads))?;
        Ok((layer.cross_output.forward_fused(&mixed, sum_with(x))?, cross_weights))
    }

    /// Logits of the requested rows only: the head is the largest product of a pass.
    fn head(&self, x: &Tensor, spans: &[Span<'_>], outputs: &mut [SpanOutput]) -> Result<(), Error> {
        let mut first = 0;
        let mut rows: Vec<u32> = Vec::new();
        for span in spans {
            rows.extend(span.heads.iter().map(|row| (first + row) as u32));
            first += span.tokens.len();
        }
        if rows.is_empty() {
            return Ok(());
        }
        let all = rows.len() == x.dim(0)? && rows.is_sorted();
        let x =
            if all { x.clone() } else { x.contiguous()?.index_select(&Tensor::new(rows, x.device())?, 0)? };
        let norm = Some(Norm::Layer(&self.norm));
        let logits = self.embedding.forward_fused(&x, Fused { norm, ..Fused::default() })?; // [wanted, vocabulary]
        let mut logits = logits.to_vec2::<f32>()?.into_iter();
        for (output, span) in outputs.iter_mut().zip(spans) {
            output.logits.extend(logits.by_ref().take(span.heads.len()));
        }
        Ok(())
    }
}

/// The embedding; each further table must be a copy of it.
fn first_of_equals(tables: Vec<Tensor>) -> Result<Tensor, Error> {
    let [embedding, heads @ ..] = &tables[..] else { return Err(Error::Internal("no embedding")) };
    for head in heads {
        let same = head.to_dtype(DType::F32)?.eq(&embedding.to_dtype(DType::F32)?)?;
        if same.min_all()?.to_scalar::<u8>()? == 0 {
            return Err(Error::Checkpoint(format!("{HEAD}: differs from the embedding it is tied to")));
        }
    }
    Ok(embedding.clone())
}

/// What follows a product: the sum with the rows `x`.
fn sum_with(x: &Tensor) -> Fused<'_> {
    Fused { residual: Some(x), ..Fused::default() }
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, hidden): (usize, usize),
        precision: Precision,
    ) -> Result<Self, Error> {
        let (own, window) = (format!("{name}.self_attn"), format!("{name}.encoder_attn"));
        let linear = |from: &mut Checkpoint, part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, part, sizes, true, precision)
        };
        let joint = |from: &mut Checkpoint, of: &str, parts: &[(&str, bool)]| {
            let names: Vec<String> = parts.iter().map(|(part, _)| format!("{of}.{part}")).collect();
            let parts = names.iter().zip(parts).map(|(name, &(_, has_bias))| JointPart {
                name,
                outputs: width,
                has_bias,
            });
            JointLinear::load(from, &parts.collect::<Vec<_>>(), width, precision)
        };
        let square = (width, width);
        Ok(Self {
            self_attn_norm: LayerNorm::load(from, &format!("{name}.self_attn_layer_norm"), width)?,
            qkv: joint(from, &own, &[("q_proj", true), ("k_proj", false), ("v_proj", true)])?,
            self_output: linear(from, &format!("{own}.out_proj"), square)?,
            cross_attn_norm: LayerNorm::load(from, &format!("{name}.encoder_attn_layer_norm"), width)?,
            cross_query: linear(from, &format!("{window}.q_proj"), square)?,
            window: joint(from, &window, &[("k_proj", false), ("v_proj", true)])?,
            cross_output: linear(from, &format!("{window}.out_proj"), square)?,
            feed_forward_norm: LayerNorm::load(from, &format!("{name}.final_layer_norm"), width)?,
            fc1: linear(from, &format!("{name}.fc1"), (width, hidden))?,
            fc2: linear(from, &format!("{name}.fc2"), (hidden, width))?,
        })
    }
}
