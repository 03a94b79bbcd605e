//! From prompts to units: one pass of the language model over the rows of a step; then text tokens, and one fused step
//! of the small stack for every sequence that speaks.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::backbone::{Backbone, Row};
use super::config::Config;
use super::depthformer::{Depthformer, WatchDepth};
use super::modality::{Course, Modality, Mode, Turn};
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

/// Parts of a pass that are timed.
pub(super) const PARTS: [&str; 5] = ["encoder", "backbone", "depthformer", "sampling", "codec"];
/// Index of the encoder in [`PARTS`].
pub(super) const ENCODER: usize = 0;
const BACKBONE: usize = 1;
const DEPTHFORMER: usize = 2;
const SAMPLING: usize = 3;
/// Index of the codec in [`PARTS`].
pub(super) const CODEC: usize = 4;

/// The language side of a checkpoint.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) backbone: Backbone,
    pub(super) depthformer: Depthformer,
    times: PartTimes,
}

/// What one sequence was asked for, one pass of it.
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

/// What of a pass has been said.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) units: Vec<Emission>,
    course: Course,
    /// Numbers drawn.
    drawn: u64,
    /// What the stack carries on; `None` before the first step.
    carried: Option<StackState>,
}

impl Said {
    /// Nothing yet.
    pub(super) fn new(mode: Mode) -> Self {
        Self { units: Vec::new(), course: Course::new(mode), drawn: 0, carried: None }
    }
}

/// One sequence's share of a step.
pub(super) struct Share<'a> {
    pub(super) pass: &'a Pass,
    pub(super) said: &'a mut Said,
    /// What the encoder made of each recording, `[rows, width]`, where a row of it is among the positions.
    pub(super) heard: &'a [Option<Tensor>],
    /// Positions to compute.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether what was computed before is gone, but for what the blocks hold.
    pub(super) begins: bool,
    pub(super) block_table: &'a [u32],
}

/// What one sequence got out of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// Its prompt, or what it had said, is not computed to its end.
    Pending,
    /// It said this.
    Said(Emission),
    /// It said this, and has come to its end.
    Last(Emission),
    /// It has come to its end.
    End,
}

/// Everything a step computes on its way, for comparison with a reference.
pub(super) trait Watch: WatchDepth {
    /// The embeddings of the step's rows.
    fn embedded(&mut self, _x: &Tensor) {}
    /// Rows behind the last norm that decide units.
    fn decided(&mut self, _hidden: &Tensor) {}
    /// Logits of text, `[sequences, vocabulary]`.
    fn text(&mut self, _logits: &Tensor) {}
}

/// Looks at nothing.
pub(super) struct Unwatched;

impl WatchDepth for Unwatched {}
impl Watch for Unwatched {}

