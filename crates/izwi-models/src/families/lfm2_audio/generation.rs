//! Generation of emissions: one pass of the language model over the positions of a step; then text tokens, and one fused
//! step of the depth transformer for every sequence whose next emission is a frame. Knows no codec and no scheduling.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::backbone::{Backbone, Row};
use super::config::Config;
use super::depthformer::{DepthObserver, Depthformer};
use super::modality::{Modality, ModalityState, Mode, TextOutcome};
use super::prompt::{Position, Prompt};
use izwi_nn::Error;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{StackRows, StackState};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::{Draw, Draws};
use izwi_types::PartTimes;
use izwi_types::Precision;
use izwi_types::{Emission, SamplingParams};

/// Timed parts of a step.
pub(super) const PARTS: [&str; 5] = ["encoder", "backbone", "depthformer", "sampling", "codec"];
/// Index of the encoder in [`PARTS`].
pub(super) const ENCODER: usize = 0;
const BACKBONE: usize = 1;
const DEPTHFORMER: usize = 2;
const SAMPLING: usize = 3;
/// Index of the codec in [`PARTS`].
pub(super) const CODEC: usize = 4;

/// The language model of a checkpoint.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) backbone: Backbone,
    pub(super) depthformer: Depthformer,
    times: PartTimes,
}

/// One pass: the prompt and how to sample.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) prompt: Prompt,
    /// The part of the recording that is transcribed, in a transcription.
    pub(super) window: Option<Window>,
    pub(super) mode: Mode,
    pub(super) text_sampling: SamplingParams,
    pub(super) audio_sampling: SamplingParams,
    pub(super) draws: Draws,
}

/// A window of a recording.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Start and end, in seconds from the start of the recording.
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    /// Whether it is the first of the recording.
    pub(super) is_first: bool,
}

/// What a pass has generated.
#[derive(Debug, Clone)]
pub(super) struct Generated {
    pub(super) emissions: Vec<Emission>,
    modality: ModalityState,
    /// Random numbers drawn.
    num_draws: u64,
    /// State of the convolution layers; `None` before the first step.
    conv_state: Option<StackState>,
}

impl Generated {
    /// The state of a pass that starts.
    pub(super) fn new(mode: Mode) -> Self {
        Self { emissions: Vec::new(), modality: ModalityState::new(mode), num_draws: 0, conv_state: None }
    }
}

/// One sequence in a step.
pub(super) struct StepInput<'a> {
    pub(super) pass: &'a Pass,
    pub(super) generated: &'a mut Generated,
    /// The encoder's rows of each recording, `[rows, width]`; required where the positions include one of them.
    pub(super) encoded: &'a [Option<Tensor>],
    /// Positions to compute.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether earlier results are only in the blocks.
    pub(super) begins: bool,
    pub(super) block_table: &'a [u32],
}

/// What a step generated for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Nothing: prompt or recomputed positions remain.
    Pending,
    /// An emission.
    Emission(Emission),
    /// The last emission.
    Last(Emission),
    /// The end, without an emission.
    End,
}

/// Receives the intermediate results of a step, for comparison with a reference.
pub(super) trait Observer: DepthObserver {
    /// Embeddings of the step's positions, `[rows, width]`.
    fn embedded(&mut self, _x: &Tensor) {}
    /// Normalised hidden states that decide emissions.
    fn decided(&mut self, _hidden: &Tensor) {}
    /// Logits of text, `[sequences, vocabulary]`.
    fn text(&mut self, _logits: &Tensor) {}
}

/// Discards intermediate results.
pub(super) struct NoObserver;

impl DepthObserver for NoObserver {}
impl Observer for NoObserver {}

