//! Voices: states of the language model that the publisher computed, recordings, and packs of encoded recordings.
//!
//! Knows no text and no request. A state is used as it is: its keys and values are the first positions of a sequence. An
//! encoded recording is rows that the language model reads there.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};

use super::codec::{Encoder, end_on_pause};
use super::config::Config;
use crate::voice_pack::{PackOwner, damaged, refused, unpackable};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::StackShape;
use izwi_nn::layers::{Linear, half_split_of_interleaved};
use izwi_nn::sampling::mix;
use izwi_types::{InputError, VoiceRecording, VoiceReference, excerpt};

/// Name of the family in packs, and of the tensor in them.
const FAMILY: &str = "pocket_tts";
const ROWS: &str = "conditioning";
/// Folder of the published states.
const STATES: &str = "embeddings";
/// The longest state file, and the most positions of a voice.
const MAX_STATE_BYTES: u64 = 1 << 30;
const MAX_POSITIONS: usize = 4096;
/// The most published states in a folder.
const MAX_STATES: usize = 1000;
/// Cached voices: each takes some megabytes.
const MAX_CACHED: usize = 8;
/// The shortest and the longest recording, in seconds.
const MIN_S: f64 = 0.25;
const MAX_S: f64 = 60.0;
/// The voice of a model with random weights, and its positions.
const RANDOM: &str = "random";
const RANDOM_POSITIONS: usize = 125;
/// The voice that the package takes where a request names none.
const FALLBACK: &str = "alba";

/// A voice, as the first positions of a sequence.
#[derive(Debug)]
pub(super) struct Voice {
    content: Content,
    positions: usize,
    /// Stands for the content in keys of positions.
    key: u64,
}

#[derive(Debug)]
enum Content {
    /// Keys, rotated, and values of each layer, `[positions, kv_heads, head_dim]`.
    State(Vec<(Tensor, Tensor)>),
    /// Rows `[positions, width]`.
    Rows(Tensor),
}

impl Voice {
    /// A voice of rows `[positions, width]`.
    fn of_rows(rows: Tensor, key: u64) -> candle_core::Result<Self> {
        Ok(Self { positions: rows.dim(0)?, content: Content::Rows(rows), key })
    }

    /// Positions that it takes.
    pub(super) fn positions(&self) -> usize {
        self.positions
    }

    /// Content key of each position.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        (0..self.positions as u64).map(|at| mix(self.key.wrapping_add(at)))
    }

    /// Keys and values of each layer, `[positions, kv_heads, head_dim]`, where they are known.
    pub(super) fn layers(&self) -> Option<&[(Tensor, Tensor)]> {
        match &self.content {
            Content::State(layers) => Some(layers),
            Content::Rows(_) => None,
        }
    }

    /// Rows `[positions, width]` to compute, where keys and values are not known.
    pub(super) fn rows(&self) -> Option<&Tensor> {
        match &self.content {
            Content::State(_) => None,
            Content::Rows(rows) => Some(rows),
        }
    }
}

/// Where a built-in voice is.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Loaded(Arc<Voice>),
}

/// Encodes recordings.
#[derive(Debug)]
struct Cloner {
    encoder: Encoder,
    projection: Linear,
    sample_rate: usize,
}

/// The voices of a checkpoint.
#[derive(Debug)]
pub(super) struct Voices {
    built_in: Vec<(String, Source)>,
    cloner: Option<Cloner>,
    /// The row before that of a recording, `[1, width]`.
    bos: Option<Tensor>,
    shape: StackShape,
    device: Device,
    fingerprint: String,
    /// The voices used last, by the digest of their source.
    cache: Mutex<VecDeque<([u8; 32], Arc<Voice>)>>,
}

