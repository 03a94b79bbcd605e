//! The Qwen3-TTS family: text to speech at 12.5 frames a second, a frame a step, in voices of its own, voices made up
//! from a description, or the voice of a recording.
//!
//! Owns the family's side of the executor's seam: checks what is asked for, and turns frames into samples. Source of
//! the architecture: <https://github.com/QwenLM/Qwen3-TTS>.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use sha2::{Digest, Sha256};

use self::codec::{Codec, DecoderState};
use self::config::{Kind, Settings};
use self::generation::{CODEC, Generator, PARTS, Pass, Share, Unwatched};
use self::prompt::{Codec as CodecSide, Order};
use self::speaker::{SpeakerConfig, SpeakerEncoder};
use self::tokens::{Script, Vocabulary};
use self::utterance::{Next, Speaking, Utterance};
use self::voice::{ClonedVoice, Cloner, Kept};
use super::LoadOptions;
use crate::model::{BatchEntry, SequenceState, SpeechModel};
use crate::overlap;
use crate::portions::{self, Portions};
use izwi_kernels::threads::num_threads;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::decodes_in_parallel;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::sampling::{Draws, mix};
use izwi_types::PartTimes;
use izwi_types::{
    Input, InputError, ModelInfo, PrepareLimits, Prepared, SamplingParams, SpeakInput, StepOutput, Task,
    Voice, VoiceRecording, VoiceReference,
};

mod codec;
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
mod order;
mod predictor;
mod prompt;
mod speaker;
mod talker;
#[cfg(test)]
mod tests;
mod tokens;
mod utterance;
mod voice;

/// A pass needs room for this many tokens of text to be worth its prompt.
const MIN_TOKENS: usize = 16;

/// Loads the checkpoint in `folder`: `config.json`, `generation_config.json`, the tokenizer, `model.safetensors` or its
/// shards, and `speech_tokenizer/`.
///
/// # Errors
/// A file is absent or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the
/// error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(QwenTts::load(folder, options)?))
}

/// The published sizes.
pub(super) const SIZES: [&str; 2] = ["qwen3-tts-0.6b", "qwen3-tts-1.7b"];

/// A model of the published size `size`, one of [`SIZES`], with random weights.
///
/// # Errors
/// The device has not the memory.
pub(super) fn random(size: &str, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    let [smaller, _] = SIZES;
    let config =
        if size == smaller { include_str!("shapes/0.6b.json") } else { include_str!("shapes/1.7b.json") };
    Ok(Arc::new(QwenTts::random(config, options)?))
}

