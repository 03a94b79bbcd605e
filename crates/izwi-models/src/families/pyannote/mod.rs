//! The pyannote family: who speaks when in a recording, for any number of speakers.
//!
//! Windows of 10 s, one each second, tell who speaks of up to three speakers of their own ([`segmentation`]); a vector of each
//! of those voices ([`embedding`]) tells which of them are one speaker ([`clustering`]), which is known at the end of the
//! recording. A step hears a piece of 21 windows; the pieces of all recordings of a step are computed together. Everything is
//! computed on the CPU. Source of the pipeline: `SpeakerDiarization` of the Python package `pyannote.audio` 4.0, which computes
//! the spectra of each window by themselves; here those of a piece are computed once.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use self::clustering::Voice;
use self::config::{Config, Sizes};
use self::embedding::{Embedding, Pool};
use self::plda::Plda;
use self::segmentation::{FRAMES, SPEAKERS, Segmentation, WINDOW};
use self::turns::Turn;
use super::LoadOptions;
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, Segment, StepOutput, Task, Work,
};

mod clustering;
mod config;
mod embedding;
mod fbank;
#[cfg(test)]
mod golden;
mod plda;
mod segmentation;
mod turns;

/// Samples per second, and from one window to the next.
const SAMPLE_RATE_HZ: usize = 16_000;
const WINDOW_STEP: usize = 16_000;
/// Windows of a piece, which has 30 s.
const WINDOWS: usize = 21;
/// Half rows of a plane, of 80 ms, from one window to the next, and rows of a window.
const HALF_ROWS: usize = 25;
const ROWS: usize = 125;
/// Tokens of a step for a piece: rows of 80 ms.
const PIECE_TOKENS: usize = 375;
/// A voice with fewer frames without others is heard with them.
const MIN_ALONE: usize = 2;
/// The share of a window that a voice is heard alone, from which on speakers are learned from it: 1 / 5.
const CLEAR_SHARE: usize = 5;
/// Voices of a window, on average, of the state whose size is stated, and its windows: an hour.
const VOICES: usize = 2;
const STATED_WINDOWS: usize = 3_600;

/// Loads the checkpoint in `folder`: `config.yaml`, `segmentation/model.safetensors`, `embedding/model.safetensors` and
/// `plda/plda.bin`.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the error
/// names it.
pub(super) fn load(folder: &Path, _options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Pyannote::load(folder)?))
}

#[derive(Debug)]
struct Pyannote {
    info: ModelInfo,
    config: Config,
    bins: usize,
    segmentation: Segmentation,
    embedding: Embedding,
    plda: Plda,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// A recording, and the most speakers that are told apart in it.
#[derive(Debug)]
struct Recording {
    samples: Arc<[f32]>,
    max_speakers: usize,
}

/// What is known of a recording.
#[derive(Debug, Default)]
struct Heard {
    /// The speakers of each frame of each window, a bit for each.
    windows: Vec<Vec<u8>>,
    voices: Vec<Voice>,
}

/// The next windows of a recording.
#[derive(Debug)]
struct Piece {
    /// Of as many samples as the windows have, with zeros after the recording.
    samples: Vec<f32>,
    windows: usize,
    /// The samples that are of the recording.
    own: usize,
}

impl Piece {
    /// The windows from `first` on; `None` where none is left.
    fn of(samples: &[f32], first: usize) -> Option<Self> {
        let windows = WINDOWS.min(windows(samples.len()).checked_sub(first).filter(|&left| left > 0)?);
        let length = (windows - 1) * WINDOW_STEP + WINDOW;
        let own = samples.get(first * WINDOW_STEP..).unwrap_or_default();
        let own = &own[..length.min(own.len())];
        let mut samples = own.to_vec();
        samples.resize(length, 0.0);
        Some(Self { samples, windows, own: own.len() })
    }

    /// The samples of which spectra are made. Of a recording that is shorter than a window, which `is_first` in it, they repeat: their
    /// mean is taken off, which zeros would move far from that of speech.
    fn heard(&self, is_first: bool) -> Cow<'_, [f32]> {
        if is_first && (1..WINDOW).contains(&self.own) {
            self.samples[..self.own].iter().copied().cycle().take(self.samples.len()).collect()
        } else {
            Cow::Borrowed(&self.samples)
        }
    }

