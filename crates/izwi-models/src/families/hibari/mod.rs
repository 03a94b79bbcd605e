//! The hibari family: English sentences to speech, a whole unit in each pass.
//!
//! Implements [`SpeechModel`] as a sequence of stages: text, units, network, waveform. Source of the architecture:
//! hibari-tts 0.2.1.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use candle_core::DType;
use rayon::prelude::*;
use regex::Regex;

use self::network::{Acoustics, FRAMES_PER_SECOND, Network, Utterance};
use self::noise::Noise;
use self::oov::UnknownWordNet;
use self::units::{MAX_UNIT_IDS, Sentence, Unit, Vocabulary};
use self::waveform::{SAMPLE_RATE_HZ, Synthesiser};
use super::LoadOptions;
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::text::alignment::spoken_ends;
use crate::text::markup::Markup;
use crate::text::normalise::Normaliser;
use crate::text::phonemes::{LetterNames, Phonemiser, UnknownWords, WordPhonemes};
use crate::text::sentences;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_nn::slices::with_slices;
use izwi_types::{
    Input, InputError, ModelInfo, PrepareLimits, Prepared, SamplingParams, SpeakInput, SpokenWord,
    StepOutput, Task, Voice, Work, excerpt, languages,
};

mod files;
#[cfg(test)]
mod golden;
mod network;
mod noise;
mod oov;
#[cfg(test)]
mod tests;
mod units;
mod waveform;

const VOICE: &str = "heart";
const LANGUAGE: &str = "en";
/// Leaves the language to the model.
const ANY_LANGUAGE: &str = "auto";
const SPEED_RANGE: (f32, f32) = (0.25, 4.0);
/// Slow speech gets shorter units, so that the frames of a unit stay bounded; this many ids at least.
const MIN_SLOW_UNIT_IDS: usize = 100;

/// Unusual characters of a text that are tried for their sound.
const MAX_UNUSUAL: usize = 32;
/// Characters of the word around one that decide whether it is said.
const CONTEXT_CHARS: usize = 16;

/// Samples of a frame in which the network counts durations.
const SAMPLES_PER_DURATION: usize = SAMPLE_RATE_HZ as usize / (FRAMES_PER_SECOND / 2);

/// hibari's own front end never emits these, so the network was not trained on them.
const UNSUPPORTED_MARKS: [char; 3] = ['"', '“', '”'];

/// Loads the checkpoint in `folder`: `model.safetensors`, `vocab.json` and, for unknown words, `oov.safetensors` with
/// `oov.json`.
///
/// # Errors
/// A file is missing or unreadable, or a tensor is missing, unknown or mis-shaped; the error names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Hibari::load(folder, options)?))
}

