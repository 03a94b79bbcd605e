//! The voxtral family: recordings to text, a stretch of speech of at most 30 s at a time, a token a step.
//!
//! The network is that of candle-transformers, run through [`Sequential`]; here are its front end, its prompts and what
//! becomes of its tokens. Source of the architecture: <https://huggingface.co/mistralai/Voxtral-Mini-3B-2507>.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::voxtral::{VoxtralCache, VoxtralConfig, VoxtralForConditionalGeneration};
use izwi_audio::vad::VadModel;

use self::config::FRAMES_PER_POSITION;
use self::tokens::Vocabulary;
use super::LoadOptions;
use crate::log_mel::{FADE, FrontEnd, SAMPLE_RATE_HZ};
use crate::model::SpeechModel;
use crate::regions::{self, HOP, Region};
use crate::sequential::{Sequential, SequentialModel, weight_dtype};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::sampling::{Draw, Draws, logprob, mix};
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, SamplingParams, Segment, StepOutput, Task, languages,
};

mod config;
#[cfg(test)]
mod golden;
mod tokens;

/// Codes of the languages of the model card.
const LANGUAGES: [&str; 8] = ["en", "es", "fr", "pt", "hi", "de", "nl", "it"];
/// The most tokens of a stretch of speech: 15 in a second.
const MAX_TOKENS: usize = 448;

/// Loads the checkpoint in `folder`: `config.json`, `tekken.json` and `model.safetensors` or its parts.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing or mis-shaped; the error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Sequential(Voxtral::load(folder, options)?)))
}

/// Reads the vocabulary in `folder` for a network of `size` tokens, and the prompt of a recording in the language `code`.
///
/// # Errors
/// The vocabulary is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, code: &str) -> Result<Vec<u32>, Error> {
    Ok(Vocabulary::load(folder, size)?.transcription(0, 1, Some(code)))
}