impl Voices {
    /// Takes the voice encoder; the built-in voices are the states in `folder`. `fingerprint` identifies the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the model has no voice and makes none.
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        folder: Option<&Path>,
        mut fingerprint: Sha256,
    ) -> Result<Self, Error> {
        let shape = config.flow_lm.transformer.shape();
        let (width, inner) = (shape.width, config.mimi.inner_dim());
        let bos = if config.flow_lm.insert_bos_before_voice {
            Some(from.take("flow_lm.bos_before_voice", &[1, 1, width])?.reshape((1, width))?)
        } else {
            None
        };
        let projection = from.take("flow_lm.speaker_proj_weight", &[width, inner])?;
        for tensor in std::iter::once(&projection).chain(&bos) {
            let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
            values.iter().for_each(|value| fingerprint.update(value.to_le_bytes()));
        }
        let fingerprint = fingerprint.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let cloner = Cloner {
            encoder: Encoder::load(from, &config.mimi)?,
            projection: Linear::new(&projection, None)?,
            sample_rate: config.mimi.sample_rate,
        };
        let built_in = match folder {
            Some(folder) => {
                let states = states(folder, config).into_iter();
                states.map(|(name, path)| (name, Source::File(path))).collect()
            }
            None => {
                let rows = from.take("voice", &[RANDOM_POSITIONS, width])?;
                let voice = Arc::new(Voice::of_rows(rows, 0)?);
                vec![(RANDOM.to_owned(), Source::Loaded(voice))]
            }
        };
        if built_in.is_empty() && !config.voice_cloning {
            return Err(Error::Checkpoint(format!(
                "there is no voice in {STATES}/, and the model clones none"
            )));
        }
        Ok(Self {
            built_in,
            cloner: config.voice_cloning.then_some(cloner),
            bos,
            shape,
            device: from.device().clone(),
            fingerprint,
            cache: Mutex::default(),
        })
    }

    /// Names of the built-in voices, the default first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.built_in.iter().map(|(name, _)| name.as_str())
    }

    /// Whether recordings can be used as voices.
    pub(super) fn clones(&self) -> bool {
        self.cloner.is_some()
    }

    /// The voice of a request: that of its reference, or the built-in one it names, or the default.
    ///
    /// # Errors
    /// There is none, or it cannot be taken; the error names the field.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
        reference: Option<&VoiceReference>,
    ) -> Result<Arc<Voice>, InputError> {
        match reference {
            Some(VoiceReference::Recording(recording)) => self.of_recording(recording),
            Some(VoiceReference::Pack(pack)) => self.of_pack(pack),
            None => self.of_name(name),
        }
    }

    fn of_name(&self, name: Option<&str>) -> Result<Arc<Voice>, InputError> {
        let wanted = name.map(str::trim).filter(|name| !name.is_empty());
        let found = match wanted {
            Some(wanted) => self.built_in.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)),
            None => self.built_in.first(),
        };
        let Some((name, source)) = found else {
            let message = match wanted {
                Some(wanted) if !self.built_in.is_empty() => {
                    let names: Vec<&str> = self.names().collect();
                    format!("voice '{}' is unknown to this model; use {}", excerpt(wanted), names.join(", "))
                }
                _ => {
                    "this model has no voice of its own; give ref_audio, or a voice that was saved".to_owned()
                }
            };
            return Err(InputError { param: "voice", message });
        };
        match source {
            Source::Loaded(voice) => Ok(Arc::clone(voice)),
            Source::File(path) => self.cached(Sha256::digest(name).into(), |key| {
                read_state(path, &self.shape, &self.device, key).map_err(|error| InputError {
                    param: "voice",
                    message: format!("voice '{name}' cannot be used: {error}; pull the model anew"),
                })
            }),
        }
    }

    /// The voice of a recording, from the cache where possible.
    ///
    /// # Errors
    /// The recording cannot be taken.
    fn of_recording(&self, recording: &VoiceRecording) -> Result<Arc<Voice>, InputError> {
        let mut digest = Sha256::new();
        recording.samples.iter().for_each(|sample| digest.update(sample.to_le_bytes()));
        self.cached(digest.finalize().into(), |key| {
            let rows = self.encode(recording)?;
            self.with_start(rows, key).map_err(unusable)
        })
    }

    /// The voice of a pack.
    ///
    /// # Errors
    /// It is damaged or was made for another checkpoint.
    pub(super) fn of_pack(&self, pack: &[u8]) -> Result<Arc<Voice>, InputError> {
        self.cloner()?;
        self.cached(Sha256::digest(pack).into(), |key| {
            let (tensors, _) = self.owner().open(pack)?;
            let rows = tensors.tensor(ROWS).map_err(damaged)?;
            let is_known = matches!(rows.shape(), [1..=MAX_POSITIONS, width] if *width == self.shape.width);
            if rows.dtype() != Dtype::F32 || !is_known {
                return Err(refused(&format!("holds a voice of shape {:?}", rows.shape())));
            }
            let rows = tensor_of(&rows).and_then(|rows| Ok(rows.to_device(&self.device)?));
            let rows = rows.map_err(|error| refused(&error.to_string()))?;
            self.with_start(rows, key).map_err(unusable)
        })
    }

    /// A safetensors file of the voice of a recording.
    ///
    /// # Errors
    /// The model does not clone voices, or the recording cannot be taken.
    pub(super) fn pack(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        let rows = self.encode(recording)?;
        let values = rows.flatten_all().and_then(|rows| rows.to_vec1::<f32>());
        let values = values.map_err(|error| unusable(error.into()))?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, rows.dims().to_vec(), &bytes).map_err(unpackable)?;
        self.owner().write(vec![(ROWS, view)], None)
    }

    fn owner(&self) -> PackOwner<'_> {
        PackOwner { family: FAMILY, fingerprint: &self.fingerprint }
    }

    fn cloner(&self) -> Result<&Cloner, InputError> {
        self.cloner.as_ref().ok_or_else(|| InputError {
            param: "ref_audio",
            message: "these weights do not speak in the voice of a recording; choose a voice of the model, or a model that does".to_owned(),
        })
    }

    /// A recording as rows `[frames, width]`.
    fn encode(&self, recording: &VoiceRecording) -> Result<Tensor, InputError> {
        let cloner = self.cloner()?;
        let seconds = recording.samples.len() as f64 / cloner.sample_rate as f64;
        if !(MIN_S..=MAX_S).contains(&seconds) {
            let message =
                format!("the recording is {seconds:.2} s long; give {MIN_S} to {MAX_S} s, best 10 to 30 s");
            return Err(InputError { param: "ref_audio", message });
        }
        cloner.encode(&recording.samples, &self.device).map_err(unusable)
    }

    /// The voice of rows `[frames, width]`, after the row that starts every voice.
    fn with_start(&self, rows: Tensor, key: u64) -> Result<Voice, Error> {
        let rows = match &self.bos {
            Some(bos) => Tensor::cat(&[bos, &rows], 0)?,
            None => rows,
        };
        Ok(Voice::of_rows(rows, key)?)
    }

    /// The voice of a source from the cache, or as `make` makes it with the key it gets.
    fn cached(
        &self,
        digest: [u8; 32],
        make: impl FnOnce(u64) -> Result<Voice, InputError>,
    ) -> Result<Arc<Voice>, InputError> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut voices = lock();
            let known = voices.iter().position(|(known, _)| *known == digest);
            if let Some(entry) = known.and_then(|at| voices.remove(at)) {
                let voice = Arc::clone(&entry.1);
                voices.push_front(entry);
                return Ok(voice);
            }
        }
        let key = digest.iter().fold(0, |key, byte| mix(key ^ u64::from(*byte)));
        let voice = Arc::new(make(key)?);
        let mut voices = lock();
        voices.push_front((digest, Arc::clone(&voice)));
        voices.truncate(MAX_CACHED);
        Ok(voice)
    }
}

