//! The codec of `speech_tokenizer/`: 16 codes a frame to samples, in streams of constant memory, and back.
//!
//! Owns reading the folder and splitting work into pieces. Knows no language model.

mod config;
mod decoder;
mod encoder;

use std::path::Path;

use candle_core::{Device, Tensor};

use self::decoder::Decoder;
use self::encoder::Encoder;
use crate::families::LoadOptions;
use crate::frame_driver::{CodecInfo, FrameCodec, StreamInput};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
#[cfg(test)]
use izwi_nn::codec::stream::Streams;
use izwi_nn::codec::stream::{Pieces, StreamState};
use izwi_types::Precision;

pub(crate) use self::config::Config;

/// Frames of one sequence in one pass: their activations at the sample rate fit the caches.
const PIECE_FRAMES: usize = 4;
/// Frames the reference decodes at once, and how many before them it decodes again and drops:
/// the Python package `qwen-tts` 0.1.1 (pip; `chunked_decode`).
#[cfg(test)]
const OFFICIAL_CHUNK: usize = 300;
#[cfg(test)]
const OFFICIAL_CONTEXT: usize = 25;

/// The codec; the encoder is f32.
#[derive(Debug)]
pub(crate) struct Codec {
    config: Config,
    device: Device,
    decoder: Decoder,
    encoder: Encoder,
    weight_bytes: usize,
    decoder_bytes: usize,
}

/// State of one stream of frames; a fresh one holds nothing, any other the same number of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecoderState(StreamState);

impl DecoderState {
    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Codec {
    /// Reads the folder `speech_tokenizer` of a checkpoint; the options' precision is the decoder's, `F32` or `Bf16`.
    ///
    /// # Errors
    /// A file is absent, the configuration lacks a field or asks for what is not computed, or the tensors are not
    /// exactly those it implies.
    pub(crate) fn load(folder: &Path, options: &LoadOptions) -> Result<Self, Error> {
        let config = Config::load(folder)?;
        let from = Checkpoint::open(&folder.join("model.safetensors"), &options.device)?;
        let mut from = options.cached(from, options.precision);
        let codec = Self::from_checkpoint(&mut from, &config, options.precision)?;
        from.finish()?;
        Ok(codec)
    }

    /// Takes `decoder.*` and `encoder.*`, the decoder in `precision`; the caller finishes the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn from_checkpoint(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> Result<Self, Error> {
        let before = from.taken();
        let decoder = Decoder::load(from, "decoder", &config.decoder_config, precision)?;
        let taken = from.taken() - before;
        let [grouped, grouped_bytes] = decoder.grouped();
        // Norms, biases and codebooks stay f32; they are a small part.
        let others = (taken - grouped) * if precision == Precision::Bf16 { 2 } else { 4 };
        let decoder_bytes = others + grouped_bytes;
        let encoder = Encoder::load(from, "encoder", config)?;
        Ok(Self {
            device: from.device().clone(),
            decoder,
            encoder,
            config: config.clone(),
            decoder_bytes,
            weight_bytes: decoder_bytes + (from.taken() - before - taken) * size_of::<f32>(),
        })
    }

    /// Samples of one frame.
    pub(crate) fn samples_per_frame(&self) -> usize {
        self.config.decode_upsample_rate
    }

    /// Rate of the samples it makes, in Hz.
    pub(crate) fn sample_rate(&self) -> usize {
        self.config.output_sample_rate
    }

    /// Rate of the samples it encodes, in Hz.
    pub(crate) fn input_sample_rate(&self) -> usize {
        self.config.input_sample_rate
    }

    /// Codes of a frame.
    pub(crate) fn codebooks(&self) -> usize {
        self.config.decoder_config.num_quantizers
    }