impl Generator {
    /// Takes the language side of a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
        times: PartTimes,
    ) -> Result<Self, Error> {
        // Of training.
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
        let unknown = Error::Internal("an entry asks for positions nobody knows");
        let rows = shares.iter().map(Share::rows).collect::<Option<Vec<_>>>().ok_or(unknown)?;
        let x = self.times.time(BACKBONE, || self.backbone.embed(&rows.concat()))?;
        drop(rows);
        watch.embedded(&x);
        let ready: Vec<usize> = (0..shares.len()).filter(|&at| shares[at].is_ready()).collect();
        let ends = shares.iter().scan(0, |rows, share| {
            *rows += share.end - share.start;
            Some(*rows as u32 - 1)
        });
        let ends: Vec<u32> = ends.collect();
        let wanted: Vec<u32> = ready.iter().map(|&at| ends[at]).collect();
        let hidden = self.times.time(BACKBONE, || self.forward(x, kv, shares, &wanted))?;
        let mut outcomes = vec![Outcome::Pending; shares.len()];
        if !ready.is_empty() {
            watch.decided(&hidden);
            self.decide(&hidden, &ready, shares, &mut outcomes, watch)?;
        }
        Ok(outcomes)
    }

    /// The shares' rows `x` through the backbone: those behind the last norm that are wanted.
    fn forward(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        shares: &mut [Share<'_>],
        wanted: &[u32],
    ) -> Result<Tensor, Error> {
        let (stack, device) = (&self.backbone.stack, x.device().clone());
        let carried = shares.iter_mut().map(|share| match share.said.carried.take() {
            _ if share.begins => Ok(stack.resume(kv, share.start, share.block_table, &device)?),
            Some(carried) => Ok(carried),
            None => Err(Error::Internal("an entry goes on from nothing")),
        });
        let mut carried = carried.collect::<Result<Vec<StackState>, Error>>()?;
        let spans = shares.iter().map(|share| PagedSpan {
            start: share.start,
            num_tokens: share.end - share.start,
            block_table: share.block_table,
        });
        let mut rows = StackRows::with_states(kv, spans.collect(), carried.iter_mut().collect());
        let hidden = self.backbone.forward(x, kv, &mut rows, wanted)?;
        drop(rows);
        for (share, carried) in shares.iter_mut().zip(carried) {
            share.said.carried = Some(carried);
        }
        Ok(hidden)
    }

    /// The next unit of each of the `ready` shares, whose rows behind the last norm are `hidden`.
    fn decide(
        &self,
        hidden: &Tensor,
        ready: &[usize],
        shares: &mut [Share<'_>],
        outcomes: &mut [Outcome],
        watch: &mut dyn Watch,
    ) -> Result<(), Error> {
        let places: Vec<(usize, usize)> = ready.iter().copied().enumerate().collect();
        let speaks = |&(_, at): &(usize, usize)| shares[at].said.course.next() == Modality::Audio;
        let (audio, text): (Vec<_>, Vec<_>) = places.into_iter().partition(speaks);
        if !text.is_empty() {
            let hidden = select(hidden, &text)?;
            let logits = self.times.time(BACKBONE, || self.backbone.logits(&hidden))?;
            watch.text(&logits);
            let logits = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            for (&(_, at), logits) in text.iter().zip(&logits) {
                let draw = shares[at].draw(Modality::Text);
                let token = self.times.time(SAMPLING, || draw.choose(logits, 0));
                outcomes[at] = shares[at].said.take_text(token, u64::from(draws_numbers(draw.sampling)));
            }
        }
        if !audio.is_empty() {
            let hidden = select(hidden, &audio)?;
            let draws: Vec<_> = audio.iter().map(|&(_, at)| shares[at].draw(Modality::Audio)).collect();
            let frames = self.times.time(DEPTHFORMER, || self.depthformer.frames(&hidden, &draws, watch))?;
            for (&(_, at), frame) in audio.iter().zip(frames) {
                let drawn = draws_numbers(&shares[at].pass.audio_sampling);
                let numbers = if drawn { frame.len() } else { 0 };
                outcomes[at] = shares[at].said.take_frame(frame, numbers as u64);
            }
        }
        Ok(())
    }
}

/// Rows of `hidden` by their places.
fn select(hidden: &Tensor, rows: &[(usize, usize)]) -> candle_core::Result<Tensor> {
    if rows.len() == hidden.dim(0)? {
        return Ok(hidden.clone());
    }
    let rows: Vec<u32> = rows.iter().map(|&(row, _)| row as u32).collect();
    hidden.index_select(&Tensor::new(rows, hidden.device())?, 0)
}

fn draws_numbers(sampling: &SamplingParams) -> bool {
    sampling.temperature > 0.0
}

impl Said {
    fn take_text(&mut self, token: u32, numbers: u64) -> Outcome {
        self.drawn += numbers;
        let unit = Emission::Token(token);
        match self.course.text(token) {
            Turn::EndsBefore => Outcome::End,
            Turn::EndsWith => {
                self.units.push(unit.clone());
                Outcome::Last(unit)
            }
            Turn::Goes => {
                self.units.push(unit.clone());
                Outcome::Said(unit)
            }
        }
    }

    fn take_frame(&mut self, mut codes: Vec<u32>, numbers: u64) -> Outcome {
        self.drawn += numbers;
        self.course.frame(&mut codes);
        let unit = Emission::Frame(Arc::from(codes));
        self.units.push(unit.clone());
        Outcome::Said(unit)
    }
}

impl<'a> Share<'a> {
    /// Whether the next unit can be drawn behind the share's rows.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt.positions.len() + self.said.units.len()
    }

    fn draw(&self, modality: Modality) -> Draw<'a> {
        let sampling = match modality {
            Modality::Text => &self.pass.text_sampling,
            Modality::Audio => &self.pass.audio_sampling,
        };
        Draw { draws: &self.pass.draws, counter: self.said.drawn, sampling }
    }

    /// The positions to compute, prompt and units that were said.
    fn rows(&self) -> Option<Vec<Row<'_>>> {
        let prompt = &self.pass.prompt.positions;
        let said = |unit| match unit {
            &Emission::Token(id) => Row::Token(id),
            Emission::Frame(codes) => Row::Frame(codes),
        };
        let row = |at: usize| match at.checked_sub(prompt.len()) {
            Some(unit) => self.said.units.get(unit).map(said),
            None => match &prompt[at] {
                Position::Said(unit) => Some(said(unit)),
                Position::Heard { recording, row } => {
                    Some(Row::Heard(self.heard.get(*recording)?.as_ref()?, *row))
                }
            },
        };
        (self.start..self.end).map(row).collect()
    }
}
