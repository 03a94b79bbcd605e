//! The Qwen3-TTS family: text to speech at 12.5 frames a second, a frame a step, in built-in voices, voices from a
//! description, or the voice of a recording.
//!
//! Owns loading and the family's side of the frame driver; knows no batch of requests. Source of the architecture:
//! <https://github.com/QwenLM/Qwen3-TTS>.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use sha2::{Digest, Sha256};

use self::codec::{Codec, DecoderState};
use self::config::{Kind, Settings};
use self::generation::{CODEC, Generated, Generator, NoObserver, Outcome, PARTS, Pass, StepInput};
use self::open_text::OpenText;
use self::speaker::{SpeakerConfig, SpeakerEncoder};
use self::tokens::Vocabulary;
use self::voice::{ClonedVoice, VoiceCache, VoiceCloner};
use super::LoadOptions;
use crate::frame_driver::{self, FrameDriver, FrameModel, Plan, StepEntry, StepResult, check_positions};
use crate::model::{SpeechModel, takes_text_whole};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ModelInfo, PartTimes, PrepareLimits, SpeakInput, StepOutput, Task, TextProgress,
    Voice, VoiceRecording, VoiceReference,
};

#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod budgets;
mod codec;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod codec_budget;
mod config;
mod generation;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_codec;
#[cfg(test)]
mod golden_set;
#[cfg(test)]
mod golden_speaker;
mod lookup;
mod open_text;
mod plan;
mod predictor;
mod prompt;
mod speaker;
mod talker;
#[cfg(test)]
mod tests;
mod tokens;
mod voice;

/// Loads the checkpoint in `folder`: `config.json`, `generation_config.json`, the tokenizer, `model.safetensors` or its
/// shards, and `speech_tokenizer/`.
///
/// # Errors
/// A file is absent or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(FrameDriver::new(QwenTts::load(folder, options)?, &options.device)))
}

/// The voices that the checkpoint in `folder` has of its own. Reads no weights.
///
/// # Errors
/// A file is unreadable, or a setting is not supported.
pub(super) fn voices(folder: &Path) -> Result<Vec<Voice>, Error> {
    Ok(lookup::voices(&Settings::load(folder)?.config))
}

/// Reads the tokenizer of a checkpoint for a network of `size` tokens, and the ids of a text.
///
/// # Errors
/// The tokenizer is unreadable or does not fit.
pub(super) fn tokenize(folder: &Path, size: usize, text: &str) -> Result<Vec<u32>, Error> {
    Ok(Vocabulary::load(folder, size)?.encode(text))
}

/// The published sizes.
pub(super) const SIZES: [&str; 2] = ["qwen3-tts-0.6b", "qwen3-tts-1.7b"];

/// A model of the published size `size`, one of [`SIZES`], with random weights.
///
/// # Errors
/// Out of device memory.
pub(super) fn random(size: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    let [smaller, _] = SIZES;
    let config =
        if size == smaller { include_str!("shapes/0.6b.json") } else { include_str!("shapes/1.7b.json") };
    Ok(Arc::new(FrameDriver::new(QwenTts::random(config, options)?, &options.device)))
}

#[derive(Debug)]
struct QwenTts {
    info: ModelInfo,
    settings: Settings,
    vocabulary: Vocabulary,
    generator: Generator,
    codec: Codec,
    cloner: Option<VoiceCloner>,
    /// Whether the watchdog is on. Random weights never generate an end token, so it is off for them.
    has_watchdog: bool,
    times: PartTimes,
}

