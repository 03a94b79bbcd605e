//! The parakeet family: recordings to text by a conformer and a transducer or CTC, a stretch of speech of at most 30 s in
//! each pass.
//!
//! The encoder computes all stretches of a step together; the search follows in lockstep. Source of the architecture: the
//! Python package `nemo-toolkit` 3.0.0; checkpoints in the layout of `transformers` 5.24.0.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use izwi_audio::vad::VadModel;

use self::config::{Config, HOP, HeadShape, SAMPLE_RATE_HZ, nemo_name};
use self::transducer::Transducer;
use self::vocabulary::{Timed, TimedWord, Vocabulary};
use super::LoadOptions;
use crate::conformer::{Encoder, FRAMES_PER_ROW, FrontEnd, Mel};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::regions::{self, Region, WINDOW_FRAMES};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::layers::Linear;
use izwi_nn::sampling::logprob;
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, Precision, PrepareLimits, Prepared, SamplingParams, Segment,
    StepOutput, Task, TokenLogprob, Word, Work,
};

mod config;
#[cfg(test)]
mod golden;
mod transducer;
mod vocabulary;

/// Seconds of a row of the encoder.
const ROW_S: f64 = (FRAMES_PER_ROW * HOP) as f64 / SAMPLE_RATE_HZ as f64;

/// Loads the checkpoint in `folder`: `config.json`, `tokenizer.json` and `model.safetensors` or its parts.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the error
/// names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Parakeet::load(folder, options)?))
}

