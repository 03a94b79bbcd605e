//! Voices cloned from recordings: encoded once, cached by content, and packed into files.
//!
//! Knows no request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};

use super::codec::{Codec, DecoderState};
use super::prompt::{Frame, ReferenceSpeech};
use super::speaker::SpeakerEncoder;
use super::tokens::Vocabulary;
use crate::frame_driver::FrameCodec;
use crate::voice_pack::{PackOwner, damaged, refused, unpackable};
use izwi_nn::Error;
use izwi_types::{InputError, VoiceRecording};

/// Name of the family in packs.
const FAMILY: &str = "qwen3_tts";
const SPEAKER: &str = "speaker";
const CODES: &str = "codes";
/// Cached voices: a second of recording takes a few kilobytes, a primed decoder some megabytes.
const MAX_CACHED: usize = 16;
/// The shortest recording, in seconds.
const MIN_S: f64 = 0.25;

/// A voice of a recording, encoded.
#[derive(Debug)]
pub(super) struct ClonedVoice {
    pub(super) speaker: Arc<[f32]>,
    /// Text and frames of the recording, where the generated speech continues it.
    pub(super) reference: Option<Arc<ReferenceSpeech>>,
    text: Option<String>,
    /// The decoder state after the recording's frames, so that generated speech continues their sound.
    primed: OnceLock<DecoderState>,
}

/// Makes voices from recordings and packs.
#[derive(Debug)]
pub(super) struct VoiceCloner {
    pub(super) encoder: SpeakerEncoder,
    /// Identifies the checkpoint in packs.
    pub(super) fingerprint: String,
    pub(super) width: usize,
    pub(super) cache: VoiceCache,
}

/// The voices used last, by the digest of their recording or pack.
#[derive(Debug, Default)]
pub(super) struct VoiceCache(Mutex<VecDeque<([u8; 32], Arc<ClonedVoice>)>>);

impl VoiceCache {
    fn get(&self, digest: &[u8; 32]) -> Option<Arc<ClonedVoice>> {
        let mut voices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = voices.iter().position(|(known, _)| known == digest)?;
        let entry = voices.remove(at)?;
        let voice = Arc::clone(&entry.1);
        voices.push_front(entry);
        Some(voice)
    }

    fn put(&self, digest: [u8; 32], voice: &Arc<ClonedVoice>) {
        let mut voices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        voices.push_front((digest, Arc::clone(voice)));
        voices.truncate(MAX_CACHED);
    }
}