    fn window(&self, window: usize) -> &[f32] {
        &self.samples[window * WINDOW_STEP..][..WINDOW]
    }
}

/// Windows of a recording: the last one holds its end.
fn windows(samples: usize) -> usize {
    samples.saturating_sub(WINDOW).div_ceil(WINDOW_STEP) + 1
}

impl Pyannote {
    fn load(folder: &Path) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let open = |part: &str| Checkpoint::open_folder(&folder.join(part), &Device::Cpu);
        let (mut segmentation, mut embedding) = (open("segmentation")?, open("embedding")?);
        let fault = |message: String| Error::File { path: folder.display().to_string(), message };
        let sizes = Sizes::of(&segmentation, &embedding).map_err(fault)?;
        let networks =
            (Segmentation::load(&mut segmentation, &sizes)?, Embedding::load(&mut embedding, &sizes)?);
        let weight_bytes = (segmentation.taken() + embedding.taken()) * size_of::<f32>();
        segmentation.finish()?;
        embedding.finish()?;
        let voice_bytes = sizes.width * size_of::<f32>() + size_of::<Voice>();
        Ok(Self {
            info: ModelInfo {
                tasks: vec![Task::Diarize],
                state_bytes: STATED_WINDOWS * (FRAMES + VOICES * voice_bytes),
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            config,
            bins: sizes.bins,
            segmentation: networks.0,
            embedding: networks.1,
            plda: Plda::load(&folder.join("plda").join("plda.bin"), sizes.width)?,
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    /// The speakers of each frame of each window of some pieces.
    fn segment(&self, pieces: &[&Piece]) -> Result<Vec<Vec<Vec<u8>>>, Error> {
        let windows: Vec<&[f32]> =
            pieces.iter().flat_map(|piece| (0..piece.windows).map(|window| piece.window(window))).collect();
        let mut masks = self.segmentation.speakers(&windows)?.into_iter();
        Ok(pieces.iter().map(|piece| masks.by_ref().take(piece.windows).collect()).collect())
    }

    /// The voices in a piece whose first window is window `first` of the recording.
    fn voices(&self, piece: &Piece, masks: &[Vec<u8>], first: usize) -> Result<Vec<Voice>, Error> {
        if masks.iter().flatten().all(|&mask| mask == 0) {
            return Ok(Vec::new());
        }
        let Some(plane) = self.embedding.plane(&piece.heard(first == 0), self.bins)? else {
            return Ok(Vec::new());
        };
        let (mut voices, mut pools) = (Vec::new(), Vec::new());
        for (window, masks) in masks.iter().enumerate() {
            let half_rows = window * HALF_ROWS;
            let start = half_rows.div_ceil(2);
            let rows = start..(start + ROWS).min(plane.rows());
            for place in 0..SPEAKERS {
                let speaks = |frame: usize| masks[frame] >> place & 1 == 1;
                let is_alone = |frame: usize| masks[frame] == 1 << place;
                if !(0..FRAMES).any(speaks) {
                    continue;
                }
                let alone = (0..FRAMES).filter(|&frame| is_alone(frame)).count();
                let takes_alone = self.config.excludes_overlap && alone > MIN_ALONE;
                let frame = |row: usize| ((2 * row - half_rows) * FRAMES / (2 * ROWS)).min(FRAMES - 1);
                let is_heard = |row: usize| match takes_alone {
                    true => is_alone(frame(row)),
                    false => speaks(frame(row)),
                };
                pools.push(Pool { plane: &plane, start, speaks: rows.clone().map(is_heard).collect() });
                voices.push((first + window, place, alone * CLEAR_SHARE >= FRAMES));
            }
        }
        let vectors = self.embedding.vectors(&pools)?;
        let voice = |((window, place, is_clear), vector)| Voice { window, place, is_clear, vector };
        Ok(voices.into_iter().zip(vectors).map(voice).collect())
    }

    /// The turns of a recording that was heard to its end, with embeddings of their speakers.
    fn turns(&self, heard: &Heard, recording: &Recording) -> Vec<Segment> {
        let settings = &self.config.clustering;
        let speakers = clustering::speakers(&heard.voices, &self.plda, settings, recording.max_speakers);
        let mut names = vec![[None; SPEAKERS]; heard.windows.len()];
        for (voice, speaker) in heard.voices.iter().zip(&speakers) {
            names[voice.window][voice.place] = *speaker;
        }
        let speaking = turns::speaking(&heard.windows, &names);
        let length_s = recording.samples.len() as f64 / SAMPLE_RATE_HZ as f64;
        let (turns, order) = turns::turns(&speaking, length_s, self.config.min_pause_s);
        let embeddings: Vec<Arc<[f32]>> =
            order.iter().map(|&speaker| mean_embedding(&heard.voices, &speakers, speaker)).collect();
        turns.into_iter().map(|turn| segment(turn, &embeddings)).collect()
    }
}

/// The mean of a speaker's vectors, each of length 1: of the clear ones, or of all if none is.
fn mean_embedding(voices: &[Voice], speakers: &[Option<usize>], speaker: usize) -> Arc<[f32]> {
    let own = || voices.iter().zip(speakers).filter(|(_, of)| **of == Some(speaker)).map(|(voice, _)| voice);
    let has_clear = own().any(|voice| voice.is_clear);
    let mut mean = vec![0f32; voices.first().map_or(0, |voice| voice.vector.len())];
    for voice in own().filter(|voice| voice.is_clear || !has_clear) {
        let length = voice.vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        mean.iter_mut().zip(&voice.vector).for_each(|(sum, x)| *sum += x / length);
    }
    mean.into()
}

fn segment(turn: Turn, embeddings: &[Arc<[f32]>]) -> Segment {
    let Turn { start_s, end_s, speaker } = turn;
    let embedding = embeddings.get(speaker).cloned();
    Segment { start_s, end_s, speaker: u32::try_from(speaker).ok(), embedding, ..Segment::default() }
}

/// The parts of an entry.
fn parts<'a>(entry: &'a mut BatchEntry<'_>) -> Result<(&'a Recording, &'a mut Heard), Error> {
    let foreign = Error::Internal("an entry was prepared by another family");
    let Some(recording) = entry.prepared.payload.downcast_ref::<Recording>() else { return Err(foreign) };
    let Some(heard) = entry.state.downcast_mut::<Heard>() else { return Err(foreign) };
    if entry.start == 0 {
        *heard = Heard::default();
    }
    Ok((recording, heard))
}

impl SpeechModel for Pyannote {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        input.options.check_taken(&["seed", "max_speakers"])?;
        if input.chunk_ms.is_some() {
            let message = "this model tells speakers at the end of a recording alone; leave chunk_ms out, or choose a \
                           model for live audio";
            return Err(InputError { param: "chunk_ms", message: message.to_owned() });
        }
        let pieces = windows(input.samples.len()).div_ceil(WINDOWS);
        let units = vec![PIECE_TOKENS.min(limits.max_tokens_per_step); pieces];
        let max_speakers = input.options.max_speakers.and_then(|most| most.try_into().ok());
        let recording = Recording {
            samples: Arc::clone(&input.samples),
            max_speakers: max_speakers.unwrap_or(usize::MAX),
        };
        Ok(Prepared::new(Work::Units(units.into()), Arc::new(recording)))
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(Heard::default())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let entries: Vec<_> = batch.iter_mut().map(parts).collect();
        let next = |entry: &Result<(&Recording, &mut Heard), Error>| match entry {
            Ok((recording, heard)) => Piece::of(&recording.samples, heard.windows.len()),
            Err(_) => None,
        };
        let pieces: Vec<Option<Piece>> = entries.iter().map(next).collect();
        let own: Vec<&Piece> = pieces.iter().flatten().collect();
        let mut masks = if own.is_empty() { Vec::new() } else { self.segment(&own)? }.into_iter();
        let results = entries.into_iter().zip(&pieces).map(|(entry, piece)| {
            let (recording, heard) = entry?;
            if let Some(piece) = piece {
                let missing = Error::Internal("the network has no result for a piece");
                let masks = masks.next().ok_or(missing)?;
                heard.voices.extend(self.voices(piece, &masks, heard.windows.len())?);
                heard.windows.extend(masks);
            }
            if heard.windows.len() < windows(recording.samples.len()) {
                return Ok(StepOutput::default());
            }
            let segments = self.turns(heard, recording);
            Ok(StepOutput { segments, finished: true, ..StepOutput::default() })
        });
        Ok(results.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