impl QwenTts {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let settings = Settings::load(folder)?;
        let vocabulary = Vocabulary::load(folder, settings.config.talker_config.text_vocab_size)?;
        let weights = Checkpoint::open_folder(folder, &options.device)?;
        let mut weights = options.cached(weights, options.weight_precision());
        let codec = Codec::load(&folder.join("speech_tokenizer"), &options.of_codec())?;
        let mut fingerprint = Sha256::new();
        for file in ["config.json", "speech_tokenizer/config.json"] {
            fingerprint.update(config::read(&folder.join(file))?);
        }
        let model = Self::assemble((settings, vocabulary), &mut weights, codec, fingerprint, options)?;
        weights.finish()?;
        Ok(model)
    }

    fn random(config: &str, options: &LoadOptions) -> Result<Self, Error> {
        let settings = Settings::from_texts(config, include_str!("shapes/generation.json"))?;
        let ids = &settings.config;
        let special = [
            ("<|im_start|>", ids.im_start_token_id),
            ("<|im_end|>", ids.im_end_token_id),
            ("assistant", 77_091),
        ];
        let vocabulary = Vocabulary::bytes(&special)?;
        let mut weights = Checkpoint::random(&options.device, DType::BF16);
        let mut codec_weights = Checkpoint::random(&options.device, DType::F32);
        let precision = options.codec_precision();
        let codec_config = codec::Config::parse(include_str!("shapes/codec.json"));
        let codec_config = codec_config.map_err(Error::Checkpoint)?;
        let codec = Codec::from_checkpoint(&mut codec_weights, &codec_config, precision)?;
        let model = Self::assemble((settings, vocabulary), &mut weights, codec, Sha256::new(), options)?;
        Ok(Self { has_watchdog: false, ..model })
    }

    fn assemble(
        (settings, vocabulary): (Settings, Vocabulary),
        weights: &mut Checkpoint,
        codec: Codec,
        mut fingerprint: Sha256,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let config = &settings.config;
        let codebooks = config.talker_config.stack.num_code_groups;
        if codec.codebooks() != codebooks
            || config.talker_config.code_predictor_config.vocab_size > codec.codebook_size()
        {
            return Err(Error::Checkpoint(format!(
                "the codec has {} codebooks of {}, the talker generates {codebooks} of {}",
                codec.codebooks(),
                codec.codebook_size(),
                config.talker_config.code_predictor_config.vocab_size
            )));
        }
        let precision = options.weight_precision();
        let times = PartTimes::new(&PARTS);
        let generator = Generator::load(weights, &settings, precision, times.clone())?;
        let cloner = match &config.speaker_encoder_config {
            Some(value) if config.kind == Kind::Base => {
                let speaker: SpeakerConfig = serde_json::from_value(value.clone())
                    .map_err(|error| Error::Checkpoint(format!("speaker_encoder_config: {error}")))?;
                let encoder = SpeakerEncoder::load(weights, &speaker)?;
                generator.talker.update_fingerprint(&mut fingerprint)?;
                let fingerprint = fingerprint.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                let width = config.talker_config.stack.hidden_size;
                Some(VoiceCloner { encoder, fingerprint, width, cache: VoiceCache::default() })
            }
            _ => None,
        };
        let weight_bytes = generator.bytes() + codec.bytes();
        let info = info(&settings, &codec, cloner.is_some(), weight_bytes);
        Ok(Self { info, settings, vocabulary, generator, codec, cloner, has_watchdog: true, times })
    }
}

fn info(settings: &Settings, codec: &Codec, clones_voices: bool, weight_bytes: usize) -> ModelInfo {
    ModelInfo {
        sample_rate_hz: codec.sample_rate() as u32,
        input_sample_rate_hz: codec.sample_rate() as u32,
        tasks: vec![Task::Tts],
        voices: lookup::voices(&settings.config),
        speed_range: None,
        takes_instructions: settings.config.takes_instructions(),
        takes_keywords: false,
        writes_figures: true,
        detects_language: false,
        takes_prompt: false,
        languages: Vec::new(),
        translates: false,
        clones_voices,
        appends_text: true,
        chunks_ms: Vec::new(),
        live_windows: false,
        times_words: false,
        takes_phonemes: false,
        aligns_text: false,
        calls_tools: false,
        transcriber: None,
        sampling: settings.sampling,
        weight_bytes,
        state_bytes: codec.state_bytes(),
    }
}

impl FrameModel for QwenTts {
    type Codec = Codec;
    type Request = Option<Arc<ClonedVoice>>;
    type Pass = Pass;
    type State = Generated;

