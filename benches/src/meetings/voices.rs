//! Who speaks in meetings: the voices of a TTS model, and people of whom there are recordings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use izwi_audio::resample::Resampler;
use izwi_benches::clips;
use izwi_core::engine::{Engine, EngineCoreRequest, FinishReason};
use izwi_tests::Dice;

const SEED: u64 = 1;
/// Pauses up to this are speech, in seconds.
const SHORT_PAUSE_S: f64 = 0.3;
/// Steps in which recorded speech is looked for, in samples, and the share of the loudest step from which on it is.
const STEP: usize = clips::RATE_HZ as usize / 100;
const QUIET: f32 = 0.03;

/// What a speaker says, at [`clips::RATE_HZ`].
#[derive(Debug)]
pub(crate) struct Utterance {
    pub(crate) samples: Vec<f32>,
    /// Starts and ends of its speech, in seconds.
    pub(crate) speech: Vec<(f64, f64)>,
}

/// A speaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Speaker {
    Voice(String),
    /// Recordings of a person.
    Person(String, Vec<PathBuf>),
}

impl Speaker {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Voice(name) | Self::Person(name, _) => name,
        }
    }
}

/// All speakers.
pub(crate) struct Cast {
    engine: Engine,
    speakers: Vec<Speaker>,
    sentences: Vec<String>,
    /// What was said already, by speaker and number.
    said: HashMap<(String, usize), Rc<Utterance>>,
}

impl Cast {
    /// The English voices of `engine`, those of `assets/speech`, and those of a folder of people.
    pub(crate) fn new(engine: Engine, recorded: Option<&Path>) -> Result<Self> {
        let voices = engine.profile().info.voices.iter();
        let voices = voices.filter(|voice| voice.language.starts_with("en"));
        let mut speakers: Vec<Speaker> = voices.map(|voice| Speaker::Voice(voice.id.clone())).collect();
        let clips = clips::all()?;
        let (readers, others): (Vec<_>, Vec<_>) =
            clips.into_iter().partition(|clip| clip.name.starts_with("librivox"));
        let paths = |clips: Vec<clips::Clip>| clips.into_iter().map(|clip| clip.path).collect();
        speakers.push(Speaker::Person("librivox".to_owned(), paths(readers)));
        let of_one = |clip: clips::Clip| Speaker::Person(clip.name, vec![clip.path]);
        speakers.extend(others.into_iter().map(of_one));
        for folder in recorded.map(listed).transpose()?.unwrap_or_default() {
            if folder.is_dir() {
                let name = folder
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .replace(char::is_whitespace, "_");
                speakers.push(Speaker::Person(name, listed(&folder)?));
            }
        }
        let mut sentences = Vec::new();
        for list in ["benches/round_trip/sentences.txt", "benches/alignment/sentences.txt"] {
            let path = clips::root().join(list);
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            sentences.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        Ok(Self { engine, speakers, sentences, said: HashMap::new() })
    }

    /// Different speakers.
    pub(crate) fn draw(&self, count: usize, dice: &mut Dice) -> Result<Vec<Speaker>> {
        ensure!(count <= self.speakers.len(), "there are only {} speakers", self.speakers.len());
        let mut left = self.speakers.clone();
        Ok((0..count).map(|_| left.swap_remove(dice.roll(left.len()))).collect())
    }

    /// Something that a speaker says.
    pub(crate) async fn say(&mut self, speaker: &Speaker, dice: &mut Dice) -> Result<Rc<Utterance>> {
        // A few for each, since they are said in several meetings.
        let choices = match speaker {
            Speaker::Voice(_) => 6,
            Speaker::Person(_, paths) => paths.len(),
        };
        let key = (speaker.name().to_owned(), dice.roll(choices));
        if let Some(known) = self.said.get(&key) {
            return Ok(Rc::clone(known));
        }
        let utterance = Rc::new(match speaker {
            Speaker::Person(_, paths) => recorded(&paths[key.1])?,
            Speaker::Voice(name) => {
                // Not all voices say the same.
                let start: usize = name.bytes().map(usize::from).sum();
                let text = &self.sentences[(start + 7 * key.1) % self.sentences.len()];
                spoken(&self.engine, name, text).await?
            }
        });
        self.said.insert(key, Rc::clone(&utterance));
        Ok(utterance)
    }
}

/// The entries of a folder, by their names.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

async fn spoken(engine: &Engine, voice: &str, text: &str) -> Result<Utterance> {
    let mut params = engine.profile().default_params();
    params.seed = Some(SEED);
    let request = EngineCoreRequest::tts(text).with_params(params).with_voice(voice);
    let output = engine.generate(request).await?;
    ensure!(
        output.stats.finish_reason == FinishReason::Stop,
        "'{text}' was not spoken to its end by {voice}"
    );
    let mut samples = Vec::new();
    let mut resampler = Resampler::new(output.audio.sample_rate, clips::RATE_HZ)?;
    resampler.push(&output.audio.samples, &mut samples)?;
    resampler.finish(&mut samples)?;
    // The times of words would not do: a word may have the pause after it.
    let speech = loud(&samples);
    Ok(Utterance { samples, speech })
}

fn recorded(path: &Path) -> Result<Utterance> {
    let samples = clips::samples(path)?;
    let speech = loud(&samples);
    Ok(Utterance { samples, speech })
}

/// Where a recording without noise is loud.
fn loud(samples: &[f32]) -> Vec<(f64, f64)> {
    let level = |step: &[f32]| (step.iter().map(|x| x * x).sum::<f32>() / step.len() as f32).sqrt();
    let levels: Vec<f32> = samples.chunks(STEP).map(level).collect();
    let most = levels.iter().copied().fold(0.0, f32::max);
    let second = |step: usize| (step * STEP) as f64 / f64::from(clips::RATE_HZ);
    let steps = levels.iter().enumerate().filter(|(_, level)| **level > QUIET * most);
    joined(steps.map(|(step, _)| (second(step), second(step + 1))).collect())
}

/// Stretches of speech without short pauses between.
fn joined(stretches: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (start, end) in stretches {
        match joined.last_mut().filter(|last| start - last.1 <= SHORT_PAUSE_S) {
            Some(last) => last.1 = last.1.max(end),
            None => joined.push((start, end)),
        }
    }
    joined
}
