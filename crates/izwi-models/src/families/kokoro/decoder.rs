//! Sounds, pitch, energy and a style to the features that the generator starts from. Knows no samples.

use candle_core::{Result, Tensor};

use super::config::Config;
use super::prosody::Contour;
use super::style::{AdaInBlock, ConvPrecision};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::PackedRows;
use izwi_nn::layers::conv::{Conv1dShape, SameConv};
use izwi_nn::yielding::yield_point;

/// Blocks after the first; the last doubles the rows.
const BLOCKS: usize = 4;

/// The decoder.
#[derive(Debug)]
pub(super) struct Decoder {
    pitch: Halving,
    energy: Halving,
    text: SameConv,
    encode: AdaInBlock,
    blocks: Vec<AdaInBlock>,
}

impl Decoder {
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: ConvPrecision,
    ) -> std::result::Result<Self, Error> {
        let (width, hidden) = (config.decoder_dim, config.hidden_dim);
        let inner = width + config.asr_res_dim + 2;
        let sizes = [1, hidden, config.asr_res_dim];
        let shape = Conv1dShape { sizes, dilation: 1, precision: precision.plain };
        let mut blocks = Vec::with_capacity(BLOCKS);
        for at in 0..BLOCKS {
            let is_last = at + 1 == BLOCKS;
            let outputs = if is_last { config.istftnet.channels(0) } else { width };
            let name = format!("decoder.decode.{at}");
            blocks.push(AdaInBlock::load(from, &name, [inner, outputs], is_last, precision)?);
        }
        Ok(Self {
            pitch: Halving::load(from, "decoder.F0_conv")?,
            energy: Halving::load(from, "decoder.N_conv")?,
            text: SameConv::load(from, "decoder.asr_res.0", shape, true)?,
            encode: AdaInBlock::load(from, "decoder.encode", [hidden + 2, width], false, precision)?,
            blocks,
        })
    }

    /// Sounds of each frame `[rows of coarse, hidden_dim]` to `[rows of fine, channels]`, gaps zero; `fine` has two rows for
    /// each of `coarse`.
    pub(super) fn forward(
        &self,
        sounds: &Tensor,
        contours: &[Contour],
        [coarse, fine]: [&PackedRows; 2],
        style: &Tensor,
    ) -> Result<Tensor> {
        let halved: Vec<[Vec<f32>; 2]> = contours
            .iter()
            .map(|contour| [self.pitch.forward(&contour.pitch_hz), self.energy.forward(&contour.energy)])
            .collect();
        let prosody = coarse.fill(|sequence, frame| halved[sequence].each_ref().map(|curve| curve[frame]));
        let prosody = Tensor::from_vec(prosody.into_flattened(), (coarse.rows(), 2), sounds.device())?;
        let x = Tensor::cat(&[sounds, &prosody], 1)?;
        let mut x = self.encode.forward(&x, coarse, coarse, style)?;
        let again = self.text.forward(sounds)?;
        for (at, block) in self.blocks.iter().enumerate() {
            yield_point();
            let joined = Tensor::cat(&[&x, &again, &prosody], 1)?;
            let target = if at + 1 == BLOCKS { fine } else { coarse };
            x = block.forward(&joined, coarse, target, style)?;
        }
        fine.clear_gaps(&x)
    }
}

/// A convolution of one channel with 3 taps that keeps every second value.
#[derive(Debug)]
struct Halving {
    taps: Vec<f32>,
    bias: f32,
}

impl Halving {
    fn load(from: &mut Checkpoint, name: &str) -> std::result::Result<Self, Error> {
        let taps = from.take(&format!("{name}.weight"), &[1, 1, 3])?.flatten_all()?.to_vec1()?;
        let bias = from.take(&format!("{name}.bias"), &[1])?.get(0)?.to_scalar()?;
        Ok(Self { taps, bias })
    }

    fn forward(&self, x: &[f32]) -> Vec<f32> {
        let at = |at: Option<usize>| at.and_then(|at| x.get(at)).copied().unwrap_or(0.0);
        let value = |from: usize| {
            let around = [at(from.checked_sub(1)), at(Some(from)), at(Some(from + 1))];
            self.bias + self.taps.iter().zip(around).map(|(tap, x)| tap * x).sum::<f32>()
        };
        (0..x.len()).step_by(2).map(value).collect()
    }
}
