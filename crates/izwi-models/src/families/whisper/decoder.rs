//! The text decoder: rows of any number of sequences, at any positions, through one pass per layer.
//!
//! Its own keys and values live in the paged pool, those of the encoder's output with the sequence. Source of the
//! architecture: <https://github.com/openai/whisper/blob/main/whisper/model.py> (`TextDecoder`).

use candle_core::{DType, Tensor};

use super::config::Config;
use izwi_nn::Error;
use izwi_nn::attention::{CrossKv, PagedSpan, cross, paged};
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{ConvStateLayout, KvLayout, KvPool};
use izwi_nn::layers::activation::{bias_gelu, residual};
use izwi_nn::layers::{LayerNorm, Linear};
use izwi_types::Precision;

/// Type of the keys and values of a window: half the bytes of f32 to read for each token.
const CROSS_DTYPE: DType = DType::F16;

/// The output head, where a file has it beside the embedding it is tied to.
pub(super) const HEAD: &str = "proj_out.weight";

/// Neighbouring positions of one sequence.
#[derive(Debug)]
pub(super) struct Span<'a> {
    /// Tokens of the positions.
    pub(super) tokens: &'a [u32],
    /// The first position.
    pub(super) start: usize,
    /// Blocks of the sequence.
    pub(super) block_table: &'a [u32],
    /// Keys and values of the window, one for each layer.
    pub(super) window: &'a [CrossKv],
    /// Rows, counted from the first, whose logits are wanted.
    pub(super) heads: Vec<usize>,
    /// Whether to tell where in the window the rows look.
    pub(super) watched: bool,
}

