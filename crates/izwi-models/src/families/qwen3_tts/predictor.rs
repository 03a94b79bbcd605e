//! The code predictor: the other codes of a frame from the talker's hidden state and the first code, one codebook after
//! another.
//!
//! A frame of all sequences is one fused step; its keys and values live in a pool of that step.

use candle_core::{Result, Tensor};

use super::config::Config;
use super::talker::Talker;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{CodebookHead, DecoderStack, FrameDecoder, FrameStart, StackNames, StackShape};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::layers::Linear;
use izwi_nn::sampling::Draw;
use izwi_types::Precision;

/// Weights of the predictor without its embeddings.
#[derive(Debug)]
pub(super) struct Predictor {
    /// From the talker's width to its own; `None` where they are equal.
    project: Option<Linear>,
    stack: DecoderStack,
    /// One for each codebook after the first.
    heads: Vec<Linear>,
}

impl Predictor {
    /// Takes everything under `talker.code_predictor` but the embeddings.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let predictor = &config.talker_config.code_predictor_config;
        let (width, own) = (config.talker_config.stack.hidden_size, predictor.hidden_size);
        let name = "talker.code_predictor";
        let heads = (0..predictor.num_code_groups - 1).map(|codebook| {
            let name = format!("{name}.lm_head.{codebook}");
            Linear::load_stacked(from, &[(&name, predictor.vocab_size)], own, precision)
        });
        let heads = heads.collect::<std::result::Result<_, _>>()?;
        let project = if width == own {
            None
        } else {
            Some(Linear::load(from, &format!("{name}.small_to_mtp_projection"), width, own)?)
        };
        let shape = StackShape::from(predictor);
        Ok(Self {
            project,
            heads,
            stack: DecoderStack::load(
                from,
                &format!("{name}.model"),
                shape,
                &StackNames::TRANSFORMERS,
                precision,
            )?,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.project.iter().chain(&self.heads).map(Linear::bytes).sum::<usize>() + self.stack.bytes()
    }

    /// Bytes of the weights that one frame reads: the stack once for every codebook.
    pub(super) fn frame_bytes(&self) -> usize {
        let heads: usize = self.heads.iter().map(Linear::bytes).sum();
        let every = self.stack.bytes() + self.project.iter().map(Linear::bytes).sum::<usize>();
        heads + every * self.heads.len()
    }

    /// Decodes a frame of each sequence from `start`: the codes of every codebook but those that `start` gives. Passes the
    /// logits `[sequences, codes]` of every codebook after the first to `observer`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn decode(
        &self,
        talker: &Talker,
        start: FrameStart<'_>,
        draws: &[Draw<'_>],
        kv: &mut KvPool,
        observer: &mut dyn FnMut(&Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        let heads = self.heads.iter().enumerate().map(|(codebook, head)| CodebookHead {
            norm: self.stack.last_norm(),
            head,
            // The last one is not used.
            codes: talker.codebook((codebook + 1).min(self.heads.len())),
        });
        let heads: Vec<CodebookHead<'_>> = heads.collect();
        let decoder = FrameDecoder { stack: &self.stack, project: self.project.as_ref(), heads: &heads };
        // Draw 0 is the first code.
        decoder.decode(start, (draws, 1), kv, observer)
    }
}