impl Cloner {
    fn encode(&self, samples: &[f32], device: &Device) -> Result<Tensor, Error> {
        let ended = end_on_pause(samples, self.sample_rate);
        let frames = self.encoder.forward(&ended, device, |_, _| {})?;
        Ok(self.projection.forward(&frames)?)
    }
}

fn unusable(error: Error) -> InputError {
    InputError { param: "ref_audio", message: format!("the voice cannot be used: {error}") }
}

/// The published states of the checkpoint in a folder, by name, the default first.
pub(super) fn states(folder: &Path, config: &Config) -> Vec<(String, PathBuf)> {
    let Ok(files) = std::fs::read_dir(folder.join(STATES)) else { return Vec::new() };
    let paths = files.flatten().map(|file| file.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "safetensors"));
    let named = paths.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)));
    let mut states: Vec<(String, PathBuf)> = named.take(MAX_STATES).collect();
    let default = config.default_voice.as_deref().unwrap_or(FALLBACK);
    states.sort_by(|(a, _), (b, _)| (a != default, a).cmp(&(b != default, b)));
    states
}

/// The state in the file at `path`, as the package exports it: `{layer}.self_attn/cache` `[2, 1, positions, kv_heads,
/// head_dim]`, keys rotated in pairs of neighbours, `/offset`, `/pad`, or `/current_end`, whose length is the offset.
fn read_state(path: &Path, shape: &StackShape, device: &Device, key: u64) -> Result<Voice, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > MAX_STATE_BYTES {
        return Err(fault(format!("has {length} bytes; a voice has at most {MAX_STATE_BYTES}")));
    }
    let file = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&file).map_err(|error| fault(error.to_string()))?;
    let tensors: HashMap<String, TensorView<'_>> = tensors.tensors().into_iter().collect();
    let mut known = 0;
    let mut layers = Vec::with_capacity(shape.layers.len());
    let mut positions = None;
    for index in 0..shape.layers.len() {
        let name = |part: &str| format!("transformer.layers.{index}.self_attn/{part}");
        let part = |part: &str| tensors.get(&name(part));
        known += ["cache", "offset", "pad", "current_end"].iter().filter(|of| part(of).is_some()).count();
        let offset = match (part("offset"), part("current_end")) {
            (Some(offset), _) => {
                integer(offset).ok_or_else(|| fault(format!("{}: no number", name("offset"))))?
            }
            (None, Some(end)) => end.shape().first().copied().unwrap_or(0),
            (None, None) => return Err(fault(format!("{}: missing", name("offset")))),
        };
        if part("pad").is_some_and(|pad| integer(pad) != Some(0)) {
            return Err(fault(format!("{}: padded states are not supported", name("pad"))));
        }
        if *positions.get_or_insert(offset) != offset || !(1..=MAX_POSITIONS).contains(&offset) {
            return Err(fault(format!("{}: {offset} positions", name("offset"))));
        }
        let cache = part("cache").ok_or_else(|| fault(format!("{}: missing", name("cache"))))?;
        let fits = matches!(cache.shape(), [2, 1, held, heads, dim]
            if *held >= offset && *heads == shape.kv_heads && *dim == shape.head_dim);
        if !fits {
            return Err(fault(format!(
                "{}: shape {:?} does not fit the model",
                name("cache"),
                cache.shape()
            )));
        }
        layers.push(layer_state(cache, offset, shape, device)?);
    }
    if known != tensors.len() {
        return Err(fault(format!("has {} tensors more than the model has states", tensors.len() - known)));
    }
    Ok(Voice { content: Content::State(layers), positions: positions.unwrap_or_default(), key })
}

