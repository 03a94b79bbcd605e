//! The SEANet encoder and decoder: samples to rows and back, by causal convolutions and residual units.
//! <https://arxiv.org/abs/2009.02095>.

use candle_core::{Result, Tensor};

use super::conv::{CausalConv, CausalTransposedConv, Kernel};
use super::stream::{StreamShape, Streams};
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::Activation::Elu;
use crate::yielding::yield_point;
use izwi_types::Precision;

/// Sizes of an encoder, or of a decoder, which is the encoder in reverse.
#[derive(Debug, Clone)]
pub struct SeanetShape {
    /// Channels at the samples' rate; each stage of the encoder doubles them.
    pub filters: usize,
    /// Stride of each stage, in the order of the encoder's, or of the decoder's, forward pass.
    pub strides: Vec<usize>,
    /// Taps of the first convolution.
    pub kernel: usize,
    /// Taps of the last.
    pub last_kernel: usize,
    /// Taps of the first convolution of a residual unit.
    pub residual_kernel: usize,
    /// Residual units of a stage.
    pub residual_units: usize,
    /// Growth of the dilation from unit to unit.
    pub dilation_growth: usize,
    /// Factor by which a residual unit reduces its channels.
    pub compress: usize,
    /// Channels of the rows.
    pub width: usize,
    /// Name parts between a module's number and `.weight`: of convolutions and of transposed ones.
    pub names: [&'static str; 2],
    /// As [`Kernel::precision`].
    pub precision: Precision,
}

impl SeanetShape {
    fn kernel(&self, inputs: usize, outputs: usize, taps: usize) -> Kernel {
        Kernel { precision: self.precision, ..Kernel::new(inputs, outputs, taps) }
    }
}

/// Residual unit: two convolutions, each after an activation.
#[derive(Debug, Clone)]
struct Unit {
    conv1: CausalConv,
    conv2: CausalConv,
}

impl Unit {
    /// The `unit`-th of a stage: takes `{name}.block.{1,3}.{conv}.*`.
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (unit, channels): (usize, usize),
        shape: &SeanetShape,
        streams: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let inner = channels / shape.compress.max(1);
        let dilation = shape.dilation_growth.pow(unit as u32);
        let conv1 = Kernel { dilation, ..shape.kernel(channels, inner, shape.residual_kernel) };
        let conv2 = shape.kernel(inner, channels, 1);
        let conv = shape.names[0];
        Ok(Self {
            conv1: CausalConv::load(from, &format!("{name}.block.1.{conv}"), conv1, streams)?,
            conv2: CausalConv::load(from, &format!("{name}.block.3.{conv}"), conv2, streams)?,
        })
    }

    /// `x` and the same activated to the sum and the same activated.
    fn forward(&self, pair: (Tensor, Tensor), streams: &mut Streams<'_>) -> Result<(Tensor, Tensor)> {
        let (x, activated) = pair;
        let change = self.conv1.forward_activated(&activated, None, Elu, streams)?;
        self.conv2.forward_pair(&change, Some(&x), Elu, streams)
    }
}

/// The encoder; samples per output row are the product of the strides.
#[derive(Debug, Clone)]
pub struct SeanetEncoder {
    first: CausalConv,
    stages: Vec<Stage>,
    last: CausalConv,
}

#[derive(Debug, Clone)]
struct Stage {
    units: Vec<Unit>,
    down: CausalConv,
}

impl SeanetEncoder {
    /// Takes `{prefix}.{i}.{conv}.*` and `{prefix}.{i}.block.{1,3}.{conv}.*` as Mimi numbers them: activations count as
    /// layers.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: &SeanetShape,
        streams: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let conv = shape.names[0];
        let first = shape.kernel(1, shape.filters, shape.kernel);
        let first = CausalConv::load(from, &format!("{prefix}.0.{conv}"), first, streams)?;
        let mut stages = Vec::with_capacity(shape.strides.len());
        let (mut channels, mut index) = (shape.filters, 1);
        for &stride in &shape.strides {
            let mut units = Vec::with_capacity(shape.residual_units);
            for unit in 0..shape.residual_units {
                units.push(Unit::load(from, &format!("{prefix}.{index}"), (unit, channels), shape, streams)?);
                index += 1;
            }
            let down = Kernel { stride, ..shape.kernel(channels, 2 * channels, 2 * stride) };
            let down = CausalConv::load(from, &format!("{prefix}.{}.{conv}", index + 1), down, streams)?;
            stages.push(Stage { units, down });
            channels *= 2;
            index += 2;
        }
        let last = shape.kernel(channels, shape.width, shape.last_kernel);
        let last = CausalConv::load(from, &format!("{prefix}.{}.{conv}", index + 1), last, streams)?;
        Ok(Self { first, stages, last })
    }

    /// New samples `[samples, 1]` to rows `[samples / strides, outputs]`. A chunk that is no
    /// multiple of the strides must be the last of its sequence: each stage pads its last row with zeros.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, samples: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let mut pair = self.first.forward_pair(samples, None, Elu, streams)?;
        for stage in &self.stages {
            yield_point();
            for unit in &stage.units {
                pair = unit.forward(pair, streams)?;
            }
            pair = stage.down.forward_pair(&pair.1, None, Elu, streams)?;
        }
        self.last.forward(&pair.1, streams)
    }
}

/// The decoder; samples per input row are the product of the strides.
#[derive(Debug, Clone)]
pub struct SeanetDecoder {
    first: CausalConv,
    stages: Vec<UpStage>,
    last: CausalConv,
}

#[derive(Debug, Clone)]
struct UpStage {
    up: CausalTransposedConv,
    units: Vec<Unit>,
}

impl SeanetDecoder {
    /// Takes `{prefix}.{i}.{conv}.*`, `{prefix}.{i}.{transposed}.*` and `{prefix}.{i}.block.{1,3}.{conv}.*` as Mimi
    /// numbers them: activations count as layers. The first convolution has `kernel` taps, the last `last_kernel`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: &SeanetShape,
        streams: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let [conv, transposed] = shape.names;
        let mut channels = shape.filters << shape.strides.len();
        let first = shape.kernel(shape.width, channels, shape.kernel);
        let first = CausalConv::load(from, &format!("{prefix}.0.{conv}"), first, streams)?;
        let mut stages = Vec::with_capacity(shape.strides.len());
        let mut index = 1;
        for &stride in &shape.strides {
            let up = Kernel { stride, ..shape.kernel(channels, channels / 2, 2 * stride) };
            let name = format!("{prefix}.{}.{transposed}", index + 1);
            let up = CausalTransposedConv::load(from, &name, up, streams)?;
            channels /= 2;
            index += 2;
            let mut units = Vec::with_capacity(shape.residual_units);
            for unit in 0..shape.residual_units {
                units.push(Unit::load(from, &format!("{prefix}.{index}"), (unit, channels), shape, streams)?);
                index += 1;
            }
            stages.push(UpStage { up, units });
        }
        let last = shape.kernel(channels, 1, shape.last_kernel);
        let last = CausalConv::load(from, &format!("{prefix}.{}.{conv}", index + 1), last, streams)?;
        Ok(Self { first, stages, last })
    }

    /// New rows `[rows, width]` to samples `[rows * strides, 1]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let mut pair = self.first.forward_pair(x, None, Elu, streams)?;
        streams.tap(|| "first".to_owned(), &pair.0);
        for stage in &self.stages {
            yield_point();
            pair = stage.up.forward_pair(&pair.1, Elu, streams)?;
            for unit in &stage.units {
                pair = unit.forward(pair, streams)?;
            }
        }
        self.last.forward(&pair.1, streams)
    }
}