    /// Entries of a codebook: every code is below.
    pub(crate) fn codebook_size(&self) -> usize {
        self.config.decoder_config.codebook_size
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of a state once it has seen a frame.
    pub(crate) fn state_bytes(&self) -> usize {
        self.decoder.shape().bytes()
    }

    /// The state of a new stream.
    pub(crate) fn start(&self) -> DecoderState {
        DecoderState::default()
    }

    /// Frames to samples as the reference computes them: chunks of 300 frames, each after 25 that it decodes again. Equal
    /// to [`FrameCodec::decode`] up to frame 300 and different after it, because 25 frames are less than the receptive field.
    ///
    /// # Errors
    /// As [`FrameCodec::decode`].
    #[cfg(test)]
    pub(crate) fn decode_official(&self, frames: &[Vec<u32>]) -> Result<Vec<f32>, Error> {
        let mut samples = Vec::with_capacity(frames.len() * self.samples_per_frame());
        for start in (0..frames.len()).step_by(OFFICIAL_CHUNK) {
            let end = frames.len().min(start + OFFICIAL_CHUNK);
            let context = start.min(OFFICIAL_CONTEXT);
            let mut state = self.start();
            let chunk = self.decode(&mut [(&mut state, &frames[start - context..end])])?;
            samples.extend_from_slice(&chunk[0][context * self.samples_per_frame()..]);
        }
        Ok(samples)
    }

    /// Samples at [`Self::input_sample_rate`] to frames of codes, the last frame filled up with silence.
    ///
    /// # Errors
    /// Out of device memory.
    pub(crate) fn encode(&self, samples: &[f32]) -> Result<Vec<Vec<u32>>, Error> {
        self.encode_tapped(samples, |_, _| {})
    }

    /// As [`Self::encode`]; `tap` gets intermediate results by name.
    fn encode_tapped(
        &self,
        samples: &[f32],
        tap: impl FnMut(String, &Tensor),
    ) -> Result<Vec<Vec<u32>>, Error> {
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.encoder.forward(samples, &self.device, tap)?)
    }
}

impl FrameCodec for Codec {
    /// A code for each codebook.
    type Frame = Vec<u32>;
    type Stream = DecoderState;

    fn info(&self) -> CodecInfo {
        CodecInfo {
            samples_per_frame: self.samples_per_frame(),
            held_back: 0,
            sample_rate_hz: self.sample_rate(),
            decoder_bytes: self.decoder_bytes,
        }
    }

    fn loop_key(&self, frame: &Vec<u32>) -> Option<u32> {
        Some(frame.first().copied().unwrap_or_default())
    }

    /// As the trait says; on the CPU a stream's samples are the same bits alone, among others, and however its frames are
    /// split.
    fn decode(&self, batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error> {
        let pieces = Pieces { shape: self.decoder.shape(), device: &self.device, frames: PIECE_FRAMES };
        let mut batch: Vec<_> = batch.iter_mut().map(|(state, frames)| (&mut state.0, *frames)).collect();
        Ok(pieces.run(&mut batch, |frames, streams| self.decoder.forward(frames, streams))?)
    }

    /// No samples: the decoder holds none back.
    fn finish(&self, _state: &mut DecoderState) -> Vec<f32> {
        Vec::new()
    }
}

/// For tests: intermediate results of the networks.
#[cfg(test)]
impl Codec {
    /// Decodes a fresh stream in one piece and answers every intermediate result.
    pub(super) fn decode_taps(&self, frames: &[Vec<u32>]) -> Vec<(String, Tensor)> {
        let mut state = self.start();
        let mut streams =
            Streams::new(self.decoder.shape(), vec![&mut state.0], vec![frames.len()], &self.device).unwrap();
        streams.record();
        self.decoder.forward(&frames.iter().collect::<Vec<_>>(), &mut streams).unwrap();
        streams.take_taps()
    }

    /// Encodes and answers every intermediate result with the codes.
    pub(super) fn encode_taps(&self, samples: &[f32]) -> (Vec<Vec<u32>>, Vec<(String, Tensor)>) {
        let mut taps = Vec::new();
        let codes = self.encode_tapped(samples, |name, x| taps.push((name, x.clone()))).unwrap();
        (codes, taps)
    }
}
