//! The Pocket TTS family: text to speech at 12.5 frames a second, each a continuous latent from a flow head, in published
//! voices or the voice of a recording.
//!
//! Owns loading and the family's side of the frame driver; knows no batch of requests. Source of the architecture:
//! <https://github.com/kyutai-labs/pocket-tts>.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use sha2::{Digest, Sha256};

use self::codec::{Codec, Latent, Stream};
use self::config::Config;
use self::generation::{CODEC, Generated, Generator, NoObserver, Outcome, PARTS, Pass, StepInput};
use self::tokenizer::TextTokenizer;
use self::voice::Voices;
use super::LoadOptions;
use crate::frame_driver::{self, FrameDriver, FrameModel, Plan, StepEntry, StepResult, check_positions};
use crate::model::SpeechModel;
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ModelInfo, PartTimes, PrepareLimits, SamplingParams, SpeakInput, StepOutput, Task,
    VoiceRecording, VoiceReference,
};

#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod budgets;
mod codec;
mod config;
mod flow;
mod generation;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_set;
#[cfg(test)]
mod golden_speech;
mod noise;
mod plan;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
mod voice;

/// Loads the checkpoint in `folder`: `config.json` or `config.yaml`, `tokenizer.json` or `tokenizer.model`,
/// `model.safetensors`, and published voices in `embeddings/`.
///
/// # Errors
/// A file is absent or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    let model = PocketTts::load(folder, Config::load(folder)?, options)?;
    Ok(Arc::new(FrameDriver::new(model, &options.device)))
}

/// The voices of the checkpoint in `folder`, the default first. Reads no weights.
///
/// # Errors
/// The configuration is unreadable or not supported.
pub(super) fn voices(folder: &Path) -> Result<Vec<izwi_types::Voice>, Error> {
    let config = Config::load(folder)?;
    Ok(voice::states(folder, &config).iter().map(|(name, _)| describe(name, &config)).collect())
}

/// Reads the tokenizer in `folder` for a network of `size` tokens, `tokenizer.model` where there is one, and the ids of a
/// text.
///
/// # Errors
/// The tokenizer is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, text: &str) -> Result<Vec<u32>, Error> {
    let is_model = folder.join("tokenizer.model").exists();
    let kind =
        if is_model { config::TokenizerKind::Sentencepiece } else { config::TokenizerKind::Tokenizers };
    Ok(TextTokenizer::load_kind(folder, kind, size)?.encode(text))
}

/// The published sizes, and a configuration of each.
const SHAPES: [(&str, &str); 4] = [
    (SIZES[0], include_str!("shapes/100m.json")),
    (SIZES[1], include_str!("shapes/18m.json")),
    (SIZES[2], include_str!("shapes/7m.json")),
    (SIZES[3], include_str!("shapes/2m.json")),
];

/// The published sizes.
pub(super) const SIZES: [&str; 4] = ["pocket-tts-100m", "pocket-tts-18m", "pocket-tts-7m", "pocket-tts-2m"];

/// A model of the published size `size`, one of [`SIZES`], with random weights.
///
/// # Errors
/// Out of device memory.
pub(super) fn random(size: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    let shape = SHAPES.iter().find(|(name, _)| *name == size).or(SHAPES.first());
    let text = shape.map(|(_, text)| *text).unwrap_or_default();
    let config = Config::parse(text, false).map_err(Error::Checkpoint)?;
    let tokenizer = TextTokenizer::bytes(config.flow_lm.lookup_table.n_bins);
    let mut weights = Checkpoint::random(&options.device, DType::F32);
    let mut model = PocketTts::assemble((config, tokenizer), &mut weights, None, options)?;
    // Random weights end at a random place: they speak until the request's own limit.
    model.generator.eos_threshold = f32::INFINITY;
    Ok(Arc::new(FrameDriver::new(PocketTts { has_end: false, ..model }, &options.device)))
}

#[derive(Debug)]
struct PocketTts {
    info: ModelInfo,
    config: Config,
    tokenizer: TextTokenizer,
    generator: Generator,
    codec: Codec,
    voices: Voices,
    /// Whether the weights end speech.
    has_end: bool,
    times: PartTimes,
}

impl PocketTts {
    fn load(folder: &Path, config: Config, options: &LoadOptions) -> Result<Self, Error> {
        let tokenizer = TextTokenizer::load(folder, &config.flow_lm.lookup_table)?;
        let weights = Checkpoint::open_folder(folder, &options.device)?;
        let mut weights = options.cached(weights, options.weight_precision());
        let model = Self::assemble((config, tokenizer), &mut weights, Some(folder), options)?;
        weights.finish()?;
        Ok(model)
    }