/// What a pass answers for one span.
#[derive(Debug, Default)]
pub(super) struct SpanOutput {
    /// One vector of the vocabulary's size for each wanted row.
    pub(super) logits: Vec<Vec<f32>>,
    /// For a watched span, the weights of each alignment head, `[rows, positions]`.
    pub(super) looks: Vec<Vec<f32>>,
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
    watched: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Layer {
    own_norm: LayerNorm,
    own: Projections,
    key: Linear,
    value: Linear,
    window_norm: LayerNorm,
    window: Projections,
    window_key: Linear,
    window_value: Linear,
    feed_forward_norm: LayerNorm,
    expand: Linear,
    expand_bias: Tensor,
    project: Linear,
}

/// The two projections of an attention that run over the decoder's own rows in both kinds of attention.
#[derive(Debug)]
struct Projections {
    query: Linear,
    output: Linear,
}

impl Decoder {
    /// Takes everything under `model.decoder`; with `repeats_head`, also the copy of the embedding that some files
    /// have as the output head. Large weights are kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the head is no copy.
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
        let tables = (&tables.collect::<Vec<_>>()[..], "the first of equals, ");
        Ok(Self {
            embedding: Linear::load_transformed(from, tables, sizes, precision, first_of_equals)?,
            positions: from
                .take(&format!("{name}.embed_positions.weight"), &[config.max_target_positions, width])?,
            layers,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            heads: config.decoder_attention_heads,
            width,
            watched: (0..config.decoder_layers).map(in_layer).collect(),
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
                let (keys, values) = (layer.window_key.forward(rows)?, layer.window_value.forward(rows)?);
                Ok(CrossKv::new(&keys, &values, self.heads, CROSS_DTYPE)?)
            });
            layers.collect()
        };
        encoded.iter().map(window).collect()
    }

    /// Computes the spans' rows and answers for each span, in order.
    ///
    /// # Errors
    /// A token, position or block does not exist.
    pub(super) fn forward(&self, kv: &mut KvPool, spans: &[Span<'_>]) -> Result<Vec<SpanOutput>, Error> {
        let mut outputs: Vec<SpanOutput> = spans.iter().map(|_| SpanOutput::default()).collect();
        let slots: Vec<u32> =
            spans.iter().flat_map(|span| kv.slots(span.block_table, span.start, span.tokens.len())).collect();
        let mut x = self.embed(spans)?; // [rows, width]
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.own_attention(layer, index, &x, kv, (spans, &slots))?;
            let (normed, looks);
            (x, normed, looks) = self.window_attention(layer, index, &x, spans)?;
            for ((output, looks), span) in outputs.iter_mut().zip(looks).zip(spans) {
                if span.watched && !looks.is_empty() {
                    let one = looks.len() / self.watched[index].len();
                    output.looks.extend(looks.chunks_exact(one).map(<[f32]>::to_vec));
                }
            }
            let h = bias_gelu(&layer.expand.forward(&normed)?, &layer.expand_bias)?; // [rows, hidden]
            x = residual(&x, layer.project.forward(&h)?)?;
        }
        self.head(&x, spans, &mut outputs)?;
        Ok(outputs)
    }

    fn embed(&self, spans: &[Span<'_>]) -> Result<Tensor, Error> {
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens).copied().collect();
        let places = spans.iter().flat_map(|span| (span.start..).take(span.tokens.len()));
        let places: Vec<u32> = places.map(|place| place as u32).collect();
        let places = self.positions.index_select(&Tensor::new(places, self.positions.device())?, 0)?;
        Ok((self.embedding.select_rows(&tokens)? + places)?)
    }

    /// Causal attention among a sequence's own positions, around the residual.
    fn own_attention(
        &self,
        layer: &Layer,
        index: usize,
        x: &Tensor,
        kv: &mut KvPool,
        (spans, slots): (&[Span<'_>], &[u32]),
    ) -> Result<Tensor, Error> {
        let h = layer.own_norm.forward(x)?;
        let shape = (slots.len(), self.heads, self.width / self.heads);
        let keys = layer.key.forward(&h)?.reshape(shape)?; // [rows, heads, head_dim]
        let values = layer.value.forward(&h)?.reshape(shape)?;
        kv.write(index, slots, &keys, &values)?;
        let spans: Vec<PagedSpan<'_>> = spans
            .iter()
            .map(|span| PagedSpan {
                start: span.start,
                num_tokens: span.tokens.len(),
                block_table: span.block_table,
            })
            .collect();
        let mixed = paged(kv, index, &layer.own.query.forward(&h)?, &spans, self.heads)?;
        Ok(residual(x, layer.own.output.forward(&mixed)?)?)
    }

    /// Attention to the window, around the residual: the sum, its norm, and where each span looked.
    fn window_attention(
        &self,
        layer: &Layer,
        index: usize,
        x: &Tensor,
        spans: &[Span<'_>],
    ) -> Result<(Tensor, Tensor, Vec<Vec<f32>>), Error> {
        let watched = &self.watched[index];
        let record = spans.iter().any(|span| span.watched) && !watched.is_empty();
        let windows = spans.iter().map(|span| match span.window.get(index) {
            Some(window) => Ok((span.tokens.len(), window)),
            None => Err(Error::Internal("a window was not encoded")),
        });
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let q = layer.window.query.forward(&layer.window_norm.forward(x)?)?;
        let (mixed, looks) = cross(&q, &windows, self.heads, record.then_some(watched))?;
        let (x, normed) = layer.feed_forward_norm.forward_sum(x, &layer.window.output.forward(&mixed)?)?;
        Ok((x, normed, looks))
    }

    /// Logits of the wanted rows alone: the head is the largest product of a pass.
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
        let x = x.index_select(&Tensor::new(rows, x.device())?, 0)?;
        let logits = self.embedding.forward(&self.norm.forward(&x)?)?; // [wanted, vocabulary]
        let mut logits = logits.to_vec2::<f32>()?.into_iter();
        for (output, span) in outputs.iter_mut().zip(spans) {
            output.logits.extend(logits.by_ref().take(span.heads.len()));
        }
        Ok(())
    }
}

/// The embedding, of which a head may be a copy.
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

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, hidden): (usize, usize),
        precision: Precision,
    ) -> Result<Self, Error> {
        let (own, window) = (format!("{name}.self_attn"), format!("{name}.encoder_attn"));
        let row = |from: &mut Checkpoint, part: &str, shape: (usize, usize), bias: bool| {
            Linear::load_with_precision(from, part, shape, bias, precision)
        };
        let square = (width, width);
        Ok(Self {
            own_norm: LayerNorm::load(from, &format!("{name}.self_attn_layer_norm"), width)?,
            own: Projections::load(from, &own, width, precision)?,
            key: row(from, &format!("{own}.k_proj"), square, false)?,
            value: row(from, &format!("{own}.v_proj"), square, true)?,
            window_norm: LayerNorm::load(from, &format!("{name}.encoder_attn_layer_norm"), width)?,
            window: Projections::load(from, &window, width, precision)?,
            window_key: Linear::load_with_precision(
                from,
                &format!("{window}.k_proj"),
                square,
                false,
                precision,
            )?,
            window_value: Linear::load_with_precision(
                from,
                &format!("{window}.v_proj"),
                square,
                true,
                precision,
            )?,
            feed_forward_norm: LayerNorm::load(from, &format!("{name}.final_layer_norm"), width)?,
            expand: row(from, &format!("{name}.fc1"), (width, hidden), false)?,
            expand_bias: from.take(&format!("{name}.fc1.bias"), &[hidden])?,
            project: row(from, &format!("{name}.fc2"), (hidden, width), true)?,
        })
    }
}

impl Projections {
    fn load(from: &mut Checkpoint, name: &str, width: usize, precision: Precision) -> Result<Self, Error> {
        let mut load = |part: &str| {
            Linear::load_with_precision(from, &format!("{name}.{part}"), (width, width), true, precision)
        };
        Ok(Self { query: load("q_proj")?, output: load("out_proj")? })
    }
}