#[derive(Debug)]
struct Parakeet {
    info: ModelInfo,
    front_end: FrontEnd,
    encoder: Encoder,
    head: Head,
    vocabulary: Vocabulary,
    vad: VadModel,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// What makes tokens of rows.
#[derive(Debug)]
enum Head {
    Ctc { output: Linear, blank: usize },
    Transducer(Box<Transducer>),
}

/// A prepared recording.
#[derive(Debug)]
struct Recording {
    stretches: Vec<Stretch>,
    has_words: bool,
    has_logprobs: bool,
    /// Words of a window of live audio that are decided, and not part of its transcript.
    decided: usize,
}

/// A stretch of speech.
#[derive(Debug)]
struct Stretch {
    /// Its first frame in the recording.
    start: usize,
    mel: Mel,
}

impl Parakeet {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let vocabulary = Vocabulary::load(folder, config.tokens)?;
        let precision = options.weight_precision();
        let mut from = Checkpoint::open_folder(folder, &options.device)?;
        from.rename(nemo_name);
        let mut from = options.cached(from, precision);
        let encoder = Encoder::load(&mut from, "encoder", config.encoder, precision)?;
        let head = Head::load(&mut from, &config, precision)?;
        let weight_bytes = from.taken() * precision.bits() / 8;
        from.finish()?;
        Ok(Self {
            info: ModelInfo {
                sample_rate_hz: SAMPLE_RATE_HZ as u32,
                input_sample_rate_hz: SAMPLE_RATE_HZ as u32,
                tasks: vec![Task::Asr],
                voices: Vec::new(),
                speed_range: None,
                takes_instructions: false,
                // A checkpoint does not tell them, its manifest does.
                languages: Vec::new(),
                translates: false,
                clones_voices: false,
                appends_text: false,
                times_words: false,
                sampling: SamplingParams::GREEDY,
                weight_bytes,
                state_bytes: 0,
            },
            front_end: FrontEnd::new(config.mel()),
            encoder,
            head,
            vocabulary,
            vad: options.vad.clone(),
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    fn stretch(&self, samples: &[f32], frames: Range<usize>) -> Stretch {
        let rest = samples.get(frames.start * HOP..).unwrap_or_default();
        let mel = self.front_end.frames(&rest[..(frames.len() * HOP).min(rest.len())]);
        Stretch { start: frames.start, mel }
    }

    /// The tokens of each of some spectra, which have a frame at least.
    fn transcribe(&self, spectra: &[&Mel]) -> Result<Vec<Vec<Timed>>, Error> {
        if spectra.is_empty() {
            return Ok(Vec::new());
        }
        let encoded = self.encoder.forward(spectra)?;
        let counts: Vec<usize> = spectra.iter().map(|mel| mel.rows()).collect();
        self.head.decode(&encoded, &counts)
    }

    /// The transcript of a stretch whose tokens are `tokens`.
    fn output(&self, recording: &Recording, stretch: &Stretch, mut tokens: Vec<Timed>) -> StepOutput {
        tokens.retain(|token| !self.vocabulary.is_special(token.token));
        self.vocabulary.settle(&mut tokens);
        let words = self.vocabulary.words(&tokens);
        let words = words.get(recording.decided..).unwrap_or_default();
        let mut output = StepOutput { generated_tokens: tokens.len(), ..StepOutput::default() };
        for range in vocabulary::segments(words) {
            let segment = self.segment(recording, stretch, &words[range]);
            output.text.push_str(&segment.text);
            output.segments.push(segment);
        }
        output
    }

    fn segment(&self, recording: &Recording, stretch: &Stretch, words: &[TimedWord]) -> Segment {
        let offset_s = (stretch.start * HOP) as f64 / SAMPLE_RATE_HZ as f64;
        let at = |row: usize| offset_s + row as f64 * ROW_S;
        let tokens: Vec<u32> = words.iter().flat_map(|word| word.tokens.iter().copied()).collect();
        let logprob: f32 = words.iter().map(|word| word.logprob).sum();
        let spaced = |word: &TimedWord| format!(" {}", word.text.trim());
        let word = |word: &TimedWord| Word {
            text: spaced(word),
            start_s: at(word.start),
            end_s: at(word.end),
            probability: (word.logprob / word.tokens.len().max(1) as f32).exp(),
        };
        let logprobs =
            |word: &TimedWord| TokenLogprob { bytes: spaced(word).into_bytes(), logprob: word.logprob };
        Segment {
            window_start_s: offset_s,
            start_s: words.first().map_or(offset_s, |word| at(word.start)),
            end_s: words.last().map_or(offset_s, |word| at(word.end)),
            text: words.iter().map(spaced).collect(),
            avg_logprob: logprob / tokens.len().max(1) as f32,
            tokens,
            words: if recording.has_words { words.iter().map(word).collect() } else { Vec::new() },
            logprobs: if recording.has_logprobs { words.iter().map(logprobs).collect() } else { Vec::new() },
            ..Segment::default()
        }
    }
}

impl Head {
    fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        if config.head != HeadShape::Ctc {
            return Ok(Self::Transducer(Box::new(Transducer::load(from, config, precision)?)));
        }
        let (width, classes) = (config.encoder.width, config.tokens + 1);
        let part = [("decoder.decoder_layers.0.weight".to_owned(), vec![classes, width, 1])];
        let flat = |weights| Ok(izwi_nn::layers::cat_weights(weights)?.squeeze(2)?);
        let output = Linear::load_transformed(from, (&part, ""), (width, classes), precision, flat)?;
        let output = output.with_bias(&from.take("decoder.decoder_layers.0.bias", &[classes])?)?;
        Ok(Self::Ctc { output, blank: config.tokens })
    }

    /// The tokens of recordings whose rows follow one another in `encoded`, `counts` of each.
    fn decode(&self, encoded: &Tensor, counts: &[usize]) -> Result<Vec<Vec<Timed>>, Error> {
        let (output, blank) = match self {
            Self::Transducer(transducer) => return transducer.decode(encoded, counts),
            Self::Ctc { output, blank } => (output, *blank),
        };
        let logits = output.forward(encoded)?.to_vec2::<f32>()?;
        let mut rest = logits.as_slice();
        let decoded = counts.iter().map(|&count| {
            let (own, others) = rest.split_at(count);
            rest = others;
            collapse(own, blank)
        });
        Ok(decoded.collect())
    }
}

/// The tokens of rows of logits: runs of one token are one, blanks none. A token begins where the one before it began to
/// sound, and ends where it does.
fn collapse(logits: &[Vec<f32>], blank: usize) -> Vec<Timed> {
    let mut tokens: Vec<Timed> = Vec::new();
    let mut before = blank;
    for (row, logits) in logits.iter().enumerate() {
        let token = likeliest(logits);
        if token != blank && token != before {
            let start = tokens.last().map_or(row.saturating_sub(1), |last| last.end);
            let logprob = logprob(logits, token);
            tokens.push(Timed { token: token as u32, start, end: row, logprob });
        }
        before = token;
    }
    tokens
}

/// Index of the largest value, the first of equal ones; 0 without values.
fn likeliest(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

/// The share of an entry in a step.
struct Share<'a> {
    recording: &'a Recording,
    /// `None` if the recording has no speech.
    stretch: Option<&'a Stretch>,
    finished: bool,
}

fn share<'a>(entry: &BatchEntry<'a>) -> Result<Share<'a>, Error> {
    let recording = entry.prepared.payload.downcast_ref::<Recording>();
    let recording = recording.ok_or(Error::Internal("an entry was prepared by another family"))?;
    let finished = entry.start + 1 >= recording.stretches.len();
    Ok(Share { recording, stretch: recording.stretches.get(entry.start), finished })
}

