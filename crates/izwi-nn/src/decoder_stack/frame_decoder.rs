//! Decodes the codes of one codec frame, codebook after codebook, for several sequences together: the stack, a head, a draw
//! and the embedding of the drawn code for the next codebook.
//!
//! On the CPU every draw is read at once; on Metal all of a frame is one pass and its codes are read once. Knows no codec.

use candle_core::{DType, Result, Tensor, bail};
use izwi_metal::{Lookup, Pass};

use crate::decoder_stack::{DecoderStack, FrameSteps};
use crate::kv_pool::KvPool;
use crate::layers::{Embedding, Fused, Linear, Norm, RmsNorm};
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

/// The rows of a frame's first step, and what later steps add to embeddings.
struct Start<'a> {
    /// `[sequences, rows * width]`.
    x: Tensor,
    /// Rows of a sequence.
    rows: usize,
    parts: Option<&'a Tensor>,
}

impl FrameDecoder<'_> {
    /// A frame of each sequence, in the order of codebooks. `draws` draw the codes of the heads; the first of them is draw
    /// `first`. `observer` gets the logits `[sequences, codes]` of every head, all of them at the end of the frame on Metal.
    /// The stack's keys and values are kept in the scratch of `kv`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn decode(
        &self,
        start: FrameStart<'_>,
        (draws, first): (&[Draw<'_>], usize),
        kv: &mut KvPool,
        observer: &mut dyn FnMut(&Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        let Start { x, rows, parts } = self.start(start)?;
        let (device, sequences, heads) = (x.device().clone(), draws.len(), self.heads.len());
        let width = x.dim(1)? / rows;
        let steps = (0..heads).map(|step| if step == 0 { rows } else { 1 }).collect();
        let mut frame = FrameSteps::new(self.stack, kv, sequences, steps, &device)?;
        let has_tables = self.heads.iter().all(|head| head.codes.table().is_some());
        let fused = frame.fused_on(&device).filter(|_| has_tables);
        let tokens = match start {
            FrameStart::Logits { logits, draws, .. } if fused.is_some() => Some((draws, logits.dim(1)?)),
            FrameStart::Logits { .. } => bail!("frame: this device does not draw the first code"),
            _ => None,
        };
        let mut codes = FrameDraws::new(draws, (first, heads), tokens, &device)?;
        let opened = fused.map(Pass::open).transpose()?;
        let pass = opened.as_ref();
        if let (Some(pass), FrameStart::Logits { logits, embedding, .. }) = (pass, start) {
            let lookup = Lookup { table: known(embedding)?, add: None, out: &x, start: width };
            codes.choose_in(pass, logits, Some(lookup))?;
        }
        let mut next = Some(x.reshape((sequences * rows, width))?);
        let mut seen = Vec::with_capacity(heads);
        for (codebook, head) in self.heads.iter().enumerate() {
            let Some(mut x) = next.take() else { break };
            if let Some(project) = self.project {
                x = project.forward_in(pass, &x, Fused::default())?;
            }
            let y = frame.forward(pass, x)?;
            let norm = head.norm.map(Norm::Rms);
            let logits = head.head.forward_in(pass, &y, Fused { norm, ..Fused::default() })?; // [sequences, codes]
            next = self.draw(&mut codes, pass, &logits, codebook, parts)?;
            match pass {
                Some(_) => seen.push(logits),
                None => observer(&logits),
            }
        }
        drop(opened);
        let frames = codes.finish()?;
        seen.iter().for_each(observer);
        Ok(frames)
    }

    /// The rows of the first step; where its second row is not known yet, it is not set.
    fn start<'a>(&self, start: FrameStart<'a>) -> Result<Start<'a>> {
        let (hidden, second) = match start {
            FrameStart::Parts(parts) => {
                return Ok(Start { x: self.part(parts, 0)?, rows: 1, parts: Some(parts) });
            }
            FrameStart::Code { hidden, codes, embedding } => {
                (hidden, embedding.select(&Tensor::new(codes, hidden.device())?)?)
            }
            FrameStart::Logits { hidden, .. } => (hidden, hidden.clone()),
        };
        Ok(Start { x: Tensor::cat(&[hidden, &second], 1)?, rows: 2, parts: None })
    }

    /// Draws the codes of a codebook. The rows of the next step, if there is one: their embeddings, plus its part.
    fn draw(
        &self,
        codes: &mut FrameDraws<'_>,
        pass: Option<&Pass<'_>>,
        logits: &Tensor,
        codebook: usize,
        parts: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let embedding = self.heads[codebook].codes;
        let is_last = codebook + 1 == self.heads.len();
        let Some(pass) = pass else {
            let chosen = codes.choose(logits)?;
            if is_last {
                return Ok(None);
            }
            let x = embedding.select(&chosen)?;
            return match parts {
                Some(parts) => (self.part(parts, codebook + 1)? + x).map(Some),
                None => Ok(Some(x)),
            };
        };
        if is_last {
            codes.choose_in(pass, logits, None)?;
            return Ok(None);
        }
        let table = known(embedding)?;
        let (sequences, width) = (logits.dim(0)?, table.dim(1)?);
        let next = pass.empty((sequences, width), DType::F32)?;
        let add = parts.map(|parts| (parts, (codebook + 1) * width));
        codes.choose_in(pass, logits, Some(Lookup { table, add, out: &next, start: 0 }))?;
        Ok(Some(next))
    }

    fn part(&self, parts: &Tensor, codebook: usize) -> Result<Tensor> {
        let width = parts.dim(1)? / self.heads.len().max(1);
        parts.narrow(1, codebook * width, width)?.contiguous()
    }
}

fn known(embedding: &Embedding) -> Result<&Tensor> {
    match embedding.table() {
        Some(table) => Ok(table),
        None => bail!("frame: an embedding table is not on the device"),
    }
}
