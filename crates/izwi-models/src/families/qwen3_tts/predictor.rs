//! The code predictor: from the talker's row and the first code of a frame, the other codes, one book after another.
//!
//! A frame of any number of sequences is one fused step; its keys and values live in a pool of their own that is gone
//! when the frame is done.

use candle_core::{Result, Tensor};

use super::config::Config;
use super::talker::Talker;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, FrameSteps, StackNames, StackShape};
use izwi_nn::layers::Linear;
use izwi_nn::sampling::{Draw, FrameDraws};
use izwi_types::Precision;

/// Weights of the predictor, its embeddings aside.
#[derive(Debug)]
pub(super) struct Predictor {
    /// From the talker's width to its own; `None` where they are equal.
    project: Option<Linear>,
    stack: DecoderStack,
    /// One for each book behind the first.
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
        let heads = (0..predictor.num_code_groups - 1).map(|book| {
            let name = format!("{name}.lm_head.{book}");
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

    /// Bytes of the weights that one frame reads: the stack once for every book.
    pub(super) fn frame_bytes(&self) -> usize {
        let heads: usize = self.heads.iter().map(Linear::bytes).sum();
        let every = self.stack.bytes() + self.project.iter().map(Linear::bytes).sum::<usize>();
        heads + every * self.heads.len()
    }

    /// Completes a frame of each sequence: `hidden` `[sequences, width]` are the rows that decided the `first` codes.
    /// Answers the other codes of each, and shows `watch` the logits `[sequences, codes]` of every book.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn complete(
        &self,
        talker: &Talker,
        hidden: &Tensor,
        first: &[u32],
        draws: &[Draw<'_>],
        mut watch: impl FnMut(&Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        let (count, device) = (first.len(), hidden.device());
        let mut frame = FrameSteps::new(&self.stack, count, self.heads.len() + 1, device)?;
        // The first draw was the first code's.
        let mut codes = FrameDraws::new(draws, 1, self.heads.len(), device)?;
        let embedded = talker.embed_book(0, &Tensor::new(first, device)?)?;
        // Two rows for each sequence: what the talker thought, and what it said.
        let mut x = Tensor::stack(&[hidden, &embedded], 1)?.flatten(0, 1)?;
        for (book, head) in self.heads.iter().enumerate() {
            if let Some(project) = &self.project {
                x = project.forward(&x)?;
            }
            let y = frame.forward(x)?;
            let logits = head.forward(&self.stack.norm(&y)?)?; // [sequences, codes]
            watch(&logits);
            let chosen = codes.choose(&logits)?;
            if book + 1 == self.heads.len() {
                break;
            }
            x = talker.embed_book(book + 1, &chosen)?;
        }
        codes.finish()
    }
}