impl SpeechModel for Parakeet {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        let options = &input.options;
        // The language follows the recording: a hint has no effect.
        let taken =
            ["language", "chunking_strategy", "timestamp_granularities", "include", "temperature", "seed"];
        options.check_taken(&taken)?;
        // Live windows are speech already. The warm-up must reach the network even if the detector finds no speech in its noise.
        let is_whole = input.window.is_some() || Arc::ptr_eq(&input.samples, &self.warm_up);
        let (regions, longest) = match is_whole {
            true => (regions::whole(&input.samples), usize::MAX),
            false => {
                let detection = options.detection();
                (regions::find(&self.vad, &input.samples, detection.as_ref()), WINDOW_FRAMES)
            }
        };
        // Speech without a pause is cut where it is too long for one pass.
        let pieces = regions.into_iter().flat_map(|Region { frames: Range { start, end }, .. }| {
            (start..end).step_by(longest).map(move |at| at..end.min(at.saturating_add(longest)))
        });
        let stretches = pieces.map(|frames| self.stretch(&input.samples, frames));
        let stretches: Vec<Stretch> = stretches.filter(|stretch| stretch.mel.frames > 0).collect();
        let size = |stretch: &Stretch| stretch.mel.rows().min(limits.max_tokens_per_step);
        let mut units: Vec<usize> = stretches.iter().map(size).collect();
        if units.is_empty() {
            units.push(1);
        }
        let (has_words, has_logprobs) = (options.words(), options.logprobs());
        let decided = input.window.as_ref().map_or(0, |window| window.decided.split_whitespace().count());
        let recording = Recording { stretches, has_words, has_logprobs, decided };
        Ok(Prepared::new(Work::Units(units.into()), Arc::new(recording)))
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let shares: Vec<_> = batch.iter().map(share).collect();
        let stretches = shares.iter().flatten().filter_map(|share| share.stretch);
        let spectra: Vec<&Mel> = stretches.map(|stretch| &stretch.mel).collect();
        let mut transcribed = self.transcribe(&spectra)?.into_iter();
        let outputs = shares.into_iter().map(|share| {
            let Share { recording, stretch, finished } = share?;
            let Some(stretch) = stretch else { return Ok(StepOutput { finished, ..StepOutput::default() }) };
            let missing = Error::Internal("the network has no result for a stretch");
            let tokens = transcribed.next().ok_or(missing)?;
            Ok(StepOutput { finished, ..self.output(recording, stretch, tokens) })
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
