//! The sortformer family: who speaks when in a recording, for up to four speakers in the order in which they begin.
//!
//! A step tells the speakers of one piece of a recording, with what is remembered of those before ([`memory`]); pieces of all
//! recordings of a step are computed together. Audio can be appended while it is heard. Models that were trained for whole
//! recordings take one of bounded length in one step. Source of the architecture: the Python package `nemo-toolkit` 3.0.0
//! (`SortformerEncLabelModel`); <https://arxiv.org/abs/2409.06656>.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use self::config::Config;
use self::head::Head;
use self::latency::{Latency, Row};
use self::memory::Rules;
use self::session::{Piece, Session};
use self::turns::{Thresholds, Turn};
use super::LoadOptions;
use super::nemo::{ROW_S, SAMPLE_RATE_HZ};
use crate::appended_audio::{AppendedAudio, Extent};
use crate::conformer::{Encoder, FrontEnd, Mel};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};
use crate::warm_up;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    AudioProgress, Input, InputError, ListenInput, ModelInfo, PrepareLimits, Prepared, Segment, StepOutput,
    Task, Work,
};

mod config;
#[cfg(test)]
mod golden;
mod head;
mod latency;
mod memory;
mod session;
mod turns;

/// The longest recording of a model that takes it whole, in seconds: memory and time grow with the square of it.
const MAX_WHOLE_S: usize = 300;
/// Added to the peak of a recording by which it is divided.
const PEAK_GUARD: f32 = 1e-3;

/// Loads the checkpoint in `folder`: `model_config.yaml`, and `model.safetensors` or its parts.
///
/// # Errors
/// A file is missing or unreadable, a setting is not supported, or a tensor is missing, unknown or mis-shaped; the error
/// names it.
pub(super) fn load(folder: &Path, options: &LoadOptions) -> Result<Arc<dyn SpeechModel>, Error> {
    Ok(Arc::new(Sortformer::load(folder, options)?))
}

#[derive(Debug)]
struct Sortformer {
    info: ModelInfo,
    front_end: FrontEnd,
    encoder: Encoder,
    head: Head,
    rules: Rules,
    /// Whether it takes recordings in pieces.
    streams: bool,
    /// How recordings that are known whole are heard.
    latency: Latency,
    thresholds: Thresholds,
    device: Device,
    /// Samples of [`SpeechModel::warm_up_input`].
    warm_up: Arc<[f32]>,
}

/// A prepared recording.
#[derive(Debug)]
struct Recording {
    audio: Audio,
    latency: Latency,
}

#[derive(Debug)]
enum Audio {
    Whole(Arc<[f32]>),
    Appended(AppendedAudio),
}

/// The share of an entry in a step.
struct Share<'a> {
    session: &'a mut Session,
    latency: &'a Latency,
    /// Its frames; `None` where there are none.
    piece: Option<(Mel, Piece)>,
    finished: bool,
    /// Whether turns are told before they are final.
    is_live: bool,
}

