//! The pyannote family: who speaks when in a recording, for any number of speakers.
//!
//! Windows of 10 s, one each second, tell who speaks of up to three speakers of their own ([`segmentation`]); a vector of each
//! of those voices ([`embedding`]) tells which of them are one speaker ([`clustering`]), which is known at the end of the
//! recording, or of audio that is heard as it arrives ([`live`]) so far. A step hears a piece of 21 windows, or the windows that have
//! arrived; those of all recordings of a step are computed together. Everything is computed on the CPU. Source of the pipeline: `SpeakerDiarization` of the Python package `pyannote.audio` 4.0, which computes
//! the spectra of each window by themselves; here those of a piece are computed once.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;

use self::clustering::{MAX_CLUSTERED, Speakers, Voice};
use self::config::{Clustering, Config, Sizes};
use self::embedding::{Embedding, Pool};
use self::live::{CHUNK_MS, Live};
use self::plda::Plda;
use self::segmentation::{FRAMES, SPEAKERS, Segmentation, WINDOW};
use self::turns::Turn;
use super::LoadOptions;
use crate::appended_audio::{AppendedAudio, Extent};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    AudioProgress, Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, Segment, StepOutput,
    Task, Work,
};

mod clustering;
mod config;
mod embedding;
mod fbank;
#[cfg(test)]
mod golden;
mod grouping;
mod live;
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
/// Positions of a window of audio that arrives: half rows of its second.
const CHUNK: usize = HALF_ROWS;
/// A voice with fewer frames without others is heard with them.
const MIN_ALONE: usize = 2;
/// The least share of a window that a voice is heard alone, of those that an embedding is of: 1 / 5.
const CLEAR_PART: usize = 5;
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

/// A prepared recording.
#[derive(Debug)]
enum Recording {
    /// With the most speakers that are told apart in it.
    Whole {
        samples: Arc<[f32]>,
        max_speakers: usize,
    },
    Appended(AppendedAudio),
}

/// What is known of a recording.
#[derive(Debug, Default)]
struct Heard {
    /// The speakers of each frame of each window, a bit for each.
    windows: Vec<Vec<u8>>,
    voices: Vec<Voice>,
}

/// State of a recording.
#[derive(Debug, Default)]
struct State {
    heard: Heard,
    /// Of one that is heard as it arrives.
    live: Live,
}

/// What tells voices and speakers.
#[derive(Debug)]
struct Rules<'a> {
    embedding: &'a Embedding,
    bins: usize,
    plda: &'a Plda,
    settings: &'a Clustering,
    excludes_overlap: bool,
    min_pause_s: f64,
}

/// The share of an entry in a step.
struct Share<'a> {
    recording: &'a Recording,
    state: &'a mut State,
    /// What it hears: a piece, or each window of audio that arrives.
    pieces: Vec<Piece>,
    finished: bool,
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

    /// The window of audio that arrives whose end is that of second `window`. What no later one needs is forgotten.
    fn arrived(audio: &AppendedAudio, window: usize) -> Result<Self, Error> {
        let gone = Error::Internal("the audio of a recording that starts again is gone");
        let (span, before) = Live::span(window);
        let (next, _) = Live::span(window + 1);
        let own = audio.take(span, next.start).ok_or(gone)?;
        let mut samples = vec![0.0; before];
        samples.extend(&own);
        samples.resize(WINDOW, 0.0);
        Ok(Self { samples, windows: 1, own: own.len() })
    }

    fn window(&self, window: usize) -> &[f32] {
        &self.samples[window * WINDOW_STEP..][..WINDOW]
    }
}

