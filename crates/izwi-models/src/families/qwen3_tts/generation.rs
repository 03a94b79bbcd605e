//! From prompts to frames: one pass of the talker over the rows of a step, then one fused step of the code predictor
//! for every sequence whose rows are all there.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::config::{Config, Settings};
use super::predictor::Predictor;
use super::prompt::{Codec, Frame, Position, Prompt};
use super::talker::Talker;
use izwi_nn::Error;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::StackRows;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::{Draw, Draws, choose, penalise};
use izwi_types::PartTimes;
use izwi_types::Precision;
use izwi_types::SamplingParams;

/// Parts of a pass that are timed.
pub(super) const PARTS: [&str; 4] = ["talker", "code predictor", "sampling", "codec"];
const TALKER: usize = 0;
const PREDICTOR: usize = 1;
const SAMPLING: usize = 2;
/// Index of the codec in [`PARTS`].
pub(super) const CODEC: usize = 3;
/// Ids at the end of the talker's vocabulary that are no codes: never drawn, the end of speech aside.
const CONTROL_TOKENS: usize = 1024;
/// Tokens before which speech does not end.
const MIN_TOKENS: usize = 2;

/// The language side of a checkpoint.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) config: Config,
    pub(super) talker: Talker,
    pub(super) predictor: Predictor,
    times: PartTimes,
}

/// What one sequence was asked for, one pass of it.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) prompt: Prompt,
    pub(super) sampling: SamplingParams,
    pub(super) residual_sampling: SamplingParams,
    pub(super) draws: Draws,
}

/// What of a pass has been said.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) frames: Vec<Frame>,
    /// The first code of each frame.
    drawn: Vec<u32>,
}

/// One sequence's share of a step.
pub(super) struct Share<'a> {
    pub(super) pass: &'a Pass,
    pub(super) said: &'a mut Said,
    /// Positions to compute.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) block_table: &'a [u32],
}

/// What one sequence got out of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Its prompt, or what it had said, is not computed to its end.
    Pending,
    /// It said this.
    Frame(Frame),
    /// It has come to its end.
    End,
}

/// Everything a step computes on its way, for comparison with a reference.
pub(super) trait Watch {
    /// The embeddings of the step's rows.
    fn embedded(&mut self, _x: &Tensor) {}
    /// Rows behind the last norm that decide tokens, and their raw logits.
    fn decided(&mut self, _hidden: &Tensor, _logits: &[Vec<f32>]) {}
    /// Logits of one book.
    fn book(&mut self, _logits: &Tensor) {}
}

/// Looks at nothing.
pub(super) struct Unwatched;

impl Watch for Unwatched {}

