//! The language model: a decoder over text, encoded recordings and frames. Its hidden states decide text, and frames
//! through the depth transformer.

use candle_core::{Result, Tensor};

use super::config::{BACKBONE_NAMES, CODES, Config};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, StackRows};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::{Embedding, Linear, sum_embeddings};
use izwi_nn::precision::kv_type;
use izwi_types::Precision;

/// Weights of the language model.
#[derive(Debug)]
pub(super) struct Backbone {
    pub(super) stack: DecoderStack,
    /// Embedding and head of text.
    tokens: Linear,
    /// Embeddings of frames: the tables of all codebooks, concatenated.
    codes: Embedding,
    codebooks: usize,
    precision: Precision,
}

/// The content of one position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    Token(u32),
    Frame(&'a [u32]),
    /// A row of an encoded recording `[rows, width]`.
    Encoded(&'a Tensor, usize),
}

impl Backbone {
    /// Takes everything under `lfm` and `audio_embedding`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let shape = config.backbone().map_err(Error::Checkpoint)?;
        let (width, codebooks) = (shape.width, config.codebooks);
        // A head for all codebooks at once, unused in inference.
        let unused = ["embedding_norm", "to_logits"].map(|part| format!("audio_embedding.{part}.weight"));
        from.skip(|name| unused.iter().any(|unused| unused == name));
        let tokens = ("lfm.embed_tokens", config.lfm.vocab_size);
        Ok(Self {
            tokens: Linear::load_stacked(from, &[tokens], width, precision)?,
            codes: Embedding::load(from, "audio_embedding.embedding", codebooks * CODES, width)?,
            stack: DecoderStack::load(from, "lfm", shape, &BACKBONE_NAMES, precision)?,
            codebooks,
            precision,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.bytes() + self.codes.bytes() + self.stack.bytes()
    }

    /// Shape of one position's keys and values.
    pub(super) fn kv_layout(&self) -> KvLayout {
        self.stack.kv_layout(kv_type(self.precision))
    }

    /// Embeddings of positions, `[rows, width]`.
    ///
    /// # Errors
    /// A token, code or row does not exist.
    pub(super) fn embed(&self, rows: &[Row<'_>]) -> Result<Tensor> {
        let (mut ids, mut frames, mut encoded) = (Vec::new(), Vec::new(), Vec::new());
        let (mut id_rows, mut frame_rows, mut heard_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            match *row {
                Row::Token(id) => {
                    ids.push(id);
                    id_rows.push(at);
                }
                Row::Frame(codes) => {
                    frames.push(codes);
                    frame_rows.push(at);
                }
                Row::Encoded(recording, row) => {
                    encoded.push(recording.narrow(0, row, 1)?);
                    heard_rows.push(at);
                }
            }
        }
        let mut parts = Vec::new();
        if !ids.is_empty() {
            parts.push(self.tokens.select_rows(&ids)?);
        }
        if !frames.is_empty() {
            parts.push(self.embed_frames(&frames)?);
        }
        parts.extend(encoded);
        let x = Tensor::cat(&parts, 0)?;
        let mut order = vec![0u32; rows.len()];
        let places = id_rows.into_iter().chain(frame_rows).chain(heard_rows);
        places.enumerate().for_each(|(from, to)| order[to] = from as u32);
        if order.is_sorted() {
            return Ok(x);
        }
        x.contiguous()?.index_select(&Tensor::new(order, x.device())?, 0)
    }

    /// Embeddings of frames, summed over codebooks in order: `[frames, width]`.
    fn embed_frames(&self, frames: &[&[u32]]) -> Result<Tensor> {
        let entry = |(codebook, code): (usize, &u32)| code + (codebook * CODES) as u32;
        let ids: Vec<u32> = frames.iter().flat_map(|codes| codes.iter().enumerate().map(entry)).collect();
        sum_embeddings(&vec![&self.codes; self.codebooks], &ids)
    }

    /// Runs the decoder stack over positions: the normalised hidden states `[rows, width]` of the `wanted` rows.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn forward(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        rows: &mut StackRows<'_>,
        wanted: &[u32],
    ) -> Result<Tensor> {
        self.stack.forward_normed(x, kv, rows, wanted)
    }

    /// Logits of the next text token, `[rows, vocabulary]`, from normalised hidden states.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.tokens.forward(hidden)
    }
}
