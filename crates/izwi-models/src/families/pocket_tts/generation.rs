//! Generation of latents: one pass of the transformer over the positions of a step, then the flow head for every sequence
//! whose prompt is complete. Knows no text, no codec and no scheduling.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::codec::Latent;
use super::config::Config;
use super::flow::FlowHead;
use super::noise::Noise;
use super::voice::Voice;
use izwi_nn::Error;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::{DecoderStack, StackNames, StackRows};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::{Embedding, LayerNorm, Linear};
use izwi_nn::sampling::mix;
use izwi_types::{PartTimes, Precision};

/// Timed parts of a step.
pub(super) const PARTS: [&str; 3] = ["language model", "flow head", "codec"];
const LANGUAGE_MODEL: usize = 0;
const FLOW_HEAD: usize = 1;
/// Index of the codec in [`PARTS`].
pub(super) const CODEC: usize = 2;
/// Frames before which the end is not decided: some voices would end a short text before it is spoken.
const MIN_FRAMES: usize = 6;
/// Where the heads are.
pub(super) const FLOW: &str = "flow_lm.flow_net";

/// The language model and its heads.
#[derive(Debug)]
pub(super) struct Generator {
    text: Embedding,
    text_projection: Option<Linear>,
    input: Linear,
    /// The input of the first frame.
    start: Latent,
    pub(super) stack: DecoderStack,
    norm: LayerNorm,
    z_projection: Option<Linear>,
    eos: Linear,
    pub(super) head: FlowHead,
    pub(super) eos_threshold: f32,
    precision: Precision,
    device: Device,
    times: PartTimes,
}

/// One pass: the text after the voice, and how to sample.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) voice: Arc<Voice>,
    pub(super) tokens: Vec<u32>,
    pub(super) temperature: f32,
    pub(super) noise: Noise,
    /// Frames after the one that the end is decided at.
    pub(super) frames_after_eos: usize,
}

/// The frames generated in a pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Generated {
    pub(super) latents: Vec<Latent>,
    /// The frame that the end was decided at.
    eos: Option<usize>,
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
    Frame(Latent),
    /// The end of speech.
    End,
}

/// Receives the intermediate results of a step, for comparison with a reference.
pub(super) trait Observer {
    /// Inputs of the heads `[rows, z]`, and for each row its latent and then the logit of the end.
    fn decided(&mut self, _z: &Tensor, _rows: &[Vec<f32>]) {}
}

/// Discards intermediate results.
pub(super) struct NoObserver;

impl Observer for NoObserver {}

/// Positions of one kind that follow each other in the rows of a step.
enum Segment<'a> {
    /// Rows of an encoded recording: the first, and how many.
    Voice(&'a Tensor, usize, usize),
    /// This many text tokens.
    Text(usize),
    /// This many latents.
    Latents(usize),
}

/// The rows of a step.
#[derive(Default)]
struct Rows<'a> {
    segments: Vec<Segment<'a>>,
    tokens: Vec<u32>,
    latents: Vec<f32>,
}

