//! Generation of frames: one pass of the talker over the positions of a step, then one fused step of the code predictor
//! for every sequence whose prompt is complete. Knows no codec and no scheduling.

use std::sync::Arc;

use candle_core::Tensor;

use super::config::{CONTROL_TOKENS, Config, Settings};
use super::open_text::OpenText;
use super::predictor::Predictor;
use super::prompt::{Codec, Frame, Position, Prompt};
use super::talker::Talker;
use izwi_nn::Error;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{FrameStart, StackRows};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::{Draw, DrawLimits, Draws, TokenDraw, TokenDraws};
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
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) prompt: Prompt,
    /// Text that arrives while it is spoken, in place of the prompt's trailing text.
    pub(super) open_text: Option<OpenText>,
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
    fn decided(&mut self, _hidden: &Tensor, _logits: &Tensor) {}
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
            for (at, outcome) in ready.iter().zip(self.decide(&hidden, &ready, inputs, kv, observer)?) {
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
        kv: &mut KvPool,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Outcome>, Error> {
        let logits = self.times.time(TALKER, || self.talker.logits(hidden))?;
        observer.decided(hidden, &logits);
        let rows = ready.iter().map(|&at| self.token_draw(&inputs[at]));
        let tokens = TokenDraws::new(rows.collect());
        let known = self.times.time(SAMPLING, || tokens.on_host(&logits))?;
        let frames = match known {
            Some(first) => self.frames_of_codes(hidden, &first, (ready, inputs), kv, observer)?,
            None => {
                let embedding = self.talker.codebook(0);
                let start = FrameStart::Logits { hidden, logits: &logits, draws: &tokens, embedding };
                let all: Vec<usize> = (0..ready.len()).collect();
                let frames = self.decode(start, &all, (ready, inputs), kv, observer)?;
                frames.into_iter().map(Some).collect()
            }
        };
        let end = self.config.talker_config.codec_eos_token_id;
        let outcomes = ready.iter().zip(frames).map(|(&at, frame)| match frame {
            Some(frame) if frame.first() != Some(&end) => {
                let frame: Frame = frame.into();
                let generated = &mut *inputs[at].generated;
                generated.drawn.extend(frame.first());
                generated.frames.push(Arc::clone(&frame));
                Outcome::Frame(frame)
            }
            _ => Outcome::End,
        });
        Ok(outcomes.collect())
    }

    /// The frames of the `ready` inputs whose `first` code is not the end.
    fn frames_of_codes(
        &self,
        hidden: &Tensor,
        first: &[u32],
        (ready, inputs): (&[usize], &[StepInput<'_>]),
        kv: &mut KvPool,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Option<Vec<u32>>>, Error> {
        let end = self.config.talker_config.codec_eos_token_id;
        let going: Vec<usize> = (0..first.len()).filter(|&place| first[place] != end).collect();
        let mut frames = vec![None; ready.len()];
        if going.is_empty() {
            return Ok(frames);
        }
        let hidden = if going.len() == ready.len() {
            hidden.clone()
        } else {
            let rows: Vec<u32> = going.iter().map(|&place| place as u32).collect();
            hidden.contiguous()?.index_select(&Tensor::new(rows, hidden.device())?, 0)?
        };
        let codes: Vec<u32> = going.iter().map(|&place| first[place]).collect();
        let embedding = self.talker.codebook(0);
        let start = FrameStart::Code { hidden: &hidden, codes: &codes, embedding };
        let others = self.decode(start, &going, (ready, inputs), kv, observer)?;
        for ((place, first), others) in going.into_iter().zip(codes).zip(others) {
            frames[place] = Some(std::iter::once(first).chain(others).collect());
        }
        Ok(frames)
    }

    /// Decodes frames of the ready inputs at `places`.
    fn decode(
        &self,
        start: FrameStart<'_>,
        places: &[usize],
        (ready, inputs): (&[usize], &[StepInput<'_>]),
        kv: &mut KvPool,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Vec<u32>>, Error> {
        let draws = places.iter().map(|&place| {
            let input = &inputs[ready[place]];
            let counter = self.counter(input);
            Draw { draws: &input.pass.draws, counter, sampling: &input.pass.residual_sampling }
        });
        let draws: Vec<_> = draws.collect();
        let mut observer = |logits: &Tensor| observer.codebook(logits);
        let decode = || self.predictor.decode(&self.talker, start, &draws, kv, &mut observer);
        Ok(self.times.time(PREDICTOR, decode)?)
    }

    /// Counter of the next frame's first draw.
    fn counter(&self, input: &StepInput<'_>) -> u64 {
        (input.generated.frames.len() * self.config.talker_config.stack.num_code_groups) as u64
    }

    /// How the next token of an input is drawn.
    fn token_draw<'a>(&self, input: &'a StepInput<'_>) -> TokenDraw<'a> {
        let (drawn, sampling) = (&input.generated.drawn, &input.pass.sampling);
        let draw = Draw { draws: &input.pass.draws, counter: self.counter(input), sampling };
        let talker = &self.config.talker_config;
        let limits =
            limits(drawn, (talker.stack.vocab_size, talker.codec_eos_token_id), sampling.repetition_penalty);
        TokenDraw { draw, limits, drawn }
    }
}

/// Restricts the next token: repetition penalty, minimum length, no control tokens but the `end`.
pub(super) fn limits(drawn: &[u32], (vocabulary, end): (usize, u32), penalty: f32) -> DrawLimits {
    DrawLimits {
        penalty,
        first_forbidden: vocabulary.saturating_sub(CONTROL_TOKENS) as u32,
        allowed: (drawn.len() >= MIN_TOKENS).then_some(end),
    }
}

impl StepInput<'_> {
    /// Whether the step computes the last known position, so that the next token can be sampled.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt.positions.len() + self.generated.frames.len()
    }

    /// The positions to compute, of the prompt and of generated frames; `None` where one does not exist.
    fn positions(&self, config: &Config) -> Option<Vec<Position>> {
        let prompt = &self.pass.prompt.positions;
        let position = |at: usize| match at.checked_sub(prompt.len()) {
            None => prompt.get(at).cloned(),
            Some(frame) => self.frame_position(frame, config),
        };
        (self.start..self.end).map(position).collect()
    }

    /// The position of a generated frame; `None` where it does not exist, or its text has not arrived.
    fn frame_position(&self, frame: usize, config: &Config) -> Option<Position> {
        let codes = self.generated.frames.get(frame)?;
        let text = match &self.pass.open_text {
            None => self.pass.prompt.trailing.get(frame).copied().unwrap_or(config.tts_pad_token_id),
            Some(text) => text.token(frame, config)?,
        };
        Some(Position { text, codec: Codec::Frame(Arc::clone(codes)) })
    }

    /// Content key of the position of the last generated frame; `None` where it is not known.
    pub(super) fn last_key(&self, config: &Config) -> Option<u64> {
        let last = self.generated.frames.len().checked_sub(1)?;
        self.frame_position(last, config).map(|position| position.key())
    }
}
