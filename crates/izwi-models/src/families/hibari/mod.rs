//! The hibari family: English sentences to speech, a whole unit in each pass.
//!
//! Implements [`SpeechModel`] as a sequence of stages: text, units, network, waveform. Source of the architecture:
//! hibari-tts 0.2.1.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use rayon::prelude::*;

use self::network::{FRAMES_PER_SECOND, Network, SYMBOLS, Utterance};
use self::noise::Noise;
use self::waveform::{SAMPLE_RATE_HZ, Synthesiser};
use super::LoadOptions;
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::text::english::{EnglishFrontEnd, unknown_words};
use crate::text::front_end::FrontEnd;
use crate::text::ipa;
use crate::text::units::{self, Unit, Vocabulary};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::slices::with_slices;
use izwi_types::{
    Gender, Input, InputError, ModelInfo, PrepareLimits, Prepared, SamplingParams, SpeakInput, StepOutput,
    Task, Voice, Work, excerpt, languages,
};

#[cfg(test)]
mod golden;
mod network;
mod noise;
#[cfg(test)]
mod tests;
mod waveform;

const VOICE: &str = "heart";
const LANGUAGE: &str = "en";
/// Leaves the language to the model.
const ANY_LANGUAGE: &str = "auto";
const SPEED_RANGE: (f32, f32) = (0.25, 4.0);
/// Longest sequence of the network's training.
const MAX_UNIT_IDS: usize = 400;
/// Slow speech gets shorter units, so that the frames of a unit stay bounded; this many ids at least.
const MIN_SLOW_UNIT_IDS: usize = 100;

/// Samples of a frame in which the network counts durations.
const SAMPLES_PER_DURATION: usize = SAMPLE_RATE_HZ as usize / (FRAMES_PER_SECOND / 2);

/// Loads the checkpoint in `folder`: `model.safetensors`, `vocab.json` and, for unknown words, `oov.safetensors` with
/// `oov.json`.
///
/// # Errors
/// A file is missing or unreadable, or a tensor is missing, unknown or mis-shaped; the error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Hibari::load(folder, options)?))
}

/// The one voice.
pub(super) fn voices() -> Vec<Voice> {
    vec![Voice {
        id: VOICE.to_owned(),
        language: "en-US".to_owned(),
        gender: Some(Gender::Female),
        description: "warm female voice, American English".to_owned(),
    }]
}

/// A prepared utterance.
#[derive(Debug)]
struct PreparedUtterance {
    units: Vec<Unit>,
    /// For each of the units, how many bytes of the user's text are said before it.
    starts: Vec<usize>,
    speed: f32,
    seed: u64,
}

#[derive(Debug)]
struct Hibari {
    info: ModelInfo,
    front_end: EnglishFrontEnd,
    vocabulary: Vocabulary,
    network: Network,
    synthesiser: Synthesiser,
}

impl Hibari {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint::open(&folder.join("model.safetensors"), &options.device)?;
        let weight_bytes = checkpoint.bytes_as(DType::F32);
        let precision = options.weight_precision();
        let network = Network::load(&mut checkpoint, precision)?;
        checkpoint.finish()?;
        Ok(Self {
            info: ModelInfo {
                sample_rate_hz: SAMPLE_RATE_HZ,
                input_sample_rate_hz: SAMPLE_RATE_HZ,
                tasks: vec![Task::Tts],
                voices: voices(),
                speed_range: Some(SPEED_RANGE),
                takes_instructions: false,
                takes_keywords: false,
                writes_figures: true,
                detects_language: false,
                takes_prompt: false,
                languages: vec![LANGUAGE.to_owned()],
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
            front_end: EnglishFrontEnd::new(unknown_words(folder)?)?,
            vocabulary: Vocabulary::load(&folder.join("vocab.json"), SYMBOLS)?,
            network,
            synthesiser: Synthesiser::new(),
        })
    }