struct Voxtral {
    info: ModelInfo,
    front_end: FrontEnd,
    vad: VadModel,
    network: VoxtralForConditionalGeneration,
    /// The cache of a pass that begins: tables of positions, and no keys.
    empty_cache: VoxtralCache,
    vocabulary: Vocabulary,
    config: VoxtralConfig,
    device: Device,
    /// The most tokens of a stretch of speech.
    max_tokens: usize,
    /// Samples of [`SequentialModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// A recording with its options.
struct Recording {
    stretches: Vec<Stretch>,
    language: Option<String>,
    sampling: SamplingParams,
    seed: u64,
}

/// A stretch of speech.
struct Stretch {
    region: Region,
    /// Normalised log-mel frames, `[frames, bins]`.
    mel: Vec<f32>,
    prompt: Vec<u32>,
}

/// The generation of a stretch.
struct Generation {
    index: usize,
    cache: VoxtralCache,
    draws: Draws,
    tokens: Vec<u32>,
    logprob: f32,
    text: Vec<u8>,
}

impl Voxtral {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = config::load(folder)?;
        let vocabulary = Vocabulary::load(folder, config.text_config.vocab_size)?;
        let device = options.device.clone();
        let dtype = weight_dtype(options.precision, &device);
        let checkpoint = Checkpoint::open_folder(folder, &device)?;
        for (name, shape) in config::text_tensors(&config.text_config) {
            let found = checkpoint.shape_of(&name);
            if found != Some(shape.as_slice()) {
                return Err(Error::Checkpoint(format!("{name}: shape {found:?}, expected {shape:?}")));
            }
        }
        let weight_bytes = checkpoint.bytes_as(dtype);
        let weights = VarBuilder::from_tensors(checkpoint.into_tensors()?, dtype, &device);
        let network = VoxtralForConditionalGeneration::new(&config, weights)?;
        Ok(Self {
            info: ModelInfo {
                sample_rate_hz: SAMPLE_RATE_HZ as u32,
                input_sample_rate_hz: SAMPLE_RATE_HZ as u32,
                tasks: vec![Task::Asr],
                voices: Vec::new(),
                speed_range: None,
                takes_instructions: false,
                languages: LANGUAGES.map(str::to_owned).to_vec(),
                translates: false,
                clones_voices: false,
                appends_text: false,
                times_words: false,
                sampling: SamplingParams::GREEDY,
                weight_bytes,
                state_bytes: state_bytes(&config, dtype),
            },
            front_end: FrontEnd::new(config.audio_config.num_mel_bins),
            network,
            vad: options.vad.clone(),
            empty_cache: VoxtralCache::new(true, dtype, &config.text_config, &device)?,
            vocabulary,
            config,
            device,
            max_tokens: MAX_TOKENS,
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    /// Mel frames of the encoder's input.
    fn window_frames(&self) -> usize {
        self.config.audio_config.max_source_positions * FRAMES_PER_POSITION
    }

    fn stretch(&self, samples: &[f32], region: Region, language: Option<&str>) -> Stretch {
        let frames = region.frames.clone();
        let known = self.front_end.frames(samples, frames.start..frames.end + FADE);
        let peak = known.peak();
        let audio = audio_tokens(&self.config);
        let prompt = self.vocabulary.transcription(self.config.audio_token_id as u32, audio, language);
        Stretch { mel: known.network_input(frames, self.window_frames(), peak), region, prompt }
    }

    /// Ends a generation: its segment.
    fn segment(&self, stretch: &Stretch, generation: &Generation, temperature: f32) -> Option<Segment> {
        let text = String::from_utf8_lossy(&generation.text).trim().to_owned();
        let seconds = |frame: usize| (frame * HOP) as f64 / SAMPLE_RATE_HZ as f64;
        let frames = &stretch.region.frames;
        (!text.is_empty()).then(|| Segment {
            window_start_s: seconds(frames.start),
            start_s: seconds(frames.start),
            end_s: seconds(stretch.region.speech_end.clamp(frames.start, frames.end)),
            text: if generation.index == 0 { text } else { format!(" {text}") },
            tokens: generation.tokens.clone(),
            temperature,
            avg_logprob: generation.logprob / generation.tokens.len().max(1) as f32,
            ..Segment::default()
        })
    }
}

/// Tokens of a window of audio: the encoder's rows, as many side by side as the projector takes.
fn audio_tokens(config: &VoxtralConfig) -> usize {
    let audio = &config.audio_config;
    audio.max_source_positions * audio.hidden_size / audio.intermediate_size
}

/// Bytes of the cache of a sequence at its longest, twice: candle copies it to append to it.
fn state_bytes(config: &VoxtralConfig, dtype: DType) -> usize {
    let text = &config.text_config;
    let head = text.head_dim.unwrap_or(text.hidden_size / text.num_attention_heads);
    let position = 2 * text.num_hidden_layers * text.num_key_value_heads * head * dtype.size_in_bytes();
    2 * position * (audio_tokens(config) + MAX_TOKENS + 16)
}

impl SequentialModel for Voxtral {
    type Request = Recording;
    type Pass = Generation;

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn prepare(&self, input: &Input) -> Result<Recording, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        let options = &input.options;
        options.check_taken(&["language", "chunking_strategy", "temperature", "seed"])?;
        let wanted =
            options.language.as_deref().map(|wanted| languages::supported(wanted, &self.info.languages));
        let language = wanted.transpose().map_err(|message| InputError { param: "language", message })?;
        // The warm-up must reach the network even if the detector finds no speech in its noise.
        let regions = match Arc::ptr_eq(&input.samples, &self.warm_up) {
            true => regions::whole(&input.samples),
            false => regions::find(&self.vad, &input.samples, options.detection().as_ref()),
        };
        let stretch = |region| self.stretch(&input.samples, region, language.as_deref());
        Ok(Recording {
            stretches: regions.into_iter().map(stretch).collect(),
            language: language.clone(),
            sampling: SamplingParams { temperature: input.temperature(), ..SamplingParams::GREEDY },
            seed: input.seed(),
        })
    }

    fn passes(&self, request: &Recording) -> usize {
        request.stretches.len()
    }

    fn pass_size(&self, request: &Recording, pass: usize) -> (usize, usize) {
        (self.max_tokens, request.stretches.get(pass).map_or(1, |stretch| stretch.prompt.len()))
    }

    fn begin(&self, request: &Recording, pass: usize) -> Result<Generation, Error> {
        Ok(Generation {
            index: pass,
            cache: self.empty_cache.clone(),
            draws: Draws::new(mix(request.seed ^ mix(pass as u64))),
            tokens: Vec::new(),
            logprob: 0.0,
            text: Vec::new(),
        })
    }

    fn step(&self, request: &Recording, pass: &mut Generation) -> Result<StepOutput, Error> {
        let unknown = Error::Internal("a pass of a recording that does not exist");
        let Some(stretch) = request.stretches.get(pass.index) else { return Err(unknown) };
        let row = |tokens: &[u32]| Tensor::new(tokens, &self.device)?.unsqueeze(0);
        let logits = match pass.tokens.last() {
            None => {
                let bins = self.config.audio_config.num_mel_bins;
                let mel = Tensor::from_slice(&stretch.mel, (1, self.window_frames(), bins), &self.device)?;
                let mel = mel.transpose(1, 2)?.contiguous()?;
                self.network.forward(&row(&stretch.prompt)?, Some(&mel), &mut pass.cache, 0)?
            }
            Some(&last) => {
                let position = stretch.prompt.len() + pass.tokens.len() - 1;
                self.network.forward(&row(&[last])?, None, &mut pass.cache, position)?
            }
        };
        let logits: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        let draw =
            Draw { draws: &pass.draws, counter: pass.tokens.len() as u64, sampling: &request.sampling };
        let token = draw.choose(&logits, 0);
        let ends = self.vocabulary.is_end(token);
        if !ends {
            pass.text.extend_from_slice(self.vocabulary.bytes(token));
        }
        pass.logprob += logprob(&logits, token as usize);
        pass.tokens.push(token);
        let mut output = StepOutput { generated_tokens: 1, finished: ends, ..StepOutput::default() };
        if ends || pass.tokens.len() == self.max_tokens {
            output.segments.extend(self.segment(stretch, pass, request.sampling.temperature));
            output.text = output.segments.iter().map(|segment| segment.text.as_str()).collect();
            output.language.clone_from(&request.language);
        }
        Ok(output)
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
