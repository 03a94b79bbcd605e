//! The LFM2-Audio family: one model for speech, transcription and spoken conversation, a text token or an audio frame a
//! step.
//!
//! Owns loading and the family's side of the frame driver, with the encoder that runs before the language model. Source of
//! the architecture: <https://github.com/Liquid4All/liquid-audio>.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;

use self::codec::{Codec, DecoderState};
use self::config::Config;
use self::conformer::AudioEncoder;
use self::generation::{CODEC, ENCODER, Generator, NoObserver, PARTS, Pass, StepInput};
use self::modality::Mode;
use self::state::PassState;
use self::tokens::Vocabulary;
use super::LoadOptions;
use crate::conformer::{FrontEnd, Mel};
use crate::frame_driver::{FrameDriver, FrameModel, Outcome, Plan, StepEntry, StepResult, check_positions};
use crate::model::SpeechModel;
use crate::warm_up;
use izwi_audio::vad::VadModel;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mimi::{self, Mimi};
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    ConverseInput, Input, InputError, Message, ModelInfo, PartTimes, PrepareLimits, StepOutput, Task,
    ToolChoice, Turn,
};

mod backbone;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod budgets;
mod codec;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod codec_budget;
mod config;
mod conformer;
mod depthformer;
mod detokenizer;
mod generation;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_audio;
#[cfg(test)]
mod golden_set;
mod mel;
mod modality;
mod plan;
mod prompt;
mod state;
#[cfg(test)]
mod tests;
mod tokens;

pub(super) use plan::voices;

/// Rows of the encoder that a state may hold: those of a recording of a minute.
const ENCODER_ROWS: usize = 751;

/// Loads the checkpoint in `folder`: `config.json`, `tokenizer.json`, `model.safetensors` or its shards, and a codec:
/// `audio_detokenizer/`, or Mimi's file.
///
/// # Errors
/// A file is absent or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(FrameDriver::new(LfmAudio::load(folder, options)?, &options.device)))
}

/// Reads the tokenizer of a checkpoint for a network of `size` tokens, and the ids of a text.
///
/// # Errors
/// The tokenizer is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, text: &str) -> Result<Vec<u32>, Error> {
    Ok(Vocabulary::load(folder, size)?.encode(text))
}

/// The published sizes.
pub(super) const SIZES: [&str; 1] = ["lfm2-audio-1.5b"];

/// A model of a published size with random weights.
///
/// # Errors
/// Out of device memory.
pub(super) fn random(_size: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    let model = LfmAudio::random(include_str!("shapes/1.5b.json"), options)?;
    Ok(Arc::new(FrameDriver::new(model, &options.device)))
}

#[derive(Debug)]
struct LfmAudio {
    info: ModelInfo,
    config: Config,
    vocabulary: Vocabulary,
    front_end: FrontEnd,
    encoder: AudioEncoder,
    generator: Generator,
    codec: Codec,
    /// Whether the weights are random: such a model starts no audio and ends none by itself.
    has_random_weights: bool,
    vad: VadModel,
    times: PartTimes,
}

impl LfmAudio {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let vocabulary = Vocabulary::load(folder, config.lfm.vocab_size)?;
        let codec = Codec::load(folder, config.codebooks, &options.of_codec())?;
        let weights = Checkpoint::open_folder(folder, &options.device)?;
        let mut weights = options.cached(weights, options.weight_precision());
        let model = Self::assemble(config, vocabulary, &mut weights, codec, options)?;
        weights.finish()?;
        Ok(model)
    }

    fn random(config: &str, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::parse(config).map_err(Error::Checkpoint)?;
        let vocabulary = Vocabulary::single_bytes(config.lfm.vocab_size)?;
        let precision = options.codec_precision();
        let mut codec = Checkpoint::random(&options.device, DType::F32);
        let sizes = mimi::Config::published();
        let codec = Mimi::from_checkpoint(&mut codec, config.codebooks, &sizes, precision)?;
        let codec = Codec::Mimi(Box::new(codec));
        let mut weights = Checkpoint::random(&options.device, DType::BF16);
        let model = Self::assemble(config, vocabulary, &mut weights, codec, options)?;
        Ok(Self { has_random_weights: true, ..model })
    }

    fn assemble(
        config: Config,
        vocabulary: Vocabulary,
        weights: &mut Checkpoint,
        codec: Codec,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let precision = options.weight_precision();
        let times = PartTimes::new(&PARTS);
        let generator = Generator::load(weights, &config, precision, times.clone())?;
        let before = weights.taken();
        let encoder = AudioEncoder::load(weights, &config.encoder, config.lfm.hidden_size, precision)?;
        let encoder_bytes = (weights.taken() - before) * precision.bits() / 8;
        let rows = ENCODER_ROWS * config.lfm.hidden_size * size_of::<f32>();
        let info = ModelInfo {
            sample_rate_hz: codec.sample_rate() as u32,
            input_sample_rate_hz: config.preprocessor.sample_rate as u32,
            tasks: vec![Task::Tts, Task::Asr, Task::Chat],
            voices: voices(),
            speed_range: None,
            takes_instructions: false,
            takes_keywords: false,
            writes_figures: true,
            detects_language: false,
            takes_prompt: true,
            languages: vec![plan::LANGUAGE.to_owned()],
            translates: false,
            clones_voices: false,
            appends_text: false,
            chunks_ms: Vec::new(),
            live_windows: false,
            times_words: false,
            takes_phonemes: false,
            aligns_text: false,
            calls_tools: false,
            transcriber: None,
            sampling: plan::TTS_SAMPLING,
            weight_bytes: generator.bytes() + codec.bytes() + encoder_bytes,
            state_bytes: generator.backbone.stack.state_bytes() + codec.state_bytes() + rows,
        };
        let front_end = config.preprocessor.front_end();
        Ok(Self {
            info,
            config,
            vocabulary,
            front_end,
            encoder,
            generator,
            codec,
            has_random_weights: false,
            vad: options.vad.clone(),
            times,
        })
    }

    /// Runs the encoder over the recordings that a step needs and that it has not run over, all together.
    fn encode(&self, entries: &mut [StepEntry<'_, Self>]) -> Result<(), Error> {
        let (mut mel, mut places): (Vec<&Mel>, _) = (Vec::new(), Vec::new());
        for (place, entry) in entries.iter().enumerate() {
            let pass = entry.pass;
            for recording in entry.state.missing_recordings(pass, entry.start, entry.end) {
                mel.push(pass.prompt.recordings[recording].mel(&self.front_end));
                places.push((place, recording));
            }
        }
        if mel.is_empty() {
            return Ok(());
        }
        let encoded = self.times.time(ENCODER, || self.encoder.forward(&mel))?;
        for ((place, recording), rows) in places.into_iter().zip(encoded) {
            entries[place].state.encoded[recording] = Some(rows);
        }
        Ok(())
    }
}