    fn check(&self, input: &SpeakInput) -> Result<(), InputError> {
        if let Some(voice) = input.voice.as_deref().filter(|voice| *voice != VOICE) {
            let message = format!("voice '{}' is unknown; this model has: {VOICE}", excerpt(voice));
            return Err(InputError { param: "voice", message });
        }
        let named =
            input.options.language.as_deref().filter(|language| !language.eq_ignore_ascii_case(ANY_LANGUAGE));
        if let Some(language) = named {
            let checked = languages::supported(language, &self.info.languages);
            checked.map_err(|message| InputError { param: "language", message })?;
        }
        let (slowest, fastest) = SPEED_RANGE;
        if !(slowest..=fastest).contains(&input.speed) {
            let message = format!("speed {} is out of range; use {slowest} to {fastest}", input.speed);
            return Err(InputError { param: "speed", message });
        }
        Ok(())
    }
}

/// Limit of a unit's ids: lower for slow speech, which has more frames per id.
fn max_unit_ids(speed: f32, limits: &PrepareLimits) -> usize {
    let slow = (MAX_UNIT_IDS as f32 * speed.min(1.0)) as usize;
    slow.max(MIN_SLOW_UNIT_IDS).min(limits.max_tokens_per_step)
}

impl SpeechModel for Hibari {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Speak(input) = input else { return Err(InputError::other_task("speaks", "audio")) };
        self.check(input)?;
        let mut sentences = self.front_end.sentences(&input.text);
        ipa::substitute(&mut sentences, &input.sounds, |sounds| self.front_end.own_symbols(sounds));
        let mut units = units::cut(&sentences, &self.vocabulary, max_unit_ids(input.speed, limits));
        if units.is_empty() {
            let message = "nothing speakable remains of the text; write words, numbers or names in English";
            return Err(InputError { param: "input", message: message.to_owned() });
        }
        let work = Work::Units(units.iter().map(|unit| unit.ids.len()).collect());
        let starts = units::bind_text(&mut units, &input.text);
        let utterance = PreparedUtterance { units, starts, speed: input.speed, seed: input.seed };
        Ok(Prepared { work, payload: Arc::new(utterance), unspoken: self.front_end.unspoken(&input.text) })
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let prepared: Vec<_> = batch
            .iter()
            .map(|entry| prepared_utterance(entry).map(|utterance| (utterance, entry.start)))
            .collect();
        let utterances: Vec<Utterance<'_>> = prepared
            .iter()
            .flatten()
            .map(|&(utterance, unit)| Utterance { ids: &utterance.units[unit].ids, speed: utterance.speed })
            .collect();
        let computed = if utterances.is_empty() { Vec::new() } else { self.network.forward(&utterances)? };
        let mut computed = computed.into_iter();
        let with_acoustics = prepared.into_iter().map(|entry| {
            let (utterance, unit) = entry?;
            let missing = Error::Internal("the network has no result for a unit");
            Ok::<_, Error>((utterance, unit, computed.next().ok_or(missing)?))
        });
        let outputs = with_acoustics.collect::<Vec<_>>().into_par_iter().map(|entry| {
            let (utterance, unit, acoustics) = entry?;
            let noise = Noise::new(utterance.seed, unit);
            let fill = |frame, parts: [&mut [f32]; 2]| noise.fill(frame, parts);
            let samples = with_slices([&acoustics.heads], |[heads]| {
                self.synthesiser.synthesise(heads, &acoustics.pitch_hz, fill)
            })?;
            Ok(StepOutput {
                samples: samples.map_err(|_| Error::Internal("a transform got buffers of another length"))?,
                words: units::words(
                    &utterance.units[unit],
                    utterance.starts[unit],
                    &acoustics.durations,
                    SAMPLES_PER_DURATION,
                ),
                generated_tokens: utterance.units[unit].ids.len(),
                finished: unit + 1 == utterance.units.len(),
                ..StepOutput::default()
            })
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Speak(SpeakInput::plain("The quick brown fox jumps over the lazy dog."))
    }
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