    const CODEC_PART: usize = CODEC;

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.generator.talker.kv_layout())
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
        if self.cloner.is_some() {
            let samples = warm_up::noise(self.codec.input_sample_rate());
            let recording = VoiceRecording { samples, text: None, timbre_only: true };
            input.reference = Some(VoiceReference::Recording(recording));
        }
        Input::Speak(input)
    }

    fn plan(&self, input: &Input, limits: &PrepareLimits) -> Result<Plan<Self>, InputError> {
        let Input::Speak(input) = input else { return Err(InputError::other_task("speaks", "audio")) };
        let plan = self.plan_speech(input, limits)?;
        if let Some(voice) = &plan.request {
            // Here rather than in the first step, which other sequences share.
            voice.decoder(&self.codec).map_err(|error| InputError {
                param: "ref_audio",
                message: format!("the recording cannot be taken: {error}"),
            })?;
        }
        Ok(plan)
    }

    fn append_text(&self, pass: &Pass, text: &str, is_last: bool) -> Result<TextProgress, InputError> {
        let open_text = pass.open_text.as_ref().ok_or_else(takes_text_whole)?;
        open_text.append(&self.vocabulary, text, is_last)
    }

    fn spoken_tokens(&self, pass: &Pass, _state: &Generated) -> usize {
        pass.open_text.as_ref().map_or(0, OpenText::appended_tokens)
    }

    fn has_text(&self, pass: &Pass, generated: &Generated) -> bool {
        pass.open_text.as_ref().is_none_or(|text| generated.frames.len() <= text.frames())
    }

    fn start(&self, _voice: &Option<Arc<ClonedVoice>>, _pass: &Pass) -> Generated {
        Generated::default()
    }

    fn start_stream(&self, voice: &Option<Arc<ClonedVoice>>) -> Result<DecoderState, Error> {
        match voice {
            Some(voice) => voice.decoder(&self.codec),
            None => Ok(self.codec.start()),
        }
    }

    fn check(&self, pass: &Pass, state: &Generated, end: usize) -> Result<(), Error> {
        let with_text = pass.open_text.as_ref().map_or(usize::MAX, OpenText::frames);
        check_positions(end, pass.prompt.positions.len() + state.frames.len().min(with_text))
    }

    fn step(
        &self,
        kv: &mut KvPool,
        entries: &mut [StepEntry<'_, Self>],
    ) -> Result<Vec<StepResult<Vec<u32>>>, Error> {
        let inputs = entries.iter_mut().map(|entry| {
            let StepEntry { pass, start, end, block_table, .. } = *entry;
            StepInput { pass, generated: &mut *entry.state, start, end, block_table }
        });
        let mut inputs: Vec<_> = inputs.collect();
        let outcomes = self.generator.step(kv, &mut inputs, &mut NoObserver)?;
        let results = outcomes.into_iter().zip(&inputs).map(|(outcome, input)| match outcome {
            Outcome::Pending => frame_driver::Outcome::Pending.into(),
            Outcome::End => frame_driver::Outcome::End.into(),
            Outcome::Frame(codes) => StepResult {
                content_key: input.last_key(&self.settings.config),
                ..frame_driver::Outcome::Frame(codes.to_vec()).into()
            },
        });
        Ok(results.collect())
    }

    fn finish_pass(
        &self,
        _voice: &Option<Arc<ClonedVoice>>,
        _pass: &Pass,
        _state: &mut Generated,
        _output: &mut StepOutput,
    ) {
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        let cloner = self.cloner()?;
        cloner.pack(&*cloner.encode_recording(recording, &self.codec, &self.vocabulary)?)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<(), InputError> {
        self.cloner()?.load_pack(pack, &self.codec, &self.vocabulary).map(drop)
    }
}

impl QwenTts {
    fn cloner(&self) -> Result<&VoiceCloner, InputError> {
        self.cloner.as_ref().ok_or_else(|| InputError {
            param: "model",
            message: "this model does not speak in the voice of a recording; choose one that does".to_owned(),
        })
    }
}