    /// Takes all weights; `folder` has the published voices, `None` is for random weights.
    fn assemble(
        (config, tokenizer): (Config, TextTokenizer),
        weights: &mut Checkpoint,
        folder: Option<&Path>,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let times = PartTimes::new(&PARTS);
        let mut fingerprint = Sha256::new();
        fingerprint.update(format!("{:?}", config.flow_lm.transformer.shape()));
        let codec = Codec::load(weights, &config, options.codec_precision())?;
        let generator = Generator::load(weights, &config, options.weight_precision(), times.clone())?;
        let before = weights.taken();
        let voices = Voices::load(weights, &config, folder, fingerprint)?;
        let cloner_bytes = if voices.clones() { (weights.taken() - before) * size_of::<f32>() } else { 0 };
        let info = info(&config, &voices, &codec, generator.bytes() + codec.bytes() + cloner_bytes);
        Ok(Self { info, config, tokenizer, generator, codec, voices, has_end: true, times })
    }
}

fn describe(name: &str, config: &Config) -> izwi_types::Voice {
    izwi_types::Voice {
        id: name.to_owned(),
        language: config.language.clone().unwrap_or_else(|| "und".to_owned()),
        gender: None,
        description: "published with the model".to_owned(),
    }
}

fn info(config: &Config, voices: &Voices, codec: &Codec, weight_bytes: usize) -> ModelInfo {
    ModelInfo {
        sample_rate_hz: codec.sample_rate() as u32,
        input_sample_rate_hz: codec.sample_rate() as u32,
        tasks: vec![Task::Tts],
        voices: voices.names().map(|name| describe(name, config)).collect(),
        speed_range: None,
        takes_instructions: false,
        takes_keywords: false,
        writes_figures: true,
        detects_language: false,
        takes_prompt: false,
        languages: Vec::new(),
        translates: false,
        clones_voices: voices.clones(),
        appends_text: false,
        chunks_ms: Vec::new(),
        live_windows: false,
        times_words: false,
        takes_phonemes: false,
        aligns_text: false,
        calls_tools: false,
        transcriber: None,
        sampling: SamplingParams { temperature: config.default_temperature, ..SamplingParams::GREEDY },
        weight_bytes,
        state_bytes: codec.state_bytes(),
    }
}

impl FrameModel for PocketTts {
    type Codec = Codec;
    type Request = ();
    type Pass = Pass;
    type State = Generated;

    const CODEC_PART: usize = CODEC;

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.generator.kv_layout())
    }

    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn step_bytes(&self) -> usize {
        self.generator.frame_bytes()
    }

    fn part_times(&self) -> &PartTimes {
        &self.times
    }

    fn warm_up_input(&self) -> Input {
        let mut input = SpeakInput::plain("The quick brown fox.");
        if self.voices.clones() {
            let samples = warm_up::noise(self.codec.sample_rate());
            let recording = VoiceRecording { samples, text: None, timbre_only: true };
            input.reference = Some(VoiceReference::Recording(recording));
        }
        Input::Speak(input)
    }

    fn plan(&self, input: &Input, limits: &PrepareLimits) -> Result<Plan<Self>, InputError> {
        let Input::Speak(input) = input else { return Err(InputError::other_task("speaks", "audio")) };
        self.plan_speech(input, limits)
    }

    fn start(&self, (): &(), _pass: &Pass) -> Generated {
        Generated::default()
    }

    fn start_stream(&self, (): &()) -> Result<Stream, Error> {
        Ok(Stream::default())
    }

    fn check(&self, pass: &Pass, state: &Generated, end: usize) -> Result<(), Error> {
        check_positions(end, pass.prompt_len() + state.latents.len())
    }

    fn step(
        &self,
        kv: &mut KvPool,
        entries: &mut [StepEntry<'_, Self>],
    ) -> Result<Vec<StepResult<Latent>>, Error> {
        let inputs = entries.iter_mut().map(|entry| {
            let StepEntry { pass, start, end, block_table, .. } = *entry;
            StepInput { pass, generated: &mut *entry.state, start, end, block_table }
        });
        let mut inputs: Vec<_> = inputs.collect();
        let outcomes = self.generator.step(kv, &mut inputs, &mut NoObserver)?;
        let results = outcomes.into_iter().zip(&inputs).map(|(outcome, input)| match outcome {
            Outcome::Pending => frame_driver::Outcome::Pending.into(),
            Outcome::End => frame_driver::Outcome::End.into(),
            Outcome::Frame(latent) => {
                StepResult { content_key: input.last_key(), ..frame_driver::Outcome::Frame(latent).into() }
            }
        });
        Ok(results.collect())
    }

    fn finish_pass(&self, (): &(), _: &Pass, _: &mut Generated, _: &mut StepOutput) {}

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        self.voices.pack(recording)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<(), InputError> {
        self.voices.of_pack(pack).map(drop)
    }
}