impl FrameModel for LfmAudio {
    type Codec = Codec;
    type Request = Task;
    type Pass = Pass;
    type State = PassState;

    const CODEC_PART: usize = CODEC;

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.generator.backbone.kv_layout())
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

    /// A recording of noise; the model answers with text and frames in turn.
    fn warm_up_input(&self) -> Input {
        let noise = warm_up::noise(self.config.preprocessor.sample_rate);
        Input::Converse(ConverseInput {
            instructions: None,
            turns: vec![Turn::User(vec![Message::Recording(noise)])],
            sampling: None,
            text_sampling: None,
            seed: 0,
            max_tokens: usize::MAX,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            text_only: false,
            voice: None,
            speed: 1.0,
            chunk_samples: 1,
            first_chunk_samples: None,
        })
    }

    fn plan(&self, input: &Input, limits: &PrepareLimits) -> Result<Plan<Self>, InputError> {
        match input {
            Input::Speak(input) => self.plan_speech(input, limits),
            Input::Listen(input) => self.plan_transcription(input, limits),
            Input::Converse(input) => self.plan_conversation(input, limits),
        }
    }

    fn spoken_tokens(&self, pass: &Pass, state: &PassState) -> usize {
        // The text of speech is in the prompt.
        if matches!(pass.mode, Mode::Interleaved { .. }) { state.text_tokens() } else { 0 }
    }

    fn start(&self, _task: &Task, pass: &Pass) -> PassState {
        PassState::new(pass)
    }

    fn start_stream(&self, _task: &Task) -> Result<DecoderState, Error> {
        Ok(self.codec.start())
    }

    fn check(&self, pass: &Pass, state: &PassState, end: usize) -> Result<(), Error> {
        check_positions(end, pass.prompt.positions.len() + state.generated.emissions.len())
    }

    fn step(
        &self,
        kv: &mut KvPool,
        entries: &mut [StepEntry<'_, Self>],
    ) -> Result<Vec<StepResult<Vec<u32>>>, Error> {
        self.encode(entries)?;
        let inputs = entries.iter_mut().map(|entry| {
            let StepEntry { pass, start, end, begins, block_table, .. } = *entry;
            let PassState { generated, encoded, .. } = &mut *entry.state;
            StepInput { pass, generated, encoded, start, end, begins, block_table }
        });
        let outcomes = self.generator.step(kv, &mut inputs.collect::<Vec<_>>(), &mut NoObserver)?;
        let results = entries.iter_mut().zip(outcomes).map(|(entry, outcome)| {
            let is_audible = |codes: &[u32]| self.codec.is_audible(codes);
            entry.state.drop_computed(entry.pass, entry.end);
            let result =
                entry.state.result(*entry.request, entry.pass, outcome, &self.vocabulary, is_audible);
            if *entry.request == Task::Chat && !self.has_random_weights && entry.state.loops() {
                return StepResult { outcome: Outcome::Runaway, ..result };
            }
            result
        });
        Ok(results.collect())
    }

    fn finish_pass(&self, task: &Task, pass: &Pass, state: &mut PassState, output: &mut StepOutput) {
        state.finish(*task, pass, output);
    }
}
