//! The talker: a decoder over text and frames that decides the first code of every frame.
//!
//! Owns the embeddings of text, codes and whole frames. Knows no sampling.

use candle_core::{Result, Tensor};
use sha2::{Digest, Sha256};

use super::config::Config;
use super::prompt::{Codec, Position};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, StackNames, StackRows, StackShape};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::{Embedding, Linear, sum_embeddings};
use izwi_nn::precision::kv_type;
use izwi_types::Precision;

/// Weights of the talker and the code embeddings of all codebooks.
#[derive(Debug)]
pub(super) struct Talker {
    text: Embedding,
    fc1: Linear,
    fc2: Linear,
    /// The talker's vocabulary, with the codes of the first codebook.
    tokens: Embedding,
    /// Embeddings of the other codebooks, in order.
    codebooks: Vec<Embedding>,
    pub(super) stack: DecoderStack,
    head: Linear,
    /// Text token of padding, and its embedding `[1, width]`.
    pad: (u32, Tensor),
    precision: Precision,
}

impl Talker {
    /// Takes everything under `talker` but the code predictor's layers.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let talker = &config.talker_config;
        let shape = StackShape::from(&talker.stack);
        let (width, text_width) = (shape.width, talker.text_hidden_size);
        // Used once for each text token, and decisive for pronunciation: not quantised.
        let projection = |from: &mut Checkpoint, name: &str, outputs| {
            let name = format!("talker.text_projection.{name}");
            Linear::load(from, &name, text_width, outputs)
        };
        let codebooks = (0..talker.stack.num_code_groups - 1).map(|codebook| {
            let name = format!("talker.code_predictor.model.codec_embedding.{codebook}");
            Embedding::load(from, &name, talker.code_predictor_config.vocab_size, width)
        });
        let codebooks = codebooks.collect::<std::result::Result<_, _>>()?;
        let text = "talker.model.text_embedding";
        let text = Embedding::load_lazy(from, text, talker.text_vocab_size, text_width)?;
        let fc1 = projection(from, "linear_fc1", text_width)?;
        let fc2 = projection(from, "linear_fc2", width)?;
        let pad = project(&text, &fc1, &fc2, &[config.tts_pad_token_id])?;
        Ok(Self {
            text,
            fc1,
            fc2,
            tokens: Embedding::load(from, "talker.model.codec_embedding", talker.stack.vocab_size, width)?,
            codebooks,
            stack: DecoderStack::load(from, "talker.model", shape, &StackNames::TRANSFORMERS, precision)?,
            head: Linear::load_stacked(
                from,
                &[("talker.codec_head", talker.stack.vocab_size)],
                width,
                precision,
            )?,
            pad: (config.tts_pad_token_id, pad),
            precision,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        let linears = [&self.fc1, &self.fc2, &self.head].map(Linear::bytes).into_iter().sum::<usize>();
        let tables = [&self.text, &self.tokens]
            .into_iter()
            .chain(&self.codebooks)
            .map(Embedding::bytes)
            .sum::<usize>();
        linears + tables + self.stack.bytes()
    }

    /// Bytes of the weights that one position reads, the tables aside.
    pub(super) fn frame_bytes(&self) -> usize {
        self.stack.bytes() + self.head.bytes()
    }

    /// Adds weights that differ between checkpoints of the same shape.
    ///
    /// # Errors
    /// The tensor cannot be copied from the device.
    pub(super) fn update_fingerprint(&self, digest: &mut Sha256) -> Result<()> {
        let ids: Vec<u32> = (0..self.tokens.entries() as u32).collect();
        let values = self.tokens.forward(&ids)?.flatten_all()?.to_vec1::<f32>()?;
        values.iter().for_each(|value| digest.update(value.to_le_bytes()));
        Ok(())
    }

    /// Shape of one position's keys and values.
    pub(super) fn kv_layout(&self) -> KvLayout {
        self.stack.kv_layout(kv_type(self.precision))
    }

    /// Embeddings of text tokens, `[ids, width]`.
    fn embed_text(&self, ids: &[u32]) -> Result<Tensor> {
        let (pad, embedding) = &self.pad;
        if ids.iter().all(|id| id == pad) {
            return embedding.broadcast_as((ids.len(), embedding.dim(1)?))?.contiguous();
        }
        project(&self.text, &self.fc1, &self.fc2, ids)
    }

    /// The embeddings of a codebook's codes.
    pub(super) fn codebook(&self, codebook: usize) -> &Embedding {
        codebook.checked_sub(1).map_or(&self.tokens, |codebook| &self.codebooks[codebook])
    }

    /// Embeddings of positions, `[positions, width]`.
    ///
    /// # Errors
    /// A token or code does not exist.
    pub(super) fn embed(&self, positions: &[&Position]) -> Result<Tensor> {
        let texts: Vec<u32> = positions.iter().map(|position| position.text).collect();
        let read = self.embed_text(&texts)?;
        // Grouped by kind: one lookup for each table.
        let (mut tokens, mut frames, mut speakers) = (Vec::new(), Vec::new(), Vec::new());
        for (row, position) in positions.iter().enumerate() {
            let row = row as u32;
            match &position.codec {
                Codec::None => {}
                Codec::Token(id) => tokens.push((row, *id)),
                Codec::Frame(codes) => frames.push((row, codes)),
                Codec::Speaker(vector) => speakers.push((row, vector)),
            }
        }
        let rows: Vec<u32> = tokens.iter().map(|(row, _)| *row).collect();
        let rows = rows.into_iter().chain(frames.iter().map(|(row, _)| *row));
        let rows: Vec<u32> = rows.chain(speakers.iter().map(|(row, _)| *row)).collect();
        if rows.is_empty() {
            return Ok(read);
        }
        let mut parts = Vec::new();
        if !tokens.is_empty() {
            parts.push(self.tokens.forward(&tokens.iter().map(|(_, id)| *id).collect::<Vec<_>>())?);
        }
        if !frames.is_empty() {
            parts.push(
                self.embed_frames(&frames.iter().map(|(_, codes)| codes.as_ref()).collect::<Vec<_>>())?,
            );
        }
        for (_, vector) in speakers {
            parts.push(Tensor::from_slice(vector, (1, vector.len()), read.device())?);
        }
        read.index_add(&Tensor::new(rows, read.device())?, &Tensor::cat(&parts, 0)?, 0)
    }

    /// Embeddings of frames, summed over codebooks in order: `[frames, width]`.
    fn embed_frames(&self, frames: &[&[u32]]) -> Result<Tensor> {
        let tables: Vec<&Embedding> = std::iter::once(&self.tokens).chain(&self.codebooks).collect();
        sum_embeddings(&tables, &frames.concat())
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

    /// Logits of the next token, `[rows, vocabulary]`, from normalised hidden states.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.forward(hidden)
    }
}

fn project(text: &Embedding, fc1: &Linear, fc2: &Linear, ids: &[u32]) -> Result<Tensor> {
    fc2.forward(&fc1.forward(&text.forward(ids)?)?.silu()?)
}
