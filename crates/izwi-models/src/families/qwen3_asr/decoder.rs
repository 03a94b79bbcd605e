//! The language model: a decoder over text and the rows of a recording. Knows no vocabulary and no sampling.

use candle_core::{DType, Tensor};

use super::config::Config;
use izwi_nn::Error;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, StackNames, StackRows};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::{Embedding, Linear};
use izwi_nn::precision::kv_type;
use izwi_types::Precision;

/// The weights.
#[derive(Debug)]
pub(super) struct Decoder {
    /// `None` where the head is the embedding.
    embedding: Option<Embedding>,
    pub(super) stack: DecoderStack,
    head: Linear,
    precision: Precision,
}

/// Content of positions.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    Tokens(&'a [u32]),
    /// Rows of the tower, `[rows, width]`.
    Heard(Tensor),
}

/// Positions of one sequence in a step.
#[derive(Debug)]
pub(super) struct Span<'a> {
    pub(super) pieces: Vec<Piece<'a>>,
    pub(super) start: usize,
    pub(super) num_tokens: usize,
    pub(super) block_table: &'a [u32],
    /// Those of its positions, from 0, after which the logits are wanted.
    pub(super) wanted: Vec<usize>,
}

impl Decoder {
    /// Takes `thinker.model` and `thinker.lm_head`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        const TABLE: &str = "thinker.model.embed_tokens";
        const HEAD: &str = "thinker.lm_head";
        let width = config.text.width;
        let (embedding, head) = if config.is_tied {
            // Published files have the one weight under both names.
            from.skip(|name| name.strip_prefix(HEAD) == Some(".weight"));
            (None, TABLE)
        } else {
            (Some(Embedding::load(from, TABLE, config.tokens, width)?), HEAD)
        };
        Ok(Self {
            embedding,
            head: Linear::load_stacked(from, &[(head, config.outputs)], width, precision)?,
            stack: DecoderStack::load(
                from,
                "thinker.model",
                config.text.clone(),
                &StackNames::TRANSFORMERS,
                precision,
            )?,
            precision,
        })
    }

    /// Shape of one position's keys and values.
    pub(super) fn kv_layout(&self) -> KvLayout {
        self.stack.kv_layout(kv_type(self.precision))
    }

    /// Bytes of the weights that a position reads, the table aside.
    pub(super) fn step_bytes(&self) -> usize {
        self.stack.bytes() + self.head.bytes()
    }

    /// Embeddings of all positions of `spans`, `[positions, width]`.
    pub(super) fn embed(&self, spans: &[Span<'_>]) -> Result<Tensor, Error> {
        let pieces = || spans.iter().flat_map(|span| &span.pieces);
        let tokens = pieces().filter_map(|piece| match piece {
            Piece::Tokens(tokens) => Some(*tokens),
            Piece::Heard(_) => None,
        });
        let tokens = tokens.collect::<Vec<_>>().concat();
        let read = match &self.embedding {
            _ if tokens.is_empty() => None,
            Some(table) => Some(table.forward(&tokens)?),
            None => Some(self.head.select_rows(&tokens)?),
        };
        let mut next = 0;
        let rows = pieces().map(|piece| match (piece, &read) {
            (Piece::Tokens(tokens), Some(read)) => {
                next += tokens.len();
                Ok(read.narrow(0, next - tokens.len(), tokens.len())?)
            }
            (Piece::Heard(rows), _) => Ok(rows.clone()),
            (Piece::Tokens(_), None) => Err(Error::Internal("a piece has no tokens")),
        });
        let rows = rows.collect::<Result<Vec<_>, Error>>()?;
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// Computes the positions of `spans`: the logits after each that is wanted, in order.
    ///
    /// # Errors
    /// A token does not exist, pieces and positions do not fit, or the device is out of memory.
    pub(super) fn forward(&self, kv: &mut KvPool, spans: &[Span<'_>]) -> Result<Vec<Vec<f32>>, Error> {
        let x = self.embed(spans)?;
        let mut wanted = Vec::with_capacity(spans.len());
        let mut start = 0;
        for span in spans {
            wanted.extend(span.wanted.iter().map(|at| (start + at) as u32));
            start += span.num_tokens;
        }
        let paged = spans.iter().map(|span| PagedSpan {
            start: span.start,
            num_tokens: span.num_tokens,
            block_table: span.block_table,
        });
        let mut rows = StackRows::new(kv, paged.collect());
        let hidden = self.stack.forward_normed(x, kv, &mut rows, &wanted)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.head.forward(&hidden)?.to_dtype(DType::F32)?.to_vec2()?)
    }
}
