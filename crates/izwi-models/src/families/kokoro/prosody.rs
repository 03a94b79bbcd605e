//! Features of phonemes and a style to durations, pitch and energy. Knows neither sounds nor samples.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::config::{Config, STYLE};
use super::style::{AdaInBlock, AdaLayerNorm, ConvPrecision};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::{Conv1dShape, SameConv};
use izwi_nn::layers::{BiLstm, Linear, PackedRows};
use izwi_types::Precision;

/// Pitch and energy of one sequence, two values for each frame of a duration.
#[derive(Debug, Clone)]
pub(super) struct Contour {
    /// In Hz; low or negative means unvoiced.
    pub(super) pitch_hz: Vec<f32>,
    pub(super) energy: Vec<f32>,
}

/// The predictors. Their weights stay exact: a rounded duration would move all that follows.
#[derive(Debug)]
pub(super) struct Prosody {
    encoder: Vec<(BiLstm, AdaLayerNorm)>,
    lstm: BiLstm,
    duration: Linear,
    shared: BiLstm,
    pitch: Curve,
    energy: Curve,
}

impl Prosody {
    pub(super) fn load(from: &mut Checkpoint, config: &Config) -> std::result::Result<Self, Error> {
        let width = config.hidden_dim;
        let (sizes, precision) = ((width + STYLE, width / 2), Precision::F32);
        let mut encoder = Vec::with_capacity(config.n_layer);
        for layer in 0..config.n_layer {
            let name = |part: usize| format!("predictor.text_encoder.lstms.{part}");
            let lstm = BiLstm::load(from, &name(2 * layer), 0, sizes, precision)?;
            encoder.push((lstm, AdaLayerNorm::load(from, &name(2 * layer + 1), width)?));
        }
        let duration = "predictor.duration_proj.linear_layer";
        Ok(Self {
            encoder,
            lstm: BiLstm::load(from, "predictor.lstm", 0, sizes, precision)?,
            duration: Linear::load(from, duration, width, config.max_dur)?,
            shared: BiLstm::load(from, "predictor.shared", 0, sizes, precision)?,
            pitch: Curve::load(from, "F0", width)?,
            energy: Curve::load(from, "N", width)?,
        })
    }

    /// Features `[rows, hidden_dim]` and styles `[sequences, STYLE]` to `[rows, hidden_dim + STYLE]`, gaps zero.
    pub(super) fn features(&self, x: &Tensor, packed: &PackedRows, style: &Tensor) -> Result<Tensor> {
        let styles = packed.gather(style, packed.fill(|sequence, _| sequence as u32))?;
        let mut x = Tensor::cat(&[x, &styles], 1)?;
        for (lstm, norm) in &self.encoder {
            let hidden = norm.forward(&lstm.forward(&x, packed)?, packed, style)?;
            x = Tensor::cat(&[&hidden, &styles], 1)?;
        }
        Ok(x)
    }

    /// Frames of each phoneme of each sequence at normal speed, not yet whole.
    pub(super) fn durations(&self, features: &Tensor, packed: &PackedRows) -> Result<Vec<Vec<f32>>> {
        let x = self.lstm.forward(features, packed)?;
        let frames = candle_nn::ops::sigmoid(&self.duration.forward(&x)?)?.sum(1)?.to_vec1::<f32>()?;
        Ok(packed.spans().iter().map(|span| frames[span.clone()].to_vec()).collect())
    }

    /// Features of each frame `[rows of coarse, hidden_dim + STYLE]` to contours; `fine` has two rows for each of `coarse`.
    pub(super) fn contours(
        &self,
        features: &Tensor,
        [coarse, fine]: [&PackedRows; 2],
        style: &Tensor,
    ) -> Result<Vec<Contour>> {
        let x = self.shared.forward(features, coarse)?;
        let pitch = self.pitch.forward(&x, [coarse, fine], style)?;
        let energy = self.energy.forward(&x, [coarse, fine], style)?;
        let contour = |span: &Range<usize>| Contour {
            pitch_hz: pitch[span.clone()].to_vec(),
            energy: energy[span.clone()].to_vec(),
        };
        Ok(fine.spans().iter().map(contour).collect())
    }
}

/// Three blocks, of which the second doubles the rows, and a projection to one value.
#[derive(Debug)]
struct Curve {
    blocks: [AdaInBlock; 3],
    out: SameConv,
}

impl Curve {
    fn load(from: &mut Checkpoint, name: &str, width: usize) -> std::result::Result<Self, Error> {
        let half = width / 2;
        let exact = ConvPrecision { normed: Precision::F32, plain: Precision::F32 };
        let mut block = |at: usize, sizes: [usize; 2]| {
            AdaInBlock::load(from, &format!("predictor.{name}.{at}"), sizes, at == 1, exact)
        };
        let blocks = [block(0, [width, width])?, block(1, [width, half])?, block(2, [half, half])?];
        let shape = Conv1dShape { sizes: [1, half, 1], dilation: 1, precision: Precision::F32 };
        Ok(Self { blocks, out: SameConv::load(from, &format!("predictor.{name}_proj"), shape, true)? })
    }

    fn forward(&self, x: &Tensor, [coarse, fine]: [&PackedRows; 2], style: &Tensor) -> Result<Vec<f32>> {
        let [first, second, third] = &self.blocks;
        let x = first.forward(x, coarse, coarse, style)?;
        let x = second.forward(&x, coarse, fine, style)?;
        let x = third.forward(&x, fine, fine, style)?;
        self.out.forward(&x)?.flatten_all()?.to_vec1()
    }
}