/// Whose voice an utterance has.
enum Timbre<'a> {
    /// One of the checkpoint's, with its token; none where the voice is described or left to chance.
    Own(Option<(&'a str, u32)>),
    /// That of a recording.
    Cloned(Arc<ClonedVoice>),
}

#[derive(Debug)]
struct QwenTts {
    info: ModelInfo,
    settings: Settings,
    vocabulary: Vocabulary,
    generator: Generator,
    codec: Codec,
    cloner: Option<Cloner>,
    /// Whether utterances are watched: what made-up weights say never ends well.
    watches: bool,
    /// Whether frames become sound beside the step behind them, where there are threads for both.
    overlaps: bool,
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
        let made = Self::assemble((settings, vocabulary), &mut weights, codec, Sha256::new(), options)?;
        Ok(Self { watches: false, ..made })
    }

    fn assemble(
        (settings, vocabulary): (Settings, Vocabulary),
        weights: &mut Checkpoint,
        codec: Codec,
        mut fingerprint: Sha256,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let config = &settings.config;
        let books = config.talker_config.stack.num_code_groups;
        if codec.codebooks() != books
            || config.talker_config.code_predictor_config.vocab_size > codec.book_size()
        {
            return Err(Error::Checkpoint(format!(
                "the codec has {} books of {}, the talker speaks {books} of {}",
                codec.codebooks(),
                codec.book_size(),
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
                generator.talker.identify(&mut fingerprint)?;
                let fingerprint = fingerprint.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                let width = config.talker_config.stack.hidden_size;
                Some(Cloner { encoder, fingerprint, width, kept: Kept::default() })
            }
            _ => None,
        };
        let weight_bytes = generator.bytes() + codec.bytes();
        let info = info(&settings, &generator, &codec, cloner.is_some(), weight_bytes);
        let overlaps = decodes_in_parallel(&options.device);
        Ok(Self { info, settings, vocabulary, generator, codec, cloner, watches: true, overlaps, times })
    }

    /// The voice an input is to be spoken in: the model's own, or that of a recording.
    fn voice<'a>(&'a self, input: &SpeakInput) -> Result<Timbre<'a>, InputError> {
        let config = &self.settings.config;
        match (&self.cloner, &input.reference) {
            (None, None) => Ok(Timbre::Own(order::voice(config, input.voice.as_deref())?)),
            (None, Some(_)) => Err(InputError {
                param: "ref_audio",
                message: "this model does not speak in the voice of a recording; leave it out, or choose a model that does".to_owned(),
            }),
            (Some(_), None) => Err(InputError {
                param: "ref_audio",
                message: "this model speaks in the voice of a recording and has none of its own; give ref_audio, or a voice that was saved".to_owned(),
            }),
            (Some(cloner), Some(VoiceReference::Recording(recording))) => {
                Ok(Timbre::Cloned(cloner.of_recording(recording, &self.codec, &self.vocabulary)?))
            }
            (Some(cloner), Some(VoiceReference::Pack(pack))) => {
                Ok(Timbre::Cloned(cloner.of_pack(pack, &self.codec, &self.vocabulary)?))
            }
        }
    }

    fn utterance(&self, input: &SpeakInput, limits: &PrepareLimits) -> Result<Utterance, InputError> {
        let config = &self.settings.config;
        let (own, cloned) = match self.voice(input)? {
            Timbre::Own(own) => (own, None),
            Timbre::Cloned(voice) => (None, Some(voice)),
        };
        let language = order::language(config, input.language.as_deref(), own.map(|(name, _)| name))?;
        let instructions = input.instructions.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let instructions = instructions.filter(|_| config.takes_instructions());
        let instructions = instructions.map(|text| self.vocabulary.instructions(text)).unwrap_or_default();
        let speaker = match &cloned {
            Some(voice) => Some(CodecSide::Speaker(Arc::clone(&voice.speaker))),
            None => own.map(|(_, id)| CodecSide::Token(id)),
        };
        let order = |script: Script| Order {
            script,
            instructions: instructions.clone(),
            language,
            speaker: speaker.clone(),
            spoken: cloned.as_ref().and_then(|voice| voice.spoken.clone()),
            streams_text: input.streams_text.unwrap_or(config.kind == Kind::Base),
        };
        let unreadable =
            || InputError { param: "input", message: "this text cannot be tokenised".to_owned() };
        let empty = self.vocabulary.script("").ok_or_else(unreadable)?;
        let overhead = order(empty).prompt(config).positions.len();
        let positions = limits.max_positions.min(config.talker_config.max_position_embeddings);
        let room = positions.saturating_sub(overhead) / (1 + utterance::FRAMES_PER_TOKEN);
        if room < MIN_TOKENS {
            let message = format!(
                "the prompt takes {overhead} of {positions} positions and leaves no room for speech; shorten the \
                 instructions or the recording, or raise max_blocks"
            );
            return Err(InputError { param: "input", message });
        }
        let pieces = utterance::pieces(&input.text, &self.vocabulary, room.min(utterance::MAX_TOKENS));
        let pieces = pieces.filter(|pieces| !pieces.is_empty()).ok_or_else(unreadable)?;
        // What made-up weights say never ends well: it has no budget.
        let watched = pieces.iter().filter(|_| self.watches);
        let budgets = watched.map(|piece| portions::budget(piece.body.len())).collect();
        let greedy = input.sampling.temperature <= 0.0;
        let residual = if greedy { SamplingParams::GREEDY } else { self.settings.residual_sampling };
        let passes = pieces.into_iter().enumerate().map(|(index, script)| Pass {
            prompt: order(script).prompt(config),
            sampling: input.sampling,
            residual_sampling: residual,
            draws: Draws::new(if index == 0 {
                input.seed
            } else {
                mix(input.seed).wrapping_add(index as u64)
            }),
        });
        let portions = Portions {
            frame: self.codec.samples_per_frame(),
            held_back: 0,
            rate: self.codec.sample_rate(),
            chunk: input.chunk_samples.max(1),
            max_units: input.max_tokens,
            max_positions: limits.max_positions,
        };
        Ok(Utterance { passes: passes.collect(), budgets, voice: cloned, portions })
    }

    /// Samples of the pending frames, all sequences together.
    fn sound(&self, due: &mut [Due<'_>]) -> Result<Vec<Vec<f32>>, Error> {
        for due in due.iter_mut().filter(|due| due.speaking.decoder.is_none()) {
            let decoder = match &due.utterance.voice {
                Some(voice) => voice.decoder(&self.codec)?,
                None => self.codec.start(),
            };
            due.speaking.decoder = Some(decoder);
        }
        let mut batch: Vec<(&mut DecoderState, &[Vec<u32>])> = Vec::with_capacity(due.len());
        for due in due {
            if let Some(decoder) = &mut due.speaking.decoder {
                batch.push((decoder, &due.speaking.sounding.pending));
            }
        }
        self.times.time(CODEC, || self.codec.decode(&mut batch))
    }
}

/// A sequence whose pending frames become sound.
struct Due<'a> {
    /// Its place in the batch.
    place: usize,
    utterance: &'a Utterance,
    speaking: &'a mut Speaking,
    /// Whether the model ended the pass.
    ended: bool,
}

