//! The Kokoro family: sentences to speech in many voices and blends of them, a whole unit in each pass.
//!
//! Implements [`SpeechModel`] as a sequence of stages: text, units, network, waveform. Source of the architecture: the
//! package `kokoro` 0.9.4, after StyleTTS 2 (<https://arxiv.org/abs/2306.07691>).

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;

use self::config::Config;
use self::network::{Network, Utterance};
use self::noise::noise;
use self::voices::{Blend, Voices};
use self::waveform::SAMPLE_RATE_HZ;
use super::LoadOptions;
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::text::front_end::{FrontEnd, FrontEndError};
use crate::text::front_ends::FrontEnds;
use crate::text::ipa;
use crate::text::units::{self, Unit, Vocabulary};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ModelInfo, PrepareLimits, Prepared, SamplingParams, SpeakInput, StepOutput, Task,
    Work, excerpt, languages,
};

mod bert;
#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod budgets;
mod config;
mod decoder;
mod generator;
#[cfg(test)]
mod golden;
mod network;
mod noise;
mod prosody;
mod style;
#[cfg(test)]
mod tests;
mod text;
mod voices;
mod waveform;

pub(super) use voices::voices;

/// The language that needs no program.
const LANGUAGE: &str = "en";
/// Leaves the language to the voice.
const ANY_LANGUAGE: &str = "auto";
const SPEED_RANGE: (f32, f32) = (0.25, 4.0);
/// Longest unit: longer ones sound hurried, and take memory.
const MAX_UNIT_IDS: usize = 256;
/// Slow speech gets shorter units, so that the frames of a unit stay bounded; this many ids at least.
const MIN_SLOW_UNIT_IDS: usize = 64;
/// The most seconds of a unit.
const MAX_UNIT_SECONDS: usize = 30;
/// Rows of pitch and energy for each frame of a duration.
const CONTOUR_FRAMES: usize = 2;

/// Loads the checkpoint in `folder`: `config.json`, `model.safetensors`, `voices/*.bin` and, for unknown words,
/// `oov.safetensors` with `oov.json`.
///
/// # Errors
/// A file is missing or unreadable, or a tensor is missing, unknown or mis-shaped; the error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Kokoro::load(folder, options)?))
}

/// The golden data of the tests.
#[cfg(test)]
fn golden_set() -> super::golden_set::GoldenSet {
    super::golden_set::GoldenSet { name: "kokoro", variable: "IZWI_GOLDEN_KOKORO" }
}

/// The name in the publisher's layout of a tensor in `name`'s, which may be that of the ONNX export: there, the parts are
/// under `encoder` and `decoder`, and layers without a bias under the names of their calls.
fn published_name(name: &str) -> String {
    if let Some(part) = name.strip_prefix("decoder.decoder.") {
        return format!("decoder.{part}");
    }
    match name.strip_prefix("encoder.") {
        Some(part) => {
            let is_whole = ["bert.", "bert_encoder.", "text_encoder.", "predictor."];
            match is_whole.iter().any(|prefix| part.starts_with(prefix)) {
                true => part.to_owned(),
                false => format!("predictor.{part}"),
            }
        }
        None => name.to_owned(),
    }
}

/// Whether a tensor of the publisher is none of the network's: instance norms are not trained, the transform is computed.
fn is_unread(name: &str) -> bool {
    let is_norm = name.ends_with(".norm.weight") || name.ends_with(".norm.bias");
    let is_shape = name.ends_with("_reshape_shape"); // of the export
    is_norm || is_shape || name.starts_with("bert.pooler.") || name.starts_with("decoder.generator.stft.")
}

/// A prepared utterance.
#[derive(Debug)]
struct PreparedUtterance {
    units: Vec<Unit>,
    /// For each of the units, how many bytes of the user's text are said before it.
    starts: Vec<usize>,
    voice: Blend,
    speed: f32,
    seed: u64,
}

/// What the network computes for a unit.
struct Spoken {
    samples: Vec<f32>,
    /// Of each id, in frames.
    durations: Vec<usize>,
}