impl Sortformer {
    fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let mut from = Checkpoint::open_folder(folder, &options.device)?;
        // The filter bank is computed.
        from.skip(|name| name.starts_with("preprocessor."));
        let config = Config::load(folder, &from)?;
        let precision = options.weight_precision();
        let mut from = options.cached(from, precision);
        let encoder = Encoder::load(&mut from, "encoder", config.encoder, precision)?;
        let head = Head::load(&mut from, config.head, precision)?;
        let weight_bytes = from.taken() * precision.bits() / 8;
        from.finish()?;
        let (latency, thresholds) = match config.streams {
            true => (Latency::RECORDING, Thresholds::IN_PIECES),
            false => {
                let rows = (MAX_WHOLE_S as f64 / ROW_S).ceil() as usize;
                (Latency::whole(rows), Thresholds::WHOLE)
            }
        };
        let ms = |latency: Latency| (latency.chunk as f64 * ROW_S * 1e3).round() as u32;
        let row_bytes = config.encoder.width * size_of::<f32>() + size_of::<Row>();
        Ok(Self {
            info: ModelInfo {
                tasks: vec![Task::Diarize],
                chunks_ms: if config.streams { Latency::LIVE.map(ms).to_vec() } else { Vec::new() },
                state_bytes: latency.rows(config.rules.spkcache_len) * row_bytes,
                ..ModelInfo::listening(SAMPLE_RATE_HZ as u32, weight_bytes)
            },
            front_end: FrontEnd::new(config.mel()),
            encoder,
            head,
            rules: config.rules,
            streams: config.streams,
            latency,
            thresholds,
            device: options.device.clone(),
            warm_up: warm_up::noise(SAMPLE_RATE_HZ),
        })
    }

    /// The probabilities of the speakers in rows before the first layer, `[rows, width]` for each recording.
    fn probabilities(&self, rows: Vec<Tensor>) -> Result<Vec<Vec<Row>>, Error> {
        let lengths = rows.iter().map(|rows| rows.dim(0)).collect::<candle_core::Result<Vec<_>>>()?;
        self.head.forward(&self.encoder.forward_rows(rows)?, &lengths)
    }

    /// The probabilities of the speakers in the next piece of each recording.
    fn hear(&self, shares: &mut [&mut Share<'_>]) -> Result<Vec<Vec<Row>>, Error> {
        let mels: Vec<&Mel> = shares.iter().filter_map(|share| Some(&share.piece.as_ref()?.0)).collect();
        if mels.is_empty() {
            return Ok(Vec::new());
        }
        let width = self.encoder.shape().width;
        let rows = self.encoder.rows_before_layers(&mels)?.into_iter();
        let rows = rows.map(|rows| rows.flatten_all()?.to_vec1::<f32>());
        let rows = rows.collect::<candle_core::Result<Vec<_>>>()?;
        let seen = shares.iter().zip(&rows).map(|(share, rows)| {
            let seen = share.session.memory.before(rows);
            let count = seen.len() / width;
            Tensor::from_vec(seen, (count, width), &self.device)
        });
        let seen = self.probabilities(seen.collect::<candle_core::Result<_>>()?)?;
        let told = shares.iter_mut().zip(&rows).zip(&seen).map(|((share, rows), seen)| {
            let Some((_, piece)) = &share.piece else { return Vec::new() };
            share.session.pass(piece);
            let how = (share.latency, &self.rules);
            share.session.memory.take(rows, piece.own.clone(), seen, how)
        });
        Ok(told.collect())
    }

    /// Frames of a recording that are known, and whether they are all.
    fn ready(&self, recording: &Recording) -> (usize, bool) {
        let (samples, is_all) = match &recording.audio {
            Audio::Whole(samples) => (samples.len(), true),
            Audio::Appended(audio) => {
                let Extent { samples, is_finished, .. } = audio.extent();
                (samples, is_finished)
            }
        };
        (self.front_end.ready(samples, is_all), is_all)
    }

    /// The frames of a piece. What the next one does not see of audio that is appended is forgotten.
    fn mel(&self, recording: &Recording, piece: &Piece) -> Result<Mel, Error> {
        let frames = piece.frames.clone();
        let span = self.front_end.span(&frames);
        match &recording.audio {
            Audio::Whole(samples) if self.front_end.is_local() => {
                let span = span.start.min(samples.len())..span.end.min(samples.len());
                Ok(self.front_end.part(&samples[span.clone()], span.start, frames))
            }
            Audio::Whole(samples) => Ok(self.front_end.frames(samples).part(frames)),
            Audio::Appended(audio) => {
                let gone = Error::Internal("the audio of a recording that starts again is gone");
                let needed = self.front_end.span(&(piece.next..piece.next)).start;
                let samples = audio.take(span.clone(), needed).ok_or(gone)?;
                Ok(self.front_end.part(&samples, span.start, frames))
            }
        }
    }

    /// How far a recording that grows can be computed. One position more than its rows ends it.
    fn progress(&self, recording: &Recording, waiting: usize) -> AudioProgress {
        let (frames, is_all) = self.ready(recording);
        let rows = self.encoder.shape().rows(frames);
        let positions = if is_all { rows + 1 } else { recording.latency.told(frames) };
        AudioProgress { positions, waiting }
    }

    fn share<'a>(&self, entry: &'a mut BatchEntry<'_>) -> Result<Share<'a>, Error> {
        let foreign = Error::Internal("an entry was prepared by another family");
        let Some(recording) = entry.prepared.payload.downcast_ref::<Recording>() else { return Err(foreign) };
        let Some(session) = entry.state.downcast_mut::<Session>() else { return Err(foreign) };
        if entry.start == 0 {
            *session = self.session();
        }
        let latency = &recording.latency;
        let (ready, is_all) = self.ready(recording);
        let piece = session.next(ready, is_all, latency);
        let finished = match &recording.audio {
            Audio::Whole(_) => piece.as_ref().is_none_or(|piece| piece.end >= ready),
            Audio::Appended(_) => {
                is_all && entry.start + entry.num_tokens >= self.progress(recording, 0).positions
            }
        };
        let piece = piece.map(|piece| Ok::<_, Error>((self.mel(recording, &piece)?, piece))).transpose()?;
        let is_live = matches!(recording.audio, Audio::Appended(_));
        Ok(Share { session, latency, piece, finished, is_live })
    }

    fn session(&self) -> Session {
        Session::new(self.encoder.shape().width, self.thresholds)
    }

    /// # Errors
    /// There are no such chunks.
    fn prepare_live(&self, chunk_ms: u32, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let known = &self.info.chunks_ms;
        let index = known.iter().position(|&known| known == chunk_ms).ok_or_else(|| {
            let message = format!("chunks of {chunk_ms} ms are none of {known:?} ms; use one of them");
            InputError { param: "chunk_ms", message }
        })?;
        let latency = Latency::LIVE[index];
        let chunk = latency.chunk;
        if chunk > limits.max_tokens_per_step {
            let most = limits.max_tokens_per_step;
            let message = format!("chunks of {chunk_ms} ms are {chunk} tokens, and a step has {most}");
            return Err(InputError { param: "chunk_ms", message });
        }
        let recording = Recording { audio: Audio::Appended(AppendedAudio::new(SAMPLE_RATE_HZ)), latency };
        Ok(Prepared::new(Work::Chunks { chunk, longest: chunk }, Arc::new(recording)))
    }
}

