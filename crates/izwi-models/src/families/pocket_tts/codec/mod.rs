//! The codec: latents to samples, in streams of constant memory.
//!
//! Owns the scale of latents, splitting work into pieces and the fade at the start of a stream. Knows no language model.

mod decoder;
mod encoder;

use std::sync::Arc;

use candle_core::{Device, Tensor};

use self::decoder::Decoder;
pub(super) use self::encoder::{Encoder, end_on_pause};
use super::config::Config;
use crate::frame_driver::{CodecInfo, FrameCodec, StreamInput};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::stream::{Pieces, StreamState, Streams};
use izwi_types::Precision;

/// Frames of one sequence in one pass: their activations at the full rate fit the caches.
const PIECE_FRAMES: usize = 4;
/// The part of a second over which a stream fades in: a fresh decoder starts with a small step.
const FADE_RATE_HZ: usize = 200;

/// A latent in the language model's space.
pub(super) type Latent = Arc<[f32]>;

/// The decoder of latents.
#[derive(Debug)]
pub(super) struct Codec {
    decoder: Decoder,
    device: Device,
    /// From the language model's space: `latent * deviation + mean`.
    mean: Vec<f32>,
    deviation: Vec<f32>,
    samples_per_frame: usize,
    sample_rate: usize,
    weight_bytes: usize,
}

/// State of one stream of latents; a fresh one holds nothing, any other the same number of bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Stream {
    state: StreamState,
    has_started: bool,
}

impl Stream {
    /// Bytes held.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes()
    }
}

impl Codec {
    /// Takes the decoder under `mimi` and the scale of latents under `flow_lm`. Layers that mix channels are kept and
    /// multiplied in `precision`, `F32` or `Bf16`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        let before = from.taken();
        let decoder = Decoder::load(from, &config.mimi, precision)?;
        let bytes = if precision == Precision::Bf16 { 2 } else { size_of::<f32>() };
        let weight_bytes = (from.taken() - before) * bytes;
        let latent = config.mimi.quantizer.dimension;
        let mut statistic = |name: &str| -> Result<Vec<f32>, Error> {
            Ok(from.take(&format!("flow_lm.{name}"), &[latent])?.to_vec1()?)
        };
        let (mean, deviation) = (statistic("emb_mean")?, statistic("emb_std")?);
        Ok(Self {
            decoder,
            device: from.device().clone(),
            mean,
            deviation,
            samples_per_frame: config.mimi.samples_per_frame(),
            sample_rate: config.mimi.sample_rate,
            weight_bytes,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of a state once it has seen a frame.
    pub(super) fn state_bytes(&self) -> usize {
        self.decoder.shape().bytes()
    }

    /// Rate of the samples, in Hz.
    pub(super) fn sample_rate(&self) -> usize {
        self.sample_rate
    }

    /// Latents in the language model's space to rows of the decoder's space.
    fn scaled(&self, frames: &[&Latent]) -> candle_core::Result<Tensor> {
        let width = self.mean.len();
        if let Some(frame) = frames.iter().find(|frame| frame.len() != width) {
            candle_core::bail!("codec: a latent of {} values, not {width}", frame.len())
        }
        let scale = |frame: &Latent| -> Vec<f32> {
            let scaled = frame.iter().zip(&self.deviation).zip(&self.mean);
            scaled.map(|((value, deviation), mean)| value * deviation + mean).collect()
        };
        let values: Vec<f32> = frames.iter().flat_map(|frame| scale(frame)).collect();
        Tensor::from_vec(values, (frames.len(), width), &self.device)
    }

    /// The samples of a fresh stream's first `rows` that are faded in.
    fn fade_in(&self, samples: &mut [f32]) {
        let length = self.sample_rate / FADE_RATE_HZ;
        let last = length.saturating_sub(1).max(1) as f32;
        for (at, sample) in samples.iter_mut().take(length).enumerate() {
            *sample *= at as f32 / last;
        }
    }

    /// Decodes rows of the decoder's space `[frames, latent]` as a fresh stream, in pieces of `piece` frames, without the
    /// fade; `tap` gets the intermediate results of each piece by name.
    #[cfg(test)]
    pub(super) fn decode_rows(
        &self,
        rows: &Tensor,
        piece: usize,
        mut tap: impl FnMut(String, Tensor),
    ) -> Vec<f32> {
        let (mut state, mut samples) = (StreamState::default(), Vec::new());
        let frames = rows.dim(0).unwrap();
        for start in (0..frames).step_by(piece) {
            let count = piece.min(frames - start);
            let part = rows.narrow(0, start, count).unwrap().contiguous().unwrap();
            let mut streams =
                Streams::new(self.decoder.shape(), vec![&mut state], vec![count], &self.device).unwrap();
            streams.record();
            let y = self.decoder.forward(&part, &mut streams).unwrap();
            streams.take_taps().into_iter().for_each(|(name, x)| tap(name, x));
            samples.extend(y.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
        samples
    }
}

impl FrameCodec for Codec {
    type Frame = Latent;
    type Stream = Stream;

    fn info(&self) -> CodecInfo {
        CodecInfo {
            samples_per_frame: self.samples_per_frame,
            held_back: 0,
            sample_rate_hz: self.sample_rate,
            decoder_bytes: self.weight_bytes,
        }
    }

    fn loop_key(&self, _frame: &Latent) -> Option<u32> {
        None
    }

    /// As the trait says; on the CPU a stream's samples are the same bits alone, among others, and however its frames are
    /// split.
    fn decode(&self, batch: &mut [StreamInput<'_, Self>]) -> Result<Vec<Vec<f32>>, Error> {
        let pieces = Pieces { shape: self.decoder.shape(), device: &self.device, frames: PIECE_FRAMES };
        let forward = |frames: &[&Latent], streams: &mut Streams<'_>| {
            self.decoder.forward(&self.scaled(frames)?, streams)
        };
        let mut states: Vec<_> =
            batch.iter_mut().map(|(stream, frames)| (&mut stream.state, *frames)).collect();
        let mut decoded = pieces.run(&mut states, forward)?;
        for ((stream, frames), samples) in batch.iter_mut().zip(&mut decoded) {
            if !stream.has_started && !frames.is_empty() {
                self.fade_in(samples);
                stream.has_started = true;
            }
        }
        Ok(decoded)
    }

    /// No samples: the decoder holds none back.
    fn finish(&self, _stream: &mut Stream) -> Vec<f32> {
        Vec::new()
    }
}