#[derive(Debug)]
struct Kokoro {
    info: ModelInfo,
    front_ends: FrontEnds,
    vocabulary: Vocabulary,
    voices: Voices,
    network: Network,
    max_ids: usize,
    /// Samples of a frame in which durations count.
    frame_samples: usize,
}

impl Kokoro {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let voices = Voices::load(folder)?;
        let front_ends = FrontEnds::new(folder, std::env::var_os("PATH").unwrap_or_default())?;
        let frame_samples = CONTOUR_FRAMES * config.istftnet.samples_per_contour_frame();
        let max_frames = MAX_UNIT_SECONDS * SAMPLE_RATE_HZ as usize / frame_samples;
        let from = Checkpoint::open(&folder.join("model.safetensors"), &options.device)?;
        let mut from = options.cached(from, options.weight_precision());
        from.rename(published_name);
        from.skip(is_unread);
        let weight_bytes = from.bytes_as(DType::F32) + voices.bytes();
        let network = Network::load(&mut from, &config, options, max_frames)?;
        from.finish()?;
        let fault = |message| Error::File { path: folder.join("config.json").display().to_string(), message };
        Ok(Self {
            info: ModelInfo {
                sample_rate_hz: SAMPLE_RATE_HZ,
                input_sample_rate_hz: SAMPLE_RATE_HZ,
                tasks: vec![Task::Tts],
                voices: voices.list(),
                speed_range: Some(SPEED_RANGE),
                takes_instructions: false,
                takes_keywords: false,
                writes_figures: true,
                detects_language: false,
                takes_prompt: false,
                languages: front_ends.languages(),
                translates: false,
                clones_voices: false,
                appends_text: false,
                chunks_ms: Vec::new(),
                live_windows: false,
                times_words: true,
                takes_phonemes: true,
                aligns_text: false,
                calls_tools: false,
                transcriber: None,
                sampling: SamplingParams::GREEDY,
                weight_bytes,
                state_bytes: 0,
            },
            front_ends,
            max_ids: config.plbert.max_position_embeddings.min(MAX_UNIT_IDS),
            vocabulary: Vocabulary::new(config.vocab, config.n_token).map_err(fault)?,
            voices,
            network,
            frame_samples,
        })
    }

    /// The voice, and the front end for its language or the one asked for.
    fn check(&self, input: &SpeakInput) -> Result<(Blend, &dyn FrontEnd), InputError> {
        let found = self.voices.find(input.voice.as_deref());
        let voice = found.map_err(|message| InputError { param: "voice", message })?;
        let (slowest, fastest) = SPEED_RANGE;
        if !(slowest..=fastest).contains(&input.speed) {
            let message = format!("speed {} is out of range; use {slowest} to {fastest}", input.speed);
            return Err(InputError { param: "speed", message });
        }
        let own = self.voices.language(&voice);
        let named =
            input.options.language.as_deref().filter(|language| !language.eq_ignore_ascii_case(ANY_LANGUAGE));
        let tag = match named {
            Some(language) => {
                let code = languages::supported(language, &self.info.languages);
                let code = code.map_err(|message| InputError { param: "language", message })?;
                // Its own accent of the language.
                if languages::code_of(own).as_ref() == Some(&code) { own.to_owned() } else { code }
            }
            None => own.to_owned(),
        };
        let front_end = self.front_ends.of(&tag).map_err(|error| refusal(&error, input, &tag))?;
        Ok((voice, front_end))
    }

    /// Limit of a unit's ids: lower for slow speech, which has more frames per id.
    fn max_unit_ids(&self, speed: f32, limits: &PrepareLimits) -> usize {
        let slow = (self.max_ids as f32 * speed.min(1.0)) as usize;
        slow.max(MIN_SLOW_UNIT_IDS).min(self.max_ids).min(limits.max_tokens_per_step)
    }

    /// The samples and the durations of each utterance; `noises` are seed and unit of each.
    fn speak(&self, utterances: &[Utterance<'_>], noises: &[(u64, usize)]) -> Result<Vec<Spoken>, Error> {
        if utterances.is_empty() {
            return Ok(Vec::new());
        }
        let features = self.network.features(utterances)?;
        let gain = self.network.waveform.noise_gain();
        let frame = self.frame_samples / CONTOUR_FRAMES;
        let noises = features.iter().zip(noises).map(|(features, (seed, unit))| {
            noise(*seed, *unit, features.contour.pitch_hz.len() * frame, gain)
        });
        let samples = self.network.samples(&features, &noises.collect::<Vec<_>>())?;
        let spoken = samples.into_iter().zip(features);
        Ok(spoken.map(|(samples, features)| Spoken { samples, durations: features.durations }).collect())
    }
}