impl Generator {
    /// Takes everything under `flow_lm` but what belongs to voices and to the scale of latents.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
        times: PartTimes,
    ) -> Result<Self, Error> {
        let lm = &config.flow_lm;
        let (width, latent, table) =
            (lm.transformer.d_model, config.mimi.quantizer.dimension, &lm.lookup_table);
        let plain = |from: &mut Checkpoint, name: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &format!("flow_lm.{name}"), sizes, false, Precision::F32)
        };
        let rank = table.rank.unwrap_or(table.dim);
        let text = Embedding::load(from, "flow_lm.conditioner.embed", table.n_bins + 1, rank)?;
        let project = |from: &mut Checkpoint| plain(from, "conditioner.proj", (rank, table.dim));
        let z_dim = |from: &mut Checkpoint, z: usize| plain(from, "z_proj", (width, z));
        // The head is a small part and decides every sample: at most rounded to 16 bits.
        let of_head = if precision == Precision::F32 { Precision::F32 } else { Precision::Bf16 };
        let shape = lm.transformer.shape();
        Ok(Self {
            text,
            text_projection: table.rank.map(|_| project(from)).transpose()?,
            input: plain(from, "input_linear", (latent, width))?,
            start: from.take("flow_lm.bos_emb", &[latent])?.to_vec1()?.into(),
            stack: DecoderStack::load(from, "flow_lm.transformer", shape, &StackNames::KYUTAI, precision)?,
            norm: LayerNorm::load(from, "flow_lm.out_norm", width)?,
            z_projection: lm.z_dim.map(|z| z_dim(from, z)).transpose()?,
            eos: Linear::load(from, "flow_lm.out_eos", lm.z_dim.unwrap_or(width), 1)?,
            head: FlowHead::load(from, FLOW, config, of_head)?,
            eos_threshold: config.default_eos_threshold,
            precision,
            device: from.device().clone(),
            times,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.text.bytes() + self.frame_weights()
    }

    fn frame_weights(&self) -> usize {
        let linears = self.text_projection.iter().chain(&self.z_projection).chain([&self.input, &self.eos]);
        linears.map(Linear::bytes).sum::<usize>() + self.stack.bytes() + self.head.bytes()
    }

    /// Bytes of the weights that one frame reads.
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame_weights() - self.head.bytes() + self.head.frame_bytes()
    }

    /// Shape of one position's keys and values: f32 where the weights are, else f16.
    pub(super) fn kv_layout(&self) -> KvLayout {
        let dtype = if self.precision == Precision::F32 { DType::F32 } else { DType::F16 };
        self.stack.kv_layout(dtype)
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
        let (mut rows, mut spans, mut wanted, mut ready) =
            (Rows::default(), Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        for (at, input) in inputs.iter().enumerate() {
            let start = input.write_voice(kv)?;
            if start == input.end {
                continue;
            }
            input.push_rows(start, &self.start, &mut rows)?;
            let num_tokens = input.end - start;
            spans.push(PagedSpan { start, num_tokens, block_table: input.block_table });
            count += num_tokens;
            if input.is_ready() {
                ready.push(at);
                wanted.push(count as u32 - 1);
            }
        }
        let mut outcomes = vec![Outcome::Pending; inputs.len()];
        if spans.is_empty() {
            return Ok(outcomes);
        }
        let hidden = self.times.time(LANGUAGE_MODEL, || {
            let x = self.embed(&rows)?;
            let mut rows = StackRows::new(kv, spans);
            self.stack.forward_normed(x, kv, &mut rows, &wanted)
        })?;
        if !ready.is_empty() {
            for (at, outcome) in ready.iter().zip(self.decide(&hidden, &ready, inputs, observer)?) {
                outcomes[*at] = outcome;
            }
        }
        Ok(outcomes)
    }

    /// Rows `[rows, width]` of a step.
    fn embed(&self, rows: &Rows<'_>) -> candle_core::Result<Tensor> {
        let text = match rows.tokens.is_empty() {
            true => None,
            false => {
                let x = self.text.forward(&rows.tokens)?;
                Some(self.text_projection.as_ref().map_or(Ok(x.clone()), |project| project.forward(&x))?)
            }
        };
        let latents = match rows.latents.is_empty() {
            true => None,
            false => Some(self.embed_latents(&rows.latents)?),
        };
        let all_latents = rows.segments.iter().all(|segment| matches!(segment, Segment::Latents(_)));
        if let Some(latents) = latents.as_ref().filter(|_| all_latents) {
            return Ok(latents.clone());
        }
        let (mut tokens, mut frames) = (0, 0);
        let mut parts = Vec::with_capacity(rows.segments.len());
        for segment in &rows.segments {
            let (of, start, count) = match *segment {
                Segment::Voice(rows, start, count) => (Some(rows), start, count),
                Segment::Text(count) => (text.as_ref(), next(&mut tokens, count), count),
                Segment::Latents(count) => (latents.as_ref(), next(&mut frames, count), count),
            };
            let Some(of) = of else { candle_core::bail!("a step has no rows of a kind that it needs") };
            // A voice may be that of a replica on another device.
            parts.push(of.narrow(0, start, count)?.to_device(&self.device)?);
        }
        Tensor::cat(&parts, 0)
    }

    fn embed_latents(&self, latents: &[f32]) -> candle_core::Result<Tensor> {
        let width = self.start.len();
        let latents = Tensor::from_slice(latents, (latents.len() / width, width), &self.device)?;
        self.input.forward(&latents)
    }

    /// Samples the next latent of the `ready` inputs from their `hidden` states.
    fn decide(
        &self,
        hidden: &Tensor,
        ready: &[usize],
        inputs: &mut [StepInput<'_>],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Outcome>, Error> {
        let width = self.start.len();
        let noise = ready.iter().flat_map(|&at| inputs[at].noise(width)).collect::<Vec<f32>>();
        let (z, drawn) = self.times.time(FLOW_HEAD, || {
            let noise = Tensor::from_vec(noise, (ready.len(), width), hidden.device())?;
            let normed = self.norm.forward(hidden)?;
            let z =
                self.z_projection.as_ref().map_or(Ok(normed.clone()), |project| project.forward(&normed))?;
            // One tensor: a device is read once.
            let both = Tensor::cat(&[self.head.sample(&z, &noise)?, self.eos.forward(&z)?], 1)?;
            Ok::<_, Error>((z, both.to_vec2::<f32>()?))
        })?;
        observer.decided(&z, &drawn);
        let outcomes = ready.iter().zip(drawn).map(|(&at, drawn)| {
            let Some((&logit, latent)) = drawn.split_last() else { return Outcome::End };
            let StepInput { pass, generated, .. } = &mut inputs[at];
            generated.accept(latent, logit > self.eos_threshold, pass.frames_after_eos)
        });
        Ok(outcomes.collect())
    }
}

/// The start of the next `count` rows behind `end`, which moves.
fn next(end: &mut usize, count: usize) -> usize {
    *end += count;
    *end - count
}

impl Generated {
    /// Adds a latent, unless speech ends before it.
    fn accept(&mut self, latent: &[f32], is_eos: bool, frames_after_eos: usize) -> Outcome {
        let frame = self.latents.len();
        if is_eos && frame >= MIN_FRAMES && self.eos.is_none() {
            self.eos = Some(frame);
        }
        if self.eos.is_some_and(|eos| frame >= eos + frames_after_eos) {
            return Outcome::End;
        }
        let latent: Latent = latent.into();
        self.latents.push(Arc::clone(&latent));
        Outcome::Frame(latent)
    }
}

impl Pass {
    /// Positions of the prompt: the voice, the text, and the start of speech.
    pub(super) fn prompt_len(&self) -> usize {
        self.voice.positions() + self.tokens.len() + 1
    }

    /// Content key of each position of the prompt.
    pub(super) fn prompt_keys(&self) -> Arc<[u64]> {
        const START: u64 = 1 << 40;
        let text = self.tokens.iter().map(|&token| mix(u64::from(token)));
        self.voice.keys().chain(text).chain([mix(START)]).collect()
    }
}

impl<'a> StepInput<'a> {
    /// Whether the step computes the last known position, so that the next latent can be sampled.
    fn is_ready(&self) -> bool {
        self.end == self.pass.prompt_len() + self.generated.latents.len()
    }

    /// Writes the positions whose keys and values are known, and returns the first of the others.
    fn write_voice(&self, kv: &mut KvPool) -> Result<usize, Error> {
        if self.block_table.len() * kv.block_size() < self.end {
            return Err(Error::Internal("a block table is shorter than its sequence"));
        }
        let Some(layers) = self.pass.voice.layers() else { return Ok(self.start) };
        let end = self.pass.voice.positions().min(self.end).max(self.start);
        if end > self.start {
            let count = end - self.start;
            let slots = kv.slots(self.block_table, self.start, count);
            for (layer, (keys, values)) in layers.iter().enumerate() {
                let [keys, values] = [keys, values].map(|part| part.narrow(0, self.start, count));
                kv.write(layer, &slots, &keys?, &values?)?;
            }
        }
        Ok(end)
    }

    /// Adds the rows from `start` on; `first` is the input of the first frame.
    fn push_rows(&self, start: usize, first: &[f32], rows: &mut Rows<'a>) -> Result<(), Error> {
        let missing = Error::Internal("an entry asks for positions that do not exist");
        let pass: &'a Pass = self.pass;
        let voice = pass.voice.positions();
        let text = voice + self.pass.tokens.len();
        if start < voice {
            let recording = pass.voice.rows().ok_or(Error::Internal("a voice has no rows"))?;
            rows.segments.push(Segment::Voice(recording, start, voice.min(self.end) - start));
        }
        let range = |from: usize, to: usize| from.max(start)..to.min(self.end).max(from.max(start));
        let tokens = range(voice, text);
        if !tokens.is_empty() {
            rows.segments.push(Segment::Text(tokens.len()));
            let tokens = self.pass.tokens.get(tokens.start - voice..tokens.end - voice);
            rows.tokens.extend_from_slice(tokens.unwrap_or_default());
        }
        let frames = range(text, usize::MAX);
        if !frames.is_empty() {
            rows.segments.push(Segment::Latents(frames.len()));
        }
        for position in frames {
            match (position - text).checked_sub(1) {
                None => rows.latents.extend_from_slice(first),
                Some(frame) => match self.generated.latents.get(frame) {
                    Some(latent) => rows.latents.extend_from_slice(latent),
                    None => return Err(missing),
                },
            }
        }
        Ok(())
    }

    /// Noise of the next frame.
    fn noise(&self, width: usize) -> Vec<f32> {
        let deviation = self.pass.temperature.max(0.0).sqrt();
        let mut noise = self.pass.noise.frame(self.generated.latents.len(), width);
        noise.iter_mut().for_each(|value| *value *= deviation);
        noise
    }

    /// Content key of the position of the last latent; `None` where there is none.
    pub(super) fn last_key(&self) -> Option<u64> {
        let latent = self.generated.latents.last()?;
        Some(latent.iter().fold(mix(2), |key, value| mix(key ^ u64::from(value.to_bits()))))
    }
}
