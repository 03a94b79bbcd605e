//! Decodes the codes of one codec frame, codebook after codebook, for several sequences together: the stack, a head, a draw
//! and the embedding of the drawn code for the next codebook.
//!
//! On the CPU every draw is read at once; on Metal all of a frame is one pass and its codes are read once. Knows no codec.

use candle_core::{Result, Tensor, bail};

use crate::decoder_stack::{DecoderStack, FrameSteps};
use crate::layers::{Embedding, Linear, RmsNorm};
use crate::sampling::{Draw, FrameDraws, TokenDraws};

/// What follows the stack for one codebook.
#[derive(Debug, Clone, Copy)]
pub struct CodebookHead<'a> {
    /// Norm before the head, if any.
    pub norm: Option<&'a RmsNorm>,
    /// Logits of the codes.
    pub head: &'a Linear,
    /// Embeddings of the codes, the input of the next codebook; not used for the last one.
    pub codes: &'a Embedding,
}

/// The rows that a frame starts with.
#[derive(Debug, Clone, Copy)]
pub enum FrameStart<'a> {
    /// A part for each codebook, `[sequences, codebooks * width]`: a row is its part plus the embedding of the code before.
    Parts(&'a Tensor),
    /// A hidden state `[sequences, width]` and a known code of each sequence.
    Code {
        /// The hidden states.
        hidden: &'a Tensor,
        /// The codes, `[sequences]`.
        codes: &'a [u32],
        /// Embeddings of the codes.
        embedding: &'a Embedding,
    },
    /// A hidden state `[sequences, width]` and logits `[sequences, codes]` that the first code is drawn from, on the
    /// device. The frame has this code, too.
    Logits {
        /// The hidden states.
        hidden: &'a Tensor,
        /// The logits of the first code.
        logits: &'a Tensor,
        /// How the first code is drawn.
        draws: &'a TokenDraws<'a>,
        /// Embeddings of the codes.
        embedding: &'a Embedding,
    },
}

/// The stack and heads that decode a frame.
#[derive(Debug, Clone, Copy)]
pub struct FrameDecoder<'a> {
    /// All layers are attention.
    pub stack: &'a DecoderStack,
    /// From the width of the start's rows and the embeddings to the stack's; `None` where they are equal.
    pub project: Option<&'a Linear>,
    /// One for each codebook that is drawn.
    pub heads: &'a [CodebookHead<'a>],
}

impl FrameDecoder<'_> {
    /// A frame of each sequence, in the order of codebooks. `draws` draw the codes of the heads; the first of them is draw
    /// `first`. `observer` gets the logits `[sequences, codes]` of every head, all of them at the end of the frame on Metal.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn decode(
        &self,
        start: FrameStart<'_>,
        draws: &[Draw<'_>],
        first: usize,
        observer: &mut dyn FnMut(&Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        #[cfg(feature = "metal")]
        if let Some(frames) = self.decode_fused(start, draws, first, observer)? {
            return Ok(frames);
        }
        let (mut x, parts) = match start {
            FrameStart::Parts(parts) => (self.part(parts, 0)?, Some(parts)),
            FrameStart::Code { hidden, codes, embedding } => {
                let embedded = embedding.select(&Tensor::new(codes, hidden.device())?)?;
                (Tensor::stack(&[hidden, &embedded], 1)?.flatten(0, 1)?, None)
            }
            FrameStart::Logits { .. } => bail!("frame: this device does not draw the first code"),
        };
        let (count, device) = (draws.len(), x.device().clone());
        let positions = self.heads.len() + usize::from(parts.is_none());
        let mut frame = FrameSteps::new(self.stack, count, positions, &device)?;
        let mut codes = FrameDraws::new(draws, first, self.heads.len(), &device)?;
        for (codebook, head) in self.heads.iter().enumerate() {
            if let Some(project) = self.project {
                x = project.forward(&x)?;
            }
            let y = frame.forward(x)?;
            let y = head.norm.map_or_else(|| Ok(y.clone()), |norm| norm.forward(&y))?;
            let logits = head.head.forward(&y)?; // [sequences, codes]
            observer(&logits);
            let chosen = codes.choose(&logits)?;
            if codebook + 1 == self.heads.len() {
                break;
            }
            x = head.codes.select(&chosen)?;
            if let Some(parts) = parts {
                x = (self.part(parts, codebook + 1)? + x)?;
            }
        }
        codes.finish()
    }

    fn part(&self, parts: &Tensor, codebook: usize) -> Result<Tensor> {
        let width = parts.dim(1)? / self.heads.len().max(1);
        parts.narrow(1, codebook * width, width)?.contiguous()
    }
}