/// # Errors
/// There are no such chunks, a step has no room for one, or speakers are limited.
fn prepare_live(chunk_ms: u32, input: &ListenInput, limits: &PrepareLimits) -> Result<Prepared, InputError> {
    let refused = |param, message| Err(InputError { param, message });
    if chunk_ms != CHUNK_MS {
        return refused("chunk_ms", format!("chunks of {chunk_ms} ms are unknown; use {CHUNK_MS} ms"));
    }
    if input.options.max_speakers.is_some() {
        let message = "the number of speakers in audio that arrives is not known before its end; leave max_speakers out";
        return refused("max_speakers", message.to_owned());
    }
    let longest = limits.max_tokens_per_step.min(PIECE_TOKENS) / CHUNK * CHUNK;
    if longest == 0 {
        let most = limits.max_tokens_per_step;
        return refused("chunk_ms", format!("a chunk has {CHUNK} tokens, and a step has {most}"));
    }
    let recording = Recording::Appended(AppendedAudio::new(SAMPLE_RATE_HZ));
    Ok(Prepared::new(Work::Chunks { chunk: CHUNK, longest }, Arc::new(recording)))
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
                chunks_ms: vec![CHUNK_MS],
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
                let excludes_overlap = self.config.excludes_overlap;
                if let Some((alone, speaks)) =
                    pooled(masks, place, half_rows as isize, rows.clone(), excludes_overlap)
                {
                    pools.push(Pool { plane: &plane, start, speaks });
                    voices.push((first + window, place, alone));
                }
            }
        }
        let vectors = self.embedding.vectors(&pools)?;
        let voice = |((window, place, alone), vector)| Voice { window, place, alone, vector };
        Ok(voices.into_iter().zip(vectors).map(voice).collect())
    }

    fn rules(&self) -> Rules<'_> {
        let Config { clustering, excludes_overlap, min_pause_s } = &self.config;
        Rules {
            embedding: &self.embedding,
            bins: self.bins,
            plda: &self.plda,
            settings: clustering,
            excludes_overlap: *excludes_overlap,
            min_pause_s: *min_pause_s,
        }
    }

    /// The turns of a recording of so many samples that was heard to its end, with embeddings of their speakers.
    fn turns(&self, heard: &Heard, samples: usize, max_speakers: usize) -> Vec<Segment> {
        let rules = (&self.plda, &self.config.clustering);
        let speakers = Speakers::cluster(&heard.voices, rules, max_speakers, MAX_CLUSTERED).of(&heard.voices);
        let mut names = vec![[None; SPEAKERS]; heard.windows.len()];
        for (voice, speaker) in heard.voices.iter().zip(&speakers) {
            names[voice.window][voice.place] = *speaker;
        }
        let speaking = turns::speaking(&heard.windows, &names);
        let length_s = samples as f64 / SAMPLE_RATE_HZ as f64;
        let (turns, order) = turns::turns(&speaking, length_s, self.config.min_pause_s);
        let embeddings: Vec<Arc<[f32]>> =
            order.iter().map(|&speaker| mean_embedding(&heard.voices, &speakers, speaker)).collect();
        turns.into_iter().map(|turn| segment(turn, &embeddings)).collect()
    }

    /// The share of an entry in a step.
    fn share<'a>(&self, entry: &'a mut BatchEntry<'_>) -> Result<Share<'a>, Error> {
        let foreign = Error::Internal("an entry was prepared by another family");
        let Some(recording) = entry.prepared.payload.downcast_ref::<Recording>() else { return Err(foreign) };
        let Some(state) = entry.state.downcast_mut::<State>() else { return Err(foreign) };
        if entry.start == 0 {
            *state = State::default();
        }
        match recording {
            Recording::Whole { samples, .. } => {
                let known = state.heard.windows.len();
                let pieces: Vec<Piece> = Piece::of(samples, known).into_iter().collect();
                let own: usize = pieces.iter().map(|piece| piece.windows).sum();
                Ok(Share { recording, state, pieces, finished: known + own >= windows(samples.len()) })
            }
            Recording::Appended(audio) => {
                let AudioProgress { positions, .. } = progress(audio.extent());
                let end = (entry.start + entry.num_tokens).min(positions);
                let finished = audio.extent().is_finished && end == positions;
                let pieces = (state.live.windows()..end / CHUNK).map(|window| Piece::arrived(audio, window));
                let pieces = pieces.collect::<Result<_, Error>>()?;
                Ok(Share { recording, state, pieces, finished })
            }
        }
    }

    /// What a step hears of a recording, of whose pieces `masks` tell who speaks.
    fn hear(&self, share: Share<'_>, masks: Vec<Vec<Vec<u8>>>) -> EntryResult {
        let Share { recording, state, pieces, finished } = share;
        let mut segments = Vec::new();
        for (piece, masks) in pieces.iter().zip(masks) {
            match recording {
                Recording::Whole { .. } => {
                    let first = state.heard.windows.len();
                    state.heard.voices.extend(self.voices(piece, &masks, first)?);
                    state.heard.windows.extend(masks);
                }
                Recording::Appended(_) => {
                    let State { heard, live } = &mut *state;
                    for masks in masks {
                        segments.extend(live.take(&piece.samples, masks, heard, &self.rules())?);
                    }
                }
            }
        }
        match recording {
            Recording::Whole { samples, max_speakers } if finished => {
                segments = self.turns(&state.heard, samples.len(), *max_speakers);
            }
            _ => {}
        }
        Ok(StepOutput { segments, finished, ..StepOutput::default() })
    }
}