impl SpeechModel for Kokoro {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Speak(input) = input else { return Err(InputError::other_task("speaks", "audio")) };
        let (voice, front_end) = self.check(input)?;
        let mut sentences = front_end.sentences(&input.text).map_err(|error| {
            let language = input.options.language.as_deref().unwrap_or_else(|| self.voices.language(&voice));
            refusal(&error, input, &excerpt(language))
        })?;
        ipa::substitute(&mut sentences, &input.sounds, |sounds| front_end.own_symbols(sounds));
        let mut units = units::cut(&sentences, &self.vocabulary, self.max_unit_ids(input.speed, limits));
        if units.is_empty() {
            let message = "nothing speakable remains of the text; write words, numbers or names in the voice's language";
            return Err(InputError { param: "input", message: message.to_owned() });
        }
        let work = Work::Units(units.iter().map(|unit| unit.ids.len()).collect());
        let starts = units::bind_text(&mut units, &input.text);
        let utterance = PreparedUtterance { units, starts, voice, speed: input.speed, seed: input.seed };
        Ok(Prepared { work, payload: Arc::new(utterance), unspoken: front_end.unspoken(&input.text) })
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let prepared: Vec<_> = batch
            .iter()
            .map(|entry| prepared_utterance(entry).map(|utterance| (utterance, entry.start)))
            .collect();
        let good = || prepared.iter().flatten().copied();
        let utterances = good().map(|(utterance, unit): (&PreparedUtterance, usize)| {
            let ids = &utterance.units[unit].ids[..];
            // The two boundary marks are no phonemes.
            let style = self.voices.style(&utterance.voice, ids.len().saturating_sub(2));
            Utterance { ids, speed: utterance.speed, style }
        });
        let noises: Vec<_> = good().map(|(utterance, unit)| (utterance.seed, unit)).collect();
        let mut computed = self.speak(&utterances.collect::<Vec<_>>(), &noises)?.into_iter();
        let outputs = prepared.into_iter().map(|entry| {
            let (utterance, at) = entry?;
            let missing = Error::Internal("the network has no result for a unit");
            let Spoken { samples, durations } = computed.next().ok_or(missing)?;
            let unit = &utterance.units[at];
            Ok(StepOutput {
                samples,
                words: units::words(unit, utterance.starts[at], &durations, self.frame_samples),
                generated_tokens: unit.ids.len(),
                finished: at + 1 == utterance.units.len(),
                ..StepOutput::default()
            })
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        let text = "The quick brown fox jumps over the lazy dog.";
        Input::Speak(SpeakInput::plain(text).in_language(LANGUAGE))
    }
}

/// What is reported of a text that has no phonemes in the language of a tag.
fn refusal(error: &FrontEndError, input: &SpeakInput, tag: &str) -> InputError {
    let param = match error {
        FrontEndError::Program { .. } | FrontEndError::Load(_) => "input",
        _ if input.options.language.is_some() => "language",
        _ => "voice",
    };
    let voice = match input.voice.as_deref() {
        Some(voice) => format!("the voice '{}'", excerpt(voice)),
        None => "the default voice".to_owned(),
    };
    let message =
        format!("{voice} is to speak {tag}: {error}; or name the language {LANGUAGE}, which any voice reads");
    InputError { param, message }
}

/// The prepared utterance of an entry; the entry's unit exists.
fn prepared_utterance<'a>(entry: &BatchEntry<'a>) -> Result<&'a PreparedUtterance, Error> {
    let utterance = entry.prepared.payload.downcast_ref::<PreparedUtterance>();
    let utterance = utterance.ok_or(Error::Internal("an entry was prepared by another family"))?;
    match utterance.units.get(entry.start) {
        Some(_) => Ok(utterance),
        None => Err(Error::Internal("an entry asks for a unit its request does not have")),
    }
}