impl Generator {
    /// Takes everything under `talker`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        settings: &Settings,
        precision: Precision,
        times: PartTimes,
    ) -> Result<Self, Error> {
        let config = settings.config.clone();
        Ok(Self {
            talker: Talker::load(from, &config, precision)?,
            predictor: Predictor::load(from, &config, precision)?,
            config,
            times,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.talker.bytes() + self.predictor.bytes()
    }

    /// Bytes of the weights that one frame reads.
    pub(super) fn frame_bytes(&self) -> usize {
        self.talker.frame_bytes() + self.predictor.frame_bytes()
    }

    /// Computes a step of all shares.
    ///
    /// # Errors
    /// A share asks for positions nobody knows, or a tensor operation failed.
    pub(super) fn step(
        &self,
        kv: &mut KvPool,
        shares: &mut [Share<'_>],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Outcome>, Error> {
        let positions = shares.iter().map(|share| share.positions(&self.config));
        let positions = positions.collect::<Option<Vec<_>>>();
        let positions = positions.ok_or(Error::Internal("an entry asks for positions nobody knows"))?;
        let positions: Vec<_> = positions.iter().flatten().collect();
        let x = self.times.time(TALKER, || self.talker.embed(&positions))?;
        watch.embedded(&x);
        let spans = shares.iter().map(|share| PagedSpan {
            start: share.start,
            num_tokens: share.end - share.start,
            block_table: share.block_table,
        });
        let mut rows = StackRows::new(kv, spans.collect());
        let ready: Vec<usize> = (0..shares.len()).filter(|&at| shares[at].is_ready()).collect();
        let mut ends = shares.iter().scan(0, |rows, share| {
            *rows += share.end - share.start;
            Some(*rows - 1)
        });
        let ends: Vec<u32> = ends.by_ref().map(|row| row as u32).collect();
        let wanted: Vec<u32> = ready.iter().map(|&at| ends[at]).collect();
        let hidden = self.times.time(TALKER, || self.talker.forward(x, kv, &mut rows, &wanted))?;
        let mut outcomes = vec![Outcome::Pending; shares.len()];
        if !ready.is_empty() {
            for (at, outcome) in ready.iter().zip(self.decide(&hidden, &ready, shares, watch)?) {
                outcomes[*at] = outcome;
            }
        }
        Ok(outcomes)
    }

    /// Draws the next token of the `ready` shares, whose rows behind the last norm are `hidden`, and completes frames.
    fn decide(
        &self,
        hidden: &Tensor,
        ready: &[usize],
        shares: &mut [Share<'_>],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Outcome>, Error> {
        let logits = self.times.time(TALKER, || self.talker.logits(hidden))?;
        let mut logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        watch.decided(hidden, &logits);
        let mut outcomes = vec![Outcome::End; ready.len()];
        let (mut going, mut first) = (Vec::new(), Vec::new());
        for (place, (&at, logits)) in ready.iter().zip(&mut logits).enumerate() {
            let token = self.times.time(SAMPLING, || self.draw(&shares[at], logits));
            if token != self.config.talker_config.codec_eos_token_id {
                going.push(place);
                first.push(token);
            }
        }
        if going.is_empty() {
            return Ok(outcomes);
        }
        let hidden = if going.len() == ready.len() {
            hidden.clone()
        } else {
            let rows: Vec<u32> = going.iter().map(|&place| place as u32).collect();
            hidden.index_select(&Tensor::new(rows, hidden.device())?, 0)?
        };
        let draws = going.iter().map(|&place| {
            let share = &shares[ready[place]];
            let counter = self.counter(share);
            Draw { draws: &share.pass.draws, counter, sampling: &share.pass.residual_sampling }
        });
        let draws: Vec<_> = draws.collect();
        let others = self.times.time(PREDICTOR, || {
            self.predictor.complete(&self.talker, &hidden, &first, &draws, |logits| watch.book(logits))
        })?;
        for ((place, first), others) in going.into_iter().zip(first).zip(others) {
            let frame: Frame = std::iter::once(first).chain(others).collect::<Vec<_>>().into();
            let said = &mut *shares[ready[place]].said;
            said.drawn.push(first);
            said.frames.push(Arc::clone(&frame));
            outcomes[place] = Outcome::Frame(frame);
        }
        Ok(outcomes)
    }

    /// Counter of the next frame's first draw.
    fn counter(&self, share: &Share<'_>) -> u64 {
        (share.said.frames.len() * self.config.talker_config.stack.num_code_groups) as u64
    }

    /// The next token of a share.
    fn draw(&self, share: &Share<'_>, logits: &mut [f32]) -> u32 {
        let end = self.config.talker_config.codec_eos_token_id as usize;
        restrict(logits, &share.said.drawn, end, share.pass.sampling.repetition_penalty);
        choose(logits, &share.pass.sampling, share.pass.draws.uniform(self.counter(share)))
    }
}

/// The rules on the next token, in the reference's order: repetition, no early end, codes and the end alone.
pub(super) fn restrict(logits: &mut [f32], drawn: &[u32], end: usize, penalty: f32) {
    penalise(logits, drawn, penalty);
    if drawn.len() < MIN_TOKENS {
        logits[end] = f32::NEG_INFINITY;
    }
    let control = logits.len().saturating_sub(CONTROL_TOKENS);
    for (id, logit) in logits.iter_mut().enumerate().skip(control) {
        if id != end {
            *logit = f32::NEG_INFINITY;
        }
    }
}

impl Share<'_> {
    /// Whether the next token can be drawn behind the share's rows.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt.positions.len() + self.said.frames.len()
    }

    /// The positions to compute, prompt and frames that were said.
    fn positions(&self, config: &Config) -> Option<Vec<Position>> {
        let prompt = &self.pass.prompt;
        let position = |at: usize| match at.checked_sub(prompt.positions.len()) {
            None => prompt.positions.get(at).cloned(),
            Some(frame) => self.said.frames.get(frame).map(|codes| Position {
                text: prompt.trailing.get(frame).copied().unwrap_or(config.tts_pad_token_id),
                codec: Codec::Frame(Arc::clone(codes)),
            }),
        };
        (self.start..self.end).map(position).collect()
    }
}