impl Generator {
    /// Takes the language model of a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
        times: PartTimes,
    ) -> Result<Self, Error> {
        // Used in training only.
        from.skip(|name| ["codebook_offsets", "audio_loss_weights"].contains(&name));
        Ok(Self {
            backbone: Backbone::load(from, config, precision)?,
            depthformer: Depthformer::load(from, config, precision)?,
            times,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.backbone.bytes() + self.depthformer.bytes()
    }

    /// Bytes of the weights that one frame reads.
    pub(super) fn frame_bytes(&self) -> usize {
        self.backbone.stack.bytes() + self.depthformer.frame_bytes()
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
        let unknown = Error::Internal("an entry asks for positions that do not exist");
        let rows = inputs.iter().map(StepInput::rows).collect::<Option<Vec<_>>>().ok_or(unknown)?;
        let x = self.times.time(BACKBONE, || self.backbone.embed(&rows.concat()))?;
        drop(rows);
        observer.embedded(&x);
        let ready: Vec<usize> = (0..inputs.len()).filter(|&at| inputs[at].is_ready()).collect();
        let ends = inputs.iter().scan(0, |rows, input| {
            *rows += input.end - input.start;
            Some(*rows as u32 - 1)
        });
        let ends: Vec<u32> = ends.collect();
        let wanted: Vec<u32> = ready.iter().map(|&at| ends[at]).collect();
        let hidden = self.times.time(BACKBONE, || self.forward(x, kv, inputs, &wanted))?;
        let mut outcomes = vec![Outcome::Pending; inputs.len()];
        if !ready.is_empty() {
            observer.decided(&hidden);
            self.decide(&hidden, (&ready, inputs), kv, &mut outcomes, observer)?;
        }
        Ok(outcomes)
    }

    /// Runs the backbone over the rows `x` of all inputs: the normalised hidden states of the `wanted` rows.
    fn forward(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        inputs: &mut [StepInput<'_>],
        wanted: &[u32],
    ) -> Result<Tensor, Error> {
        let (stack, device) = (&self.backbone.stack, x.device().clone());
        let conv_state = inputs.iter_mut().map(|input| match input.generated.conv_state.take() {
            _ if input.begins => Ok(stack.resume(kv, input.start, input.block_table, &device)?),
            Some(conv_state) => Ok(conv_state),
            None => Err(Error::Internal("an entry continues without a state")),
        });
        let mut conv_state = conv_state.collect::<Result<Vec<StackState>, Error>>()?;
        let spans = inputs.iter().map(|input| PagedSpan {
            start: input.start,
            num_tokens: input.end - input.start,
            block_table: input.block_table,
        });
        let mut rows = StackRows::with_states(kv, spans.collect(), conv_state.iter_mut().collect());
        let hidden = self.backbone.forward(x, kv, &mut rows, wanted)?;
        drop(rows);
        for (input, conv_state) in inputs.iter_mut().zip(conv_state) {
            input.generated.conv_state = Some(conv_state);
        }
        Ok(hidden)
    }

    /// Samples the next emission of the `ready` inputs from their normalised `hidden` states.
    fn decide(
        &self,
        hidden: &Tensor,
        (ready, inputs): (&[usize], &mut [StepInput<'_>]),
        kv: &mut KvPool,
        outcomes: &mut [Outcome],
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let places: Vec<(usize, usize)> = ready.iter().copied().enumerate().collect();
        let is_audio = |&(_, at): &(usize, usize)| inputs[at].generated.modality.next() == Modality::Audio;
        let (audio, text): (Vec<_>, Vec<_>) = places.into_iter().partition(is_audio);
        if !text.is_empty() {
            let hidden = select(hidden, &text)?;
            let logits = self.times.time(BACKBONE, || self.backbone.logits(&hidden))?;
            observer.text(&logits);
            let logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            for (&(_, at), logits) in text.iter().zip(&logits) {
                let draw = inputs[at].draw(Modality::Text);
                let token = self.times.time(SAMPLING, || draw.choose(logits, 0));
                outcomes[at] = inputs[at].generated.take_text(token, u64::from(draws_numbers(draw.sampling)));
            }
        }
        if !audio.is_empty() {
            let hidden = select(hidden, &audio)?;
            let draws: Vec<_> = audio.iter().map(|&(_, at)| inputs[at].draw(Modality::Audio)).collect();
            let frames =
                self.times.time(DEPTHFORMER, || self.depthformer.frames(&hidden, &draws, kv, observer))?;
            for (&(_, at), frame) in audio.iter().zip(frames) {
                let drawn = draws_numbers(&inputs[at].pass.audio_sampling);
                let numbers = if drawn { frame.len() } else { 0 };
                outcomes[at] = inputs[at].generated.take_frame(frame, numbers as u64);
            }
        }
        Ok(())
    }
}

/// Selects rows of `hidden`.
fn select(hidden: &Tensor, rows: &[(usize, usize)]) -> candle_core::Result<Tensor> {
    if rows.len() == hidden.dim(0)? {
        return Ok(hidden.clone());
    }
    let rows: Vec<u32> = rows.iter().map(|&(row, _)| row as u32).collect();
    hidden.contiguous()?.index_select(&Tensor::new(rows, hidden.device())?, 0)
}

fn draws_numbers(sampling: &SamplingParams) -> bool {
    sampling.temperature > 0.0
}

impl Generated {
    fn take_text(&mut self, token: u32, numbers: u64) -> Outcome {
        self.num_draws += numbers;
        let emission = Emission::Token(token);
        match self.modality.text(token) {
            TextOutcome::EndBefore => Outcome::End,
            TextOutcome::EndAfter => {
                self.emissions.push(emission.clone());
                Outcome::Last(emission)
            }
            TextOutcome::Continue => {
                self.emissions.push(emission.clone());
                Outcome::Emission(emission)
            }
        }
    }

    fn take_frame(&mut self, mut codes: Vec<u32>, numbers: u64) -> Outcome {
        self.num_draws += numbers;
        self.modality.frame(&mut codes);
        let emission = Emission::Frame(Arc::from(codes));
        self.emissions.push(emission.clone());
        Outcome::Emission(emission)
    }
}

impl<'a> StepInput<'a> {
    /// Whether the step computes the last known position, so that the next emission can be sampled.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt.positions.len() + self.generated.emissions.len()
    }

    fn draw(&self, modality: Modality) -> Draw<'a> {
        let sampling = match modality {
            Modality::Text => &self.pass.text_sampling,
            Modality::Audio => &self.pass.audio_sampling,
        };
        Draw { draws: &self.pass.draws, counter: self.generated.num_draws, sampling }
    }

    /// The positions to compute, of the prompt and of generated emissions; `None` where one does not exist.
    fn rows(&self) -> Option<Vec<Row<'_>>> {
        let prompt = &self.pass.prompt.positions;
        let generated = |emission| match emission {
            &Emission::Token(id) => Some(Row::Token(id)),
            Emission::Frame(codes) => Some(Row::Frame(codes)),
            Emission::Said(_) | Emission::Call(_) => None,
        };
        let row = |at: usize| match at.checked_sub(prompt.len()) {
            Some(emission) => self.generated.emissions.get(emission).and_then(generated),
            None => match &prompt[at] {
                Position::Emission(emission) => generated(emission),
                Position::Encoded { recording, row } => {
                    Some(Row::Encoded(self.encoded.get(*recording)?.as_ref()?, *row))
                }
            },
        };
        (self.start..self.end).map(row).collect()
    }
}
