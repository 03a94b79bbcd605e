//! Mimi's encoder without codebooks: the samples of a recording to frames.
//!
//! Knows no language model.

use candle_core::{Device, Result, Tensor};

use super::super::config::MimiConfig;
use super::decoder::{ProjectedTransformer, seanet_shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::seanet::SeanetEncoder;
use izwi_nn::codec::stream::{StreamShape, StreamState, Streams};
use izwi_nn::layers::conv::{Conv1d, Padding};
use izwi_types::Precision;

/// Frames whose samples go through the network at once.
const PIECE_FRAMES: usize = 8;
/// Length of the parts whose loudness is measured, of the fade and of the silence at the end of a recording, in seconds.
const PART_S: f64 = 0.02;
const PAUSE_S: f64 = 0.08;
/// Parts that are so much softer than the loudest one are silence.
const FLOOR_DB: f64 = 35.0;

/// The encoder.
#[derive(Debug)]
pub(in super::super) struct Encoder {
    shape: StreamShape,
    seanet: SeanetEncoder,
    transformer: ProjectedTransformer,
    downsample: Conv1d,
    stride: usize,
    samples_per_frame: usize,
}

impl Encoder {
    /// Takes the encoder under `mimi`; it is f32.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(in super::super) fn load(
        from: &mut Checkpoint,
        config: &MimiConfig,
    ) -> std::result::Result<Self, Error> {
        let mut shape = StreamShape::default();
        let strides = config.seanet.ratios.iter().rev().copied().collect();
        let sizes = seanet_shape(&config.seanet, strides, Precision::F32);
        let seanet = SeanetEncoder::load(from, "mimi.encoder.model", &sizes, &mut shape)?;
        let name = "mimi.encoder_transformer";
        let transformer =
            ProjectedTransformer::load(from, name, &config.transformer, Precision::F32, &mut shape)?;
        let stride = config.rows_per_frame();
        let downsample = [config.inner_dim(), config.seanet.dimension, 2 * stride];
        let downsample = from.take("mimi.downsample.conv.conv.weight", &downsample)?;
        Ok(Self {
            shape,
            seanet,
            transformer,
            downsample: Conv1d::new(&downsample, None, 1)?,
            stride,
            samples_per_frame: config.samples_per_frame(),
        })
    }

    /// Samples, at least one, to frames `[frames, inner]`, the last one filled up with silence. `tap` gets intermediate
    /// results by name.
    ///
    /// # Errors
    /// Out of device memory.
    pub(in super::super) fn forward(
        &self,
        samples: &[f32],
        device: &Device,
        mut tap: impl FnMut(&str, &Tensor),
    ) -> Result<Tensor> {
        let mut padded = samples.to_vec();
        padded.resize(samples.len().next_multiple_of(self.samples_per_frame), 0.0);
        let mut state = StreamState::default();
        let mut pieces = Vec::new();
        for piece in padded.chunks(PIECE_FRAMES * self.samples_per_frame) {
            let mut streams = Streams::new(&self.shape, vec![&mut state], vec![piece.len()], device)?;
            let x = Tensor::from_slice(piece, (piece.len(), 1), device)?;
            let x = self.seanet.forward(&x, &mut streams)?;
            tap("enc.seanet", &x);
            pieces.push(self.transformer.forward(&x, &mut streams)?);
        }
        let x = Tensor::cat(&pieces, 0)?; // [rows, dimension]
        tap("enc.transformer", &x);
        // The first row repeats before the start.
        self.downsample.forward_padded(&x, (Padding::Repeat, [self.stride, 0]), self.stride, None)
    }
}

/// The recording up to its last sound, faded out, and a short silence behind: recordings that end in speech, or in a long
/// silence, are continued so.
pub(in super::super) fn end_on_pause(samples: &[f32], sample_rate: usize) -> Vec<f32> {
    let count = |seconds: f64| (seconds * sample_rate as f64) as usize;
    let part = count(PART_S).max(1);
    let loudness = |part: &[f32]| {
        let power = part.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / part.len() as f64;
        20.0 * (power.sqrt() + 1e-12).log10()
    };
    let parts: Vec<f64> = samples.chunks_exact(part).map(loudness).collect();
    let loudest = parts.iter().copied().fold(f64::MIN, f64::max);
    let Some(last) = parts.iter().rposition(|part| *part > loudest - FLOOR_DB) else {
        return samples.to_vec();
    };
    let end = (last + 1) * part;
    let mut ended = samples[..end].to_vec();
    let fade = part.min(end);
    for (at, sample) in ended[end - fade..].iter_mut().enumerate() {
        *sample *= 1.0 - at as f32 / fade.saturating_sub(1).max(1) as f32;
    }
    ended.resize(end + count(PAUSE_S), 0.0);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_ends_in_a_short_silence_behind_its_last_sound() {
        let mut samples: Vec<f32> = (0..2400).map(|at| (at as f32 * 0.3).sin() * 0.5).collect();
        samples.resize(10_000, 0.0);
        let ended = end_on_pause(&samples, 24_000);
        assert_eq!(ended.len(), 2400 + 1920);
        assert!(ended[..1920] == samples[..1920] && ended[2399..].iter().all(|sample| *sample == 0.0));
        assert_eq!(end_on_pause(&samples[..300], 24_000), samples[..300], "shorter than a part");
        assert_eq!(end_on_pause(&[0.0; 960], 24_000).len(), 960 + 1920, "silence is no softer than itself");
    }
}
