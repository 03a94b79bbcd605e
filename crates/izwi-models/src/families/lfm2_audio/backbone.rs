//! The language model: reads text, recordings and frames, and decides text; its last row is what frames are made of.

use candle_core::{DType, Result, Tensor};

use super::config::{BACKBONE_NAMES, CODES, Config};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, StackRows};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::{Embedding, Linear};
use izwi_types::Precision;

/// Weights of the language model.
#[derive(Debug)]
pub(super) struct Backbone {
    pub(super) stack: DecoderStack,
    /// Text in and out.
    tokens: Linear,
    /// Frames in: the books' tables one behind another.
    codes: Embedding,
    books: usize,
    precision: Precision,
}

/// What one position is embedded from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    Token(u32),
    Frame(&'a [u32]),
    /// A row of `[rows, width]`.
    Heard(&'a Tensor, usize),
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
        let (width, books) = (shape.width, config.codebooks);
        // Of a head for all books at once, which nothing computes with.
        let unused = ["embedding_norm", "to_logits"].map(|part| format!("audio_embedding.{part}.weight"));
        from.skip(|name| unused.iter().any(|unused| unused == name));
        let tokens = ("lfm.embed_tokens", config.lfm.vocab_size);
        Ok(Self {
            tokens: Linear::load_stacked(from, &[tokens], width, precision)?,
            codes: Embedding::load(from, "audio_embedding.embedding", books * CODES, width)?,
            stack: DecoderStack::load(from, "lfm", shape, &BACKBONE_NAMES, precision)?,
            books,
            precision,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.tokens.bytes() + self.codes.bytes() + self.stack.bytes()
    }

    /// Shape of one position's keys and values: at f32 where the weights are exact, else at half of that.
    pub(super) fn kv_layout(&self) -> KvLayout {
        let dtype = if self.precision == Precision::F32 { DType::F32 } else { DType::F16 };
        self.stack.kv_layout(dtype)
    }

    /// Embeddings of positions, `[rows, width]`.
    ///
    /// # Errors
    /// A token, code or row does not exist.
    pub(super) fn embed(&self, rows: &[Row<'_>]) -> Result<Tensor> {
        let (mut ids, mut frames, mut heard) = (Vec::new(), Vec::new(), Vec::new());
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
                Row::Heard(recording, row) => {
                    heard.push(recording.narrow(0, row, 1)?);
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
        parts.extend(heard);
        let x = Tensor::cat(&parts, 0)?;
        let mut order = vec![0u32; rows.len()];
        let places = id_rows.into_iter().chain(frame_rows).chain(heard_rows);
        places.enumerate().for_each(|(from, to)| order[to] = from as u32);
        if order.is_sorted() {
            return Ok(x);
        }
        x.index_select(&Tensor::new(order, x.device())?, 0)
    }

    /// Embeddings of frames, the books' added up in order: `[frames, width]`.
    fn embed_frames(&self, frames: &[&[u32]]) -> Result<Tensor> {
        let book = |book: usize| {
            let ids = frames.iter().map(|codes| codes[book] + (book * CODES) as u32);
            self.codes.forward(&ids.collect::<Vec<_>>())
        };
        (1..self.books).try_fold(book(0)?, |sum, at| sum + book(at)?)
    }

    /// Positions through the stack: the rows behind the last norm, `[rows, width]`, of the wanted `rows`.
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

    /// Logits of the next text token, `[rows, vocabulary]`, of rows behind the last norm.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.tokens.forward(hidden)
    }
}