fn info(
    settings: &Settings,
    generator: &Generator,
    codec: &Codec,
    clones_voices: bool,
    weight_bytes: usize,
) -> ModelInfo {
    let talker = &settings.config.talker_config;
    let voices = talker.spk_id.keys().map(|name| Voice {
        id: name.clone(),
        language: "mul".to_owned(),
        description: match talker.dialect_of(name) {
            Some(dialect) => format!("speaks every language of the model, and {}", dialect.replace('_', " ")),
            None => "speaks every language of the model".to_owned(),
        },
    });
    ModelInfo {
        sample_rate_hz: codec.sample_rate() as u32,
        input_sample_rate_hz: codec.sample_rate() as u32,
        tasks: vec![Task::Tts],
        voices: if settings.config.kind == Kind::CustomVoice { voices.collect() } else { Vec::new() },
        speed_range: None,
        takes_instructions: settings.config.takes_instructions(),
        languages: Vec::new(),
        translates: false,
        clones_voices,
        sampling: settings.sampling,
        weight_bytes,
        state_bytes: codec.state_bytes(),
    }
}

/// What this family made for an entry.
fn share<'a>(entry: &'a mut BatchEntry<'_>) -> Result<(&'a Utterance, &'a mut Speaking, Rows<'a>), Error> {
    let foreign = Error::Internal("an entry was prepared by another family");
    let Some(utterance) = entry.prepared.payload.downcast_ref::<Utterance>() else { return Err(foreign) };
    let rows =
        Rows { start: entry.start, end: entry.start + entry.num_tokens, block_table: entry.block_table };
    let Some(speaking) = entry.state.downcast_mut::<Speaking>() else { return Err(foreign) };
    Ok((utterance, speaking, rows))
}

/// Positions of one sequence in a step, and where they lie.
#[derive(Clone, Copy)]
struct Rows<'a> {
    start: usize,
    end: usize,
    block_table: &'a [u32],
}