/// Keys and values of the first `positions` of a cache, the keys in the half-split layout of the decoder stack.
fn layer_state(
    cache: &TensorView<'_>,
    positions: usize,
    shape: &StackShape,
    device: &Device,
) -> Result<(Tensor, Tensor), Error> {
    let (heads, dim) = (shape.kv_heads, shape.head_dim);
    let part = |cache: &Tensor, part: usize| cache.get(part)?.get(0)?.narrow(0, 0, positions)?.contiguous();
    let cache = tensor_of_any(cache)?;
    let (keys, values) = (part(&cache, 0)?, part(&cache, 1)?);
    let finite = |x: &Tensor| -> candle_core::Result<bool> {
        Ok(x.flatten_all()?.to_vec1::<f32>()?.iter().all(|value| value.is_finite()))
    };
    if !finite(&keys)? || !finite(&values)? {
        return Err(Error::Checkpoint("a voice holds values that are no numbers".to_owned()));
    }
    let keys = half_split_of_interleaved(&keys.flatten_all()?, dim)?.reshape((positions, heads, dim))?;
    Ok((keys.to_device(device)?, values.to_device(device)?))
}

/// A tensor as f32 on the CPU, all of it numbers.
fn tensor_of(view: &TensorView<'_>) -> Result<Tensor, Error> {
    let tensor = tensor_of_any(view)?;
    let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Error::Checkpoint("holds values that are no numbers".to_owned()));
    }
    Ok(tensor)
}

/// A tensor as f32 on the CPU.
fn tensor_of_any(view: &TensorView<'_>) -> Result<Tensor, Error> {
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(Error::Checkpoint(format!("has a tensor of type {other:?}"))),
    };
    Ok(Tensor::from_raw_buffer(view.data(), dtype, view.shape(), &Device::Cpu)?.to_dtype(DType::F32)?)
}

/// The first of a tensor of 64-bit integers.
fn integer(view: &TensorView<'_>) -> Option<usize> {
    let bytes = view.data().first_chunk::<8>().filter(|_| view.dtype() == Dtype::I64)?;
    usize::try_from(i64::from_le_bytes(*bytes)).ok()
}

/// For tests: results inside.
#[cfg(test)]
impl Voices {
    /// Encodes samples as they are: results of the encoder by name, in pieces; frames `[frames, inner]`; rows.
    pub(super) fn encode_taps(&self, samples: &[f32]) -> (Vec<(String, Tensor)>, Tensor, Tensor) {
        let (cloner, mut taps) = (self.cloner.as_ref().unwrap(), Vec::new());
        let tap = |name: &str, x: &Tensor| taps.push((name.to_owned(), x.clone()));
        let frames = cloner.encoder.forward(samples, &self.device, tap).unwrap();
        let rows = cloner.projection.forward(&frames).unwrap();
        (taps, frames, rows)
    }

    /// The voice of a state file.
    pub(super) fn of_file(&self, path: &Path) -> Result<Voice, Error> {
        read_state(path, &self.shape, &self.device, 1)
    }
}
