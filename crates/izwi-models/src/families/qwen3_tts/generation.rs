//! Generation of frames: one pass of the talker over the positions of a step, then one fused step of the code predictor
//! for every sequence whose prompt is complete. Knows no codec and no scheduling.

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

/// Timed parts of a step.
pub(super) const PARTS: [&str; 4] = ["talker", "code predictor", "sampling", "codec"];
const TALKER: usize = 0;
const PREDICTOR: usize = 1;
const SAMPLING: usize = 2;
/// Index of the codec in [`PARTS`].
pub(super) const CODEC: usize = 3;
/// Ids at the end of the talker's vocabulary that are no codes: never sampled, except for the end of speech.
const CONTROL_TOKENS: usize = 1024;
/// The fewest frames of speech.
const MIN_TOKENS: usize = 2;

/// The language model of a checkpoint.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) config: Config,
    pub(super) talker: Talker,
    pub(super) predictor: Predictor,
    times: PartTimes,
}

/// One pass: the prompt and how to sample.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) prompt: Prompt,
    pub(super) sampling: SamplingParams,
    pub(super) residual_sampling: SamplingParams,
    pub(super) draws: Draws,
}

/// The frames generated in a pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Generated {
    pub(super) frames: Vec<Frame>,
    /// The first code of each frame.
    drawn: Vec<u32>,
}

/// One sequence in a step.
pub(super) struct StepInput<'a> {
    pub(super) pass: &'a Pass,
    pub(super) generated: &'a mut Generated,
    /// Positions to compute.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) block_table: &'a [u32],
}

/// What a step generated for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Nothing: prompt or recomputed positions remain.
    Pending,
    /// A frame.
    Frame(Frame),
    /// The end of speech.
    End,
}

/// Receives the intermediate results of a step, for comparison with a reference.
pub(super) trait Observer {
    /// Embeddings of the step's positions, `[rows, width]`.
    fn embedded(&mut self, _x: &Tensor) {}
    /// Normalised hidden states that decide tokens, and their raw logits.
    fn decided(&mut self, _hidden: &Tensor, _logits: &[Vec<f32>]) {}
    /// Logits of one codebook.
    fn codebook(&mut self, _logits: &Tensor) {}
}

/// Discards intermediate results.
pub(super) struct NoObserver;

impl Observer for NoObserver {}

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

    /// Computes a step of all sequences.
    ///
    /// # Errors
    /// An input asks for positions that do not exist, or a tensor operation failed.
    pub(super) fn step(
        &self,
        kv: &mut KvPool,
        inputs: &mut [StepInput<'_>],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Outcome>, Error> {
        let positions = inputs.iter().map(|input| input.positions(&self.config));
        let positions = positions.collect::<Option<Vec<_>>>();
        let positions = positions.ok_or(Error::Internal("an entry asks for positions that do not exist"))?;
        let positions: Vec<_> = positions.iter().flatten().collect();
        let x = self.times.time(TALKER, || self.talker.embed(&positions))?;
        observer.embedded(&x);
        let spans = inputs.iter().map(|input| PagedSpan {
            start: input.start,
            num_tokens: input.end - input.start,
            block_table: input.block_table,
        });
        let mut rows = StackRows::new(kv, spans.collect());
        let ready: Vec<usize> = (0..inputs.len()).filter(|&at| inputs[at].is_ready()).collect();
        let mut ends = inputs.iter().scan(0, |rows, input| {
            *rows += input.end - input.start;
            Some(*rows - 1)
        });
        let ends: Vec<u32> = ends.by_ref().map(|row| row as u32).collect();
        let wanted: Vec<u32> = ready.iter().map(|&at| ends[at]).collect();
        let hidden = self.times.time(TALKER, || self.talker.forward(x, kv, &mut rows, &wanted))?;
        let mut outcomes = vec![Outcome::Pending; inputs.len()];
        if !ready.is_empty() {
            for (at, outcome) in ready.iter().zip(self.decide(&hidden, &ready, inputs, observer)?) {
                outcomes[*at] = outcome;
            }
        }
        Ok(outcomes)
    }

    /// Samples the next token of the `ready` inputs from their normalised `hidden` states, and completes frames.
    fn decide(
        &self,
        hidden: &Tensor,
        ready: &[usize],
        inputs: &mut [StepInput<'_>],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Outcome>, Error> {
        let logits = self.times.time(TALKER, || self.talker.logits(hidden))?;
        let mut logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        observer.decided(hidden, &logits);
        let mut outcomes = vec![Outcome::End; ready.len()];
        let (mut going, mut first) = (Vec::new(), Vec::new());
        for (place, (&at, logits)) in ready.iter().zip(&mut logits).enumerate() {
            let token = self.times.time(SAMPLING, || self.draw(&inputs[at], logits));
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
            hidden.contiguous()?.index_select(&Tensor::new(rows, hidden.device())?, 0)?
        };
        let draws = going.iter().map(|&place| {
            let input = &inputs[ready[place]];
            let counter = self.counter(input);
            Draw { draws: &input.pass.draws, counter, sampling: &input.pass.residual_sampling }
        });
        let draws: Vec<_> = draws.collect();
        let others = self.times.time(PREDICTOR, || {
            self.predictor.complete(&self.talker, &hidden, &first, &draws, |logits| observer.codebook(logits))
        })?;
        for ((place, first), others) in going.into_iter().zip(first).zip(others) {
            let frame: Frame = std::iter::once(first).chain(others).collect::<Vec<_>>().into();
            let generated = &mut *inputs[ready[place]].generated;
            generated.drawn.push(first);
            generated.frames.push(Arc::clone(&frame));
            outcomes[place] = Outcome::Frame(frame);
        }
        Ok(outcomes)
    }

    /// Counter of the next frame's first draw.
    fn counter(&self, input: &StepInput<'_>) -> u64 {
        (input.generated.frames.len() * self.config.talker_config.stack.num_code_groups) as u64
    }

    /// Samples the next token of an input.
    fn draw(&self, input: &StepInput<'_>, logits: &mut [f32]) -> u32 {
        let end = self.config.talker_config.codec_eos_token_id as usize;
        restrict(logits, &input.generated.drawn, end, input.pass.sampling.repetition_penalty);
        choose(logits, &input.pass.sampling, input.pass.draws.uniform(self.counter(input)))
    }
}

/// Restricts the next token, in the reference's order: repetition penalty, minimum length, no control tokens.
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

impl StepInput<'_> {
    /// Whether the step computes the last known position, so that the next token can be sampled.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt.positions.len() + self.generated.frames.len()
    }

    /// The positions to compute, of the prompt and of generated frames; `None` where one does not exist.
    fn positions(&self, config: &Config) -> Option<Vec<Position>> {
        let prompt = &self.pass.prompt;
        let position = |at: usize| match at.checked_sub(prompt.positions.len()) {
            None => prompt.positions.get(at).cloned(),
            Some(frame) => self.generated.frames.get(frame).map(|codes| Position {
                text: prompt.trailing.get(frame).copied().unwrap_or(config.tts_pad_token_id),
                codec: Codec::Frame(Arc::clone(codes)),
            }),
        };
        (self.start..self.end).map(position).collect()
    }
}