impl SpeechModel for QwenTts {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        Some(self.generator.talker.kv_layout())
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Speak(input) = input else { return Err(InputError::other_task("speaks", "audio")) };
        let utterance = self.utterance(input, limits)?;
        if let Some(voice) = &utterance.voice {
            // Here rather than in the first step, which others share.
            voice.decoder(&self.codec).map_err(|error| InputError {
                param: "ref_audio",
                message: format!("the recording cannot be taken: {error}"),
            })?;
        }
        let unreadable = || InputError { param: "input", message: "there is nothing to speak".to_owned() };
        Ok(Prepared { work: utterance.work(0).ok_or_else(unreadable)?, payload: Arc::new(utterance) })
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(Speaking::new())
    }

    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<StepOutput>, Error> {
        let mut outputs = vec![StepOutput::default(); batch.len()];
        let mut entries = batch.iter_mut().map(share).collect::<Result<Vec<_>, _>>()?;
        let (mut shares, mut waiting) = (Vec::with_capacity(entries.len()), Vec::new());
        for (utterance, speaking, rows) in &mut entries {
            let unknown = Error::Internal("an entry is in a pass nobody knows");
            let Speaking { pass, said, decoder, sounding } = &mut **speaking;
            let pass = utterance.passes.get(*pass).ok_or(unknown)?;
            let Rows { start, end, block_table } = *rows;
            shares.push(Share { pass, said, start, end, block_table });
            if let (Some(decoder), frames @ [_, ..]) = (decoder, sounding.waiting()) {
                waiting.push((decoder, frames));
            }
        }
        let generate = || self.generator.step(kv, &mut shares, &mut Unwatched);
        let decode = (!waiting.is_empty()).then_some(|| self.codec.decode(&mut waiting));
        let (outcomes, sounds) = overlap::run(&self.times, CODEC, generate, decode)?;
        drop((shares, waiting));
        let can_wait = self.overlaps && num_threads() > 1;
        let (mut due, mut sounds) = (Vec::new(), sounds.into_iter());
        for (place, ((utterance, speaking, _), outcome)) in entries.into_iter().zip(outcomes).enumerate() {
            let mut samples = Vec::new();
            if !speaking.sounding.waiting().is_empty() {
                samples = sounds.next().unwrap_or_default();
                if speaking.heard(utterance, &mut samples) {
                    outputs[place] = end(utterance, speaking, samples);
                    continue;
                }
            }
            outputs[place].samples = samples;
            let next = speaking.take(utterance, outcome);
            outputs[place].generated_tokens = usize::from(next != Next::Pending);
            match next {
                Next::Pending | Next::Goes => {}
                Next::Ends if speaking.sounding.pending.is_empty() => {
                    outputs[place] = end(utterance, speaking, std::mem::take(&mut outputs[place].samples));
                }
                Next::Sounds if can_wait && speaking.sounding.can_wait() => speaking.sounding.put_off(),
                _ => due.push(Due { place, utterance, speaking, ended: next == Next::Ends }),
            }
        }
        let sounds = self.sound(&mut due)?;
        for (Due { place, utterance, speaking, ended }, mut samples) in due.into_iter().zip(sounds) {
            let cut = speaking.heard(utterance, &mut samples);
            outputs[place].samples.append(&mut samples);
            if cut || ended {
                outputs[place] = end(utterance, speaking, std::mem::take(&mut outputs[place].samples));
            }
        }
        Ok(outputs)
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        let cloner = self.cloner()?;
        cloner.pack(&*cloner.of_recording(recording, &self.codec, &self.vocabulary)?)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<(), InputError> {
        self.cloner()?.of_pack(pack, &self.codec, &self.vocabulary).map(drop)
    }

    fn step_bytes(&self, chunk_samples: usize) -> usize {
        let frames = chunk_samples as f64 / self.codec.samples_per_frame() as f64;
        let portion = frames.clamp(1.0, portions::MAX_PORTION as f64);
        self.generator.frame_bytes() + (self.codec.decoder_bytes() as f64 / portion) as usize
    }

    fn part_times(&self) -> PartTimes {
        self.times.clone()
    }

    fn warm_up_input(&self) -> Input {
        let mut input = SpeakInput::plain("The quick brown fox.");
        if self.cloner.is_some() {
            let rate = self.codec.input_sample_rate();
            let noise = |n: usize| (mix(n as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            let samples: Vec<f32> = (0..rate).map(|n| 0.1 * noise(n)).collect();
            let recording = VoiceRecording { samples: samples.into(), text: None, timbre_only: true };
            input.reference = Some(VoiceReference::Recording(recording));
        }
        Input::Speak(input)
    }
}

impl QwenTts {
    fn cloner(&self) -> Result<&Cloner, InputError> {
        self.cloner.as_ref().ok_or_else(|| InputError {
            param: "model",
            message: "this model does not speak in the voice of a recording; choose one that does".to_owned(),
        })
    }
}

/// The output of a pass that has come to its end, with its last samples.
fn end(utterance: &Utterance, speaking: &mut Speaking, samples: Vec<f32>) -> StepOutput {
    let next_pass = speaking.next(utterance);
    let finished = next_pass.is_none();
    let runaway = finished && speaking.sounding.ran_away;
    StepOutput { samples, generated_tokens: 1, finished, runaway, next_pass, ..StepOutput::default() }
}