impl VoiceCloner {
    fn owner(&self) -> PackOwner<'_> {
        PackOwner { family: FAMILY, fingerprint: &self.fingerprint }
    }

    /// The voice of a recording, from the cache where possible.
    ///
    /// # Errors
    /// The recording cannot be taken.
    pub(super) fn encode_recording(
        &self,
        recording: &VoiceRecording,
        codec: &Codec,
        vocabulary: &Vocabulary,
    ) -> Result<Arc<ClonedVoice>, InputError> {
        let text = recording.text.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let text = text.filter(|_| !recording.timbre_only);
        let mut digest = Sha256::new();
        recording.samples.iter().for_each(|sample| digest.update(sample.to_le_bytes()));
        digest.update([u8::from(text.is_some())]);
        digest.update(text.unwrap_or_default());
        let digest: [u8; 32] = digest.finalize().into();
        if let Some(voice) = self.cache.get(&digest) {
            return Ok(voice);
        }
        let seconds = recording.samples.len() as f64 / codec.input_sample_rate() as f64;
        if seconds < MIN_S {
            let message =
                format!("the recording is {seconds:.2} s long; give {MIN_S} s at least, better 3 to 15 s");
            return Err(InputError { param: "ref_audio", message });
        }
        let failed = |error: Error| InputError {
            param: "ref_audio",
            message: format!("the recording cannot be taken: {error}"),
        };
        let speaker = self.encoder.embed(&recording.samples).map_err(failed)?;
        let frames = match text {
            Some(_) => codec.encode(&recording.samples).map_err(failed)?,
            None => Vec::new(),
        };
        let voice = assemble(speaker.into(), text, frames, vocabulary)?;
        let voice = Arc::new(voice);
        self.cache.put(digest, &voice);
        Ok(voice)
    }

    /// A safetensors file of the voice.
    ///
    /// # Errors
    /// The recording cannot be taken.
    pub(super) fn pack(&self, voice: &ClonedVoice) -> Result<Vec<u8>, InputError> {
        let bytes: Vec<u8> = voice.speaker.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![voice.speaker.len()], &bytes).map_err(unpackable)?;
        let mut tensors = vec![(SPEAKER, view)];
        let frames = voice.reference.iter().flat_map(|reference| &reference.frames);
        let codes: Vec<u8> =
            frames.flat_map(|frame| frame.iter()).flat_map(|code| code.to_le_bytes()).collect();
        if let Some(reference) = &voice.reference {
            let codebooks = reference.frames.first().map_or(0, |frame| frame.len());
            let shape = vec![reference.frames.len(), codebooks];
            tensors.push((CODES, TensorView::new(Dtype::U32, shape, &codes).map_err(unpackable)?));
        }
        self.owner().write(tensors, voice.text.as_deref())
    }

    /// The voice of a pack.
    ///
    /// # Errors
    /// It is damaged or was made for another checkpoint.
    pub(super) fn load_pack(
        &self,
        pack: &[u8],
        codec: &Codec,
        vocabulary: &Vocabulary,
    ) -> Result<Arc<ClonedVoice>, InputError> {
        let digest: [u8; 32] = Sha256::digest(pack).into();
        if let Some(voice) = self.cache.get(&digest) {
            return Ok(voice);
        }
        let (tensors, metadata) = self.owner().open(pack)?;
        let speaker = tensors.tensor(SPEAKER).map_err(damaged)?;
        if speaker.dtype() != Dtype::F32 || speaker.shape() != [self.width] {
            return Err(refused(&format!("holds a speaker of shape {:?}", speaker.shape())));
        }
        let speaker: Vec<f32> =
            speaker.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let frames = match tensors.tensor(CODES) {
            Ok(codes) => unpack_codes(&codes, codec).map_err(|why| refused(&why))?,
            Err(_) => Vec::new(),
        };
        if speaker.iter().any(|value| !value.is_finite()) {
            return Err(refused("holds values that are no numbers"));
        }
        let text = metadata.get("text").map(String::as_str).filter(|_| !frames.is_empty());
        let voice = Arc::new(assemble(speaker.into(), text, frames, vocabulary)?);
        self.cache.put(digest, &voice);
        Ok(voice)
    }
}

fn unpack_codes(codes: &TensorView<'_>, codec: &Codec) -> Result<Vec<Vec<u32>>, String> {
    let codebooks = codec.codebooks();
    let fits = codes.dtype() == Dtype::U32 && codes.shape().len() == 2 && codes.shape()[1] == codebooks;
    if !fits {
        return Err(format!("holds codes of shape {:?}", codes.shape()));
    }
    let codes: Vec<u32> = codes.data().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    match codes.iter().find(|&&code| code as usize >= codec.codebook_size()) {
        Some(code) => Err(format!("holds the code {code}")),
        None => Ok(codes.chunks_exact(codebooks).map(<[u32]>::to_vec).collect()),
    }
}

fn assemble(
    speaker: Arc<[f32]>,
    text: Option<&str>,
    frames: Vec<Vec<u32>>,
    vocabulary: &Vocabulary,
) -> Result<ClonedVoice, InputError> {
    let text = text.filter(|_| !frames.is_empty());
    let reference = match text {
        Some(text) => {
            let body = vocabulary.tokenize_reference(text).ok_or_else(|| InputError {
                param: "ref_text",
                message: "the text of the recording cannot be tokenised; leave it out".to_owned(),
            })?;
            let frames = frames.into_iter().map(Frame::from).collect();
            Some(Arc::new(ReferenceSpeech { body, frames }))
        }
        None => None,
    };
    Ok(ClonedVoice { speaker, reference, text: text.map(str::to_owned), primed: OnceLock::new() })
}

impl ClonedVoice {
    /// The decoder state of a stream that continues the recording; a fresh one without a reference text.
    ///
    /// # Errors
    /// The codec does not take the recording's frames.
    pub(super) fn decoder(&self, codec: &Codec) -> Result<DecoderState, Error> {
        let Some(reference) = &self.reference else { return Ok(codec.start()) };
        if let Some(primed) = self.primed.get() {
            return Ok(primed.clone());
        }
        let frames: Vec<Vec<u32>> = reference.frames.iter().map(|frame| frame.to_vec()).collect();
        let mut state = codec.start();
        codec.decode(&mut [(&mut state, &frames)])?;
        Ok(self.primed.get_or_init(|| state).clone())
    }
}