/// The phonemes of each sentence, and how many bytes of `text` are said after each of its words.
///
/// # Errors
/// A rule for texts is faulty.
pub(super) fn phonemes(text: &str) -> Result<Vec<(String, Vec<usize>)>, Error> {
    static FRONT_END: OnceLock<Result<FrontEnd, String>> = OnceLock::new();
    let made =
        FRONT_END.get_or_init(|| FrontEnd::new(Box::new(LetterNames)).map_err(|error| error.to_string()));
    let front_end = made.as_ref().map_err(|error| Error::Checkpoint(error.clone()))?;
    let sentences = front_end.sentences(text).into_iter();
    Ok(sentences.map(|sentence| (sentence.phonemes, sentence.said)).collect())
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

/// Text front end: text to phonemes of sentences.
#[derive(Debug)]
struct FrontEnd {
    markup: Markup,
    normaliser: Normaliser,
    phonemiser: Phonemiser,
    /// Letters, digits and symbols outside ASCII.
    unusual: Regex,
}

impl FrontEnd {
    fn new(unknown: Box<dyn UnknownWords>) -> Result<Self, Error> {
        let faulty = |_| Error::Internal("a text rule is not a regular expression");
        Ok(Self {
            markup: Markup::new().map_err(faulty)?,
            normaliser: Normaliser::new().map_err(faulty)?,
            phonemiser: Phonemiser::new(unknown),
            unusual: Regex::new(r"[[\p{L}\p{N}\p{S}]--\p{ASCII}]").map_err(faulty)?,
        })
    }

    /// The words of a sentence as they are spoken, and their phonemes.
    fn sentence(&self, sentence: &str) -> (String, Vec<WordPhonemes>) {
        let spoken = self.normaliser.normalise(sentence);
        let phonemes = self.phonemiser.phonemes(&spoken);
        (spoken, phonemes)
    }

    /// Characters of `text` that nothing is said for, each once, as far as they are among the first [`MAX_UNUSUAL`]
    /// unusual ones.
    fn unspoken(&self, text: &str) -> String {
        let phonemes = |text: &str| joined(&self.sentence(&self.markup.strip(text)).1);
        let (mut seen, mut unspoken) = (Vec::new(), String::new());
        for found in self.unusual.find_iter(text) {
            let unusual = found.as_str();
            if seen.len() == MAX_UNUSUAL {
                break;
            }
            if seen.contains(&unusual) {
                continue;
            }
            seen.push(unusual);
            let context = |c: &char| !c.is_whitespace();
            let before: Vec<char> =
                text[..found.start()].chars().rev().take(CONTEXT_CHARS).take_while(context).collect();
            let before: String = before.into_iter().rev().collect();
            let after: String = text[found.end()..].chars().take(CONTEXT_CHARS).take_while(context).collect();
            if !phonemes(unusual).contains(char::is_alphabetic)
                && phonemes(&format!("{before}{unusual}{after}")) == phonemes(&format!("{before}{after}"))
            {
                unspoken.push_str(unusual);
            }
        }
        unspoken
    }

    /// The sentences of `text`.
    fn sentences(&self, text: &str) -> Vec<Sentence> {
        let plain = self.markup.strip(text);
        let sentences = sentences::split(&plain).into_par_iter().map(|sentence| self.sentence(sentence));
        let sentences: Vec<(String, Vec<WordPhonemes>)> = sentences.collect();
        let spoken: Vec<&str> = sentences.iter().flat_map(|(spoken, _)| spoken.split_whitespace()).collect();
        let ends = spoken_ends(text, &spoken);
        let mut at = 0;
        let sentences = sentences.iter().map(|(spoken, words)| {
            let ends = &ends[at..][..spoken.split_whitespace().count()];
            at += ends.len();
            let said = words.iter().filter_map(|word| ends.get(word.word).copied()).collect();
            Sentence { said, phonemes: joined(words) }
        });
        sentences.collect()
    }
}

/// The phonemes that the network knows of all words, separated by single spaces.
fn joined(words: &[WordPhonemes]) -> String {
    let phonemes: Vec<&str> = words.iter().map(|word| word.phonemes.as_str()).collect();
    phonemes.join(" ").replace(UNSUPPORTED_MARKS, "")
}

/// How many bytes of `text` are said before each of its units. Text behind the last word that has sounds belongs to it.
fn bind_text(units: &mut [Unit], text: &str) -> Vec<usize> {
    let mut said = 0;
    let mut starts = Vec::with_capacity(units.len());
    for unit in &*units {
        starts.push(said);
        said = unit.said.iter().rev().find_map(|said| *said).unwrap_or(said);
    }
    let symbols = units.iter_mut().rev().flat_map(|unit| unit.said.iter_mut().rev().flatten());
    symbols.take_while(|end| **end == said).for_each(|end| *end = text.trim_end().len());
    starts
}

/// When the words of a unit are spoken in its samples. `text_start` bytes of the text are said before it.
fn words(unit: &Unit, text_start: usize, acoustics: &Acoustics) -> Vec<SpokenWord> {
    let mut words: Vec<SpokenWord> = Vec::new();
    let mut frames = 0;
    for (said, duration) in unit.said.iter().zip(&acoustics.durations) {
        let sample_start = (frames * SAMPLES_PER_DURATION) as u64;
        frames += duration;
        let sample_end = (frames * SAMPLES_PER_DURATION) as u64;
        let Some(text_end) = *said else { continue };
        let text_start = match words.last_mut() {
            // The front end has added sounds before the first word of the text.
            _ if text_end == 0 => continue,
            Some(last) if last.text_end == text_end => {
                last.sample_end = sample_end;
                continue;
            }
            last => last.map_or(text_start, |last| last.text_end),
        };
        words.push(SpokenWord { text_start, text_end, sample_start, sample_end });
    }
    words
}

#[derive(Debug)]
struct Hibari {
    info: ModelInfo,
    front_end: FrontEnd,
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
        let voice = Voice {
            id: VOICE.to_owned(),
            language: "en-US".to_owned(),
            description: "warm female voice, American English".to_owned(),
        };
        Ok(Self {
            info: ModelInfo {
                sample_rate_hz: SAMPLE_RATE_HZ,
                input_sample_rate_hz: SAMPLE_RATE_HZ,
                tasks: vec![Task::Tts],
                voices: vec![voice],
                speed_range: Some(SPEED_RANGE),
                takes_instructions: false,
                languages: vec![LANGUAGE.to_owned()],
                translates: false,
                clones_voices: false,
                appends_text: false,
                times_words: true,
                sampling: SamplingParams::GREEDY,
                weight_bytes,
                state_bytes: 0,
            },
            front_end: FrontEnd::new(unknown_words(folder)?)?,
            vocabulary: Vocabulary::load(&folder.join("vocab.json"))?,
            network,
            synthesiser: Synthesiser::new(),
        })
    }

    fn check(&self, input: &SpeakInput) -> Result<(), InputError> {
        if let Some(voice) = input.voice.as_deref().filter(|voice| *voice != VOICE) {
            let message = format!("voice '{}' is unknown; this model has: {VOICE}", excerpt(voice));
            return Err(InputError { param: "voice", message });
        }
        let named = input.language.as_deref().filter(|language| !language.eq_ignore_ascii_case(ANY_LANGUAGE));
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

/// The network for unknown words, or letter names if the checkpoint has none.
fn unknown_words(folder: &Path) -> Result<Box<dyn UnknownWords>, Error> {
    if folder.join("oov.safetensors").exists() {
        return Ok(Box::new(UnknownWordNet::load(folder)?));
    }
    tracing::warn!(folder = %folder.display(), "no oov.safetensors: unknown words will be spelled letter by letter");
    Ok(Box::new(LetterNames))
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
        let sentences = self.front_end.sentences(&input.text);
        let mut units = units::cut(&sentences, &self.vocabulary, max_unit_ids(input.speed, limits));
        if units.is_empty() {
            let message = "nothing speakable remains of the text; write words, numbers or names in English";
            return Err(InputError { param: "input", message: message.to_owned() });
        }
        let work = Work::Units(units.iter().map(|unit| unit.ids.len()).collect());
        let starts = bind_text(&mut units, &input.text);
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
                words: words(&utterance.units[unit], utterance.starts[unit], &acoustics),
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