/// A recording by its highest sample, as the reference has it.
fn scaled(samples: &[f32]) -> Arc<[f32]> {
    let peak = samples.iter().copied().fold(f32::NEG_INFINITY, f32::max) + PEAK_GUARD;
    // One whose samples are all negative, beyond the guard, stays as it is.
    if peak > 0.0 && peak.is_finite() {
        samples.iter().map(|sample| sample / peak).collect()
    } else {
        samples.into()
    }
}

fn segment(turn: Turn) -> Segment {
    let Turn { start_s, end_s, speaker } = turn;
    Segment { start_s, end_s, speaker: u32::try_from(speaker).ok(), ..Segment::default() }
}

impl SpeechModel for Sortformer {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let Input::Listen(input) = input else { return Err(InputError::other_task("listens", "input")) };
        input.options.check_taken(&["seed"])?;
        if let Some(chunk_ms) = input.chunk_ms {
            return self.prepare_live(chunk_ms, limits);
        }
        let mut samples = Arc::clone(&input.samples);
        if !self.streams {
            if samples.len() > MAX_WHOLE_S * SAMPLE_RATE_HZ {
                let seconds = samples.len() / SAMPLE_RATE_HZ;
                let message = format!(
                    "the recording has {seconds} s, and this model takes at most {MAX_WHOLE_S} s at once; choose a \
                     streaming model of its kind, or split the recording"
                );
                return Err(InputError { param: "audio", message });
            }
            samples = scaled(&samples);
        }
        let latency = self.latency;
        let recording = Recording { audio: Audio::Whole(samples), latency };
        let rows = self.encoder.shape().rows(self.ready(&recording).0);
        let size = latency.rows(self.rules.spkcache_len).min(limits.max_tokens_per_step);
        let units = vec![size; rows.div_ceil(latency.chunk).max(1)];
        Ok(Prepared::new(Work::Units(units.into()), Arc::new(recording)))
    }

    fn append_audio(
        &self,
        prepared: &Prepared,
        samples: &[f32],
        is_last: bool,
    ) -> Result<AudioProgress, InputError> {
        let recording = prepared.payload.downcast_ref::<Recording>();
        match recording.map(|recording| (recording, &recording.audio)) {
            Some((recording, Audio::Appended(audio))) => {
                Ok(self.progress(recording, audio.append(samples, is_last)?.kept))
            }
            _ => Err(InputError::other_task("takes this recording as a whole", "audio")),
        }
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(self.session())
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let mut shares: Vec<_> = batch.iter_mut().map(|entry| self.share(entry)).collect();
        let mut heard: Vec<_> = shares.iter_mut().flatten().filter(|share| share.piece.is_some()).collect();
        let mut told = self.hear(&mut heard)?.into_iter();
        let outputs = shares.into_iter().map(|share| {
            let Share { session, piece, finished, is_live, .. } = share?;
            if piece.is_some() {
                let missing = Error::Internal("the network has no result for a piece");
                session.turns.push(&told.next().ok_or(missing)?);
            }
            let segments = match is_live {
                true => session.revised(finished),
                false => session.turns.take(finished).into_iter().map(segment).collect(),
            };
            Ok(StepOutput { segments, finished, ..StepOutput::default() })
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        Input::Listen(ListenInput::plain(Arc::clone(&self.warm_up)))
    }
}