/// How far audio that arrives can be computed. One position more than its windows have ends it.
fn progress(Extent { samples, kept, is_finished }: Extent) -> AudioProgress {
    let positions = match is_finished {
        true => CHUNK * samples.div_ceil(WINDOW_STEP) + 1,
        false => CHUNK * (samples / WINDOW_STEP),
    };
    AudioProgress { positions, waiting: kept }
}

/// How long a voice of a window is heard alone, in frames, and in which of the rows `rows` it is heard: those of the window begin at
/// the half row `half_rows`. `None` if it does not speak.
fn pooled(
    masks: &[u8],
    place: usize,
    half_rows: isize,
    rows: Range<usize>,
    excludes_overlap: bool,
) -> Option<(usize, Vec<bool>)> {
    let speaks = |frame: usize| masks[frame] >> place & 1 == 1;
    let is_alone = |frame: usize| masks[frame] == 1 << place;
    if !(0..FRAMES).any(speaks) {
        return None;
    }
    let alone = (0..FRAMES).filter(|&frame| is_alone(frame)).count();
    let takes_alone = excludes_overlap && alone > MIN_ALONE;
    let is_heard = |row: usize| {
        let half_row = usize::try_from(2 * row as isize - half_rows).ok();
        let frame = half_row.map(|half_row| (half_row * FRAMES / (2 * ROWS)).min(FRAMES - 1));
        frame.is_some_and(|frame| if takes_alone { is_alone(frame) } else { speaks(frame) })
    };
    Some((alone, rows.map(is_heard).collect()))
}

/// The mean of a speaker's vectors, each of length 1: of the clear ones, or of all if none is.
fn mean_embedding(voices: &[Voice], speakers: &[Option<usize>], speaker: usize) -> Arc<[f32]> {
    let own = || voices.iter().zip(speakers).filter(|(_, of)| **of == Some(speaker)).map(|(voice, _)| voice);
    let has_clear = own().any(|voice| voice.is_clear(CLEAR_PART));
    let mut mean = vec![0f32; voices.first().map_or(0, |voice| voice.vector.len())];
    for voice in own().filter(|voice| voice.is_clear(CLEAR_PART) || !has_clear) {
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
        if let Some(chunk_ms) = input.chunk_ms {
            return prepare_live(chunk_ms, input, limits);
        }
        let pieces = windows(input.samples.len()).div_ceil(WINDOWS);
        let units = vec![PIECE_TOKENS.min(limits.max_tokens_per_step); pieces];
        let max_speakers = input.options.max_speakers.and_then(|most| most.try_into().ok());
        let max_speakers = max_speakers.unwrap_or(usize::MAX);
        let recording = Recording::Whole { samples: Arc::clone(&input.samples), max_speakers };
        Ok(Prepared::new(Work::Units(units.into()), Arc::new(recording)))
    }

    fn append_audio(
        &self,
        prepared: &Prepared,
        samples: &[f32],
        is_last: bool,
    ) -> Result<AudioProgress, InputError> {
        match prepared.payload.downcast_ref::<Recording>() {
            Some(Recording::Appended(audio)) => audio.append(samples, is_last).map(progress),
            _ => Err(InputError::other_task("takes this recording as a whole", "audio")),
        }
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(State::default())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let shares: Vec<_> = batch.iter_mut().map(|entry| self.share(entry)).collect();
        let pieces: Vec<&Piece> = shares.iter().flatten().flat_map(|share| &share.pieces).collect();
        let mut masks = if pieces.is_empty() { Vec::new() } else { self.segment(&pieces)? }.into_iter();
        let results = shares.into_iter().map(|share| {
            let share = share?;
            let own = masks.by_ref().take(share.pieces.len()).collect();
            self.hear(share, own)
        });
        Ok(results.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
