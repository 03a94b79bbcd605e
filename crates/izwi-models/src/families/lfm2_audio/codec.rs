//! Frames to samples, by the codec of a checkpoint: Mimi or the detokenizer.
//!
//! Knows no language model.

use std::path::Path;

use super::detokenizer::{self, Detokenizer};
use crate::families::LoadOptions;
use crate::frame_driver::{CodecInfo, FrameCodec, StreamInput};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mimi::{self, Mimi};

/// The folder of the newer codec.
const DETOKENIZER: &str = "audio_detokenizer";
/// The file of the older one.
const MIMI: &str = "tokenizer-e351c8d8-checkpoint125.safetensors";

/// A checkpoint's codec.
#[derive(Debug)]
pub(super) enum Codec {
    Mimi(Box<Mimi>),
    Detokenizer(Box<Detokenizer>),
}

/// State of one stream of frames.
#[derive(Debug, Clone)]
pub(super) enum DecoderState {
    Mimi(mimi::DecoderState),
    Detokenizer(detokenizer::DecoderState),
}

impl Codec {
    /// Reads the newer codec where the folder has it, else the older.
    ///
    /// # Errors
    /// A file is absent, or its tensors are not those of the codec.
    pub(super) fn load(folder: &Path, codebooks: usize, options: &LoadOptions) -> Result<Self, Error> {
        let newer = folder.join(DETOKENIZER);
        if newer.is_dir() {
            return Ok(Self::Detokenizer(Box::new(Detokenizer::load(&newer, options)?)));
        }
        Ok(Self::Mimi(Box::new(load_mimi(&folder.join(MIMI), codebooks, options)?)))
    }

    /// Samples of one frame.
    pub(super) fn samples_per_frame(&self) -> usize {
        match self {
            Self::Mimi(codec) => codec.samples_per_frame(),
            Self::Detokenizer(codec) => codec.samples_per_frame(),
        }
    }

    /// Rate of the samples, in Hz.
    pub(super) fn sample_rate(&self) -> usize {
        match self {
            Self::Mimi(codec) => codec.sample_rate(),
            Self::Detokenizer(codec) => codec.sample_rate(),
        }
    }

    /// Whether it decodes a frame: one with a control code in any codebook is not audible.
    pub(super) fn is_audible(&self, frame: &[u32]) -> bool {
        let entries = match self {
            Self::Mimi(codec) => codec.codebook_size(),
            Self::Detokenizer(codec) => codec.codebook_size(),
        };
        frame.iter().all(|&code| (code as usize) < entries)
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Mimi(codec) => codec.bytes(),
            Self::Detokenizer(codec) => codec.bytes(),
        }
    }

    /// Bytes of a state once it has seen a frame.
    pub(super) fn state_bytes(&self) -> usize {
        match self {
            Self::Mimi(codec) => codec.state_bytes(),
            Self::Detokenizer(codec) => codec.state_bytes(),
        }
    }

    /// The state of a new stream.
    pub(super) fn start(&self) -> DecoderState {
        match self {
            Self::Mimi(codec) => DecoderState::Mimi(codec.start()),
            Self::Detokenizer(codec) => DecoderState::Detokenizer(codec.start()),
        }
    }
}

impl FrameCodec for Codec {
    /// A code for each codebook.
    type Frame = Vec<u32>;
    type Stream = DecoderState;

    fn info(&self) -> CodecInfo {
        CodecInfo {
            samples_per_frame: self.samples_per_frame(),
            held_back: match self {
                Self::Mimi(_) => 0,
                Self::Detokenizer(codec) => codec.held_back(),
            },
            sample_rate_hz: self.sample_rate(),
            decoder_bytes: self.bytes(),
        }
    }

    fn loop_key(&self, frame: &Vec<u32>) -> Option<u32> {
        Some(frame.first().copied().unwrap_or_default())
    }

    fn decode(&self, batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error> {
        let foreign = Error::Internal("a stream is of another codec");
        match self {
            Self::Mimi(codec) => {
                let batch = batch.iter_mut().map(|(state, frames)| match state {
                    DecoderState::Mimi(state) => Some((state, *frames)),
                    DecoderState::Detokenizer(_) => None,
                });
                codec.decode(&mut batch.collect::<Option<Vec<_>>>().ok_or(foreign)?)
            }
            Self::Detokenizer(codec) => {
                let batch = batch.iter_mut().map(|(state, frames)| match state {
                    DecoderState::Detokenizer(state) => Some((state, *frames)),
                    DecoderState::Mimi(_) => None,
                });
                codec.decode(&mut batch.collect::<Option<Vec<_>>>().ok_or(foreign)?)
            }
        }
    }

    /// The samples a stream holds back; its state is then that of a new one.
    fn finish(&self, state: &mut DecoderState) -> Vec<f32> {
        match (self, state) {
            (Self::Detokenizer(codec), DecoderState::Detokenizer(state)) => codec.finish(state),
            (_, state) => {
                *state = self.start();
                Vec::new()
            }
        }
    }
}

/// Reads Mimi's file, of which the first `codebooks` codebooks are used.
///
/// # Errors
/// The file is absent or its tensors are not those of the codec.
pub(super) fn load_mimi(file: &Path, codebooks: usize, options: &LoadOptions) -> Result<Mimi, Error> {
    let from = Checkpoint::open(file, &options.device)?;
    let config = mimi::Config::of(&from);
    let mut from = options.cached(from, options.precision);
    let codec = Mimi::from_checkpoint(&mut from, codebooks, &config, options.precision)?;
    from.finish()?;
    Ok(codec)
}
