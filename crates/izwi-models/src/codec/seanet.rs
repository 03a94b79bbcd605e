//! The SEANet encoder: samples to rows, by causal convolutions and residual units.
//! <https://arxiv.org/abs/2009.02095>.

use candle_core::{Result, Tensor};

use super::conv::{CausalConv, Kernel};
use super::stream::{StreamShape, Streams};
use crate::model::ModelError;
use crate::nn::checkpoint::Checkpoint;

/// Sizes of the encoder.
#[derive(Debug, Clone)]
pub struct SeanetShape {
    /// Channels behind the first convolution; each stage doubles them.
    pub filters: usize,
    /// Input rows to an output row of each stage, in the order the samples meet them.
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
    /// Factor by which a residual unit narrows its channels.
    pub compress: usize,
    /// Channels of the output.
    pub outputs: usize,
}

/// The encoder; an output row takes as many samples as the strides multiply to.
#[derive(Debug, Clone)]
pub struct SeanetEncoder {
    first: CausalConv,
    stages: Vec<Stage>,
    last: CausalConv,
}

#[derive(Debug, Clone)]
struct Stage {
    units: Vec<[CausalConv; 2]>,
    down: CausalConv,
}

impl SeanetEncoder {
    /// Takes `{prefix}.{i}.conv.*` and `{prefix}.{i}.block.{1,3}.conv.*` as Hugging Face's Mimi numbers them:
    /// activations count as layers.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: &SeanetShape,
        streams: &mut StreamShape,
    ) -> std::result::Result<Self, ModelError> {
        let first = Kernel::new(1, shape.filters, shape.kernel);
        let first = CausalConv::load(from, &format!("{prefix}.0.conv"), first, streams)?;
        let mut stages = Vec::with_capacity(shape.strides.len());
        let (mut channels, mut index) = (shape.filters, 1);
        for &stride in &shape.strides {
            let mut units = Vec::with_capacity(shape.residual_units);
            for unit in 0..shape.residual_units {
                let inner = channels / shape.compress.max(1);
                let dilation = shape.dilation_growth.pow(unit as u32);
                let wide = Kernel { dilation, ..Kernel::new(channels, inner, shape.residual_kernel) };
                let narrow = Kernel::new(inner, channels, 1);
                let name = format!("{prefix}.{index}.block");
                units.push([
                    CausalConv::load(from, &format!("{name}.1.conv"), wide, streams)?,
                    CausalConv::load(from, &format!("{name}.3.conv"), narrow, streams)?,
                ]);
                index += 1;
            }
            let down = Kernel { stride, ..Kernel::new(channels, 2 * channels, 2 * stride) };
            let down = CausalConv::load(from, &format!("{prefix}.{}.conv", index + 1), down, streams)?;
            stages.push(Stage { units, down });
            channels *= 2;
            index += 2;
        }
        let last = Kernel::new(channels, shape.outputs, shape.last_kernel);
        let last = CausalConv::load(from, &format!("{prefix}.{}.conv", index + 1), last, streams)?;
        Ok(Self { first, stages, last })
    }

    /// New samples `[samples, 1]` to rows `[samples / strides, outputs]`. A piece whose samples are no multiple of
    /// that is the last of its sequence: each stage completes its own last row with zeros.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, samples: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let mut x = self.first.forward(samples, streams)?;
        for stage in &self.stages {
            for [wide, narrow] in &stage.units {
                let change = wide.forward(&x.elu(1.0)?, streams)?;
                x = (x + narrow.forward(&change.elu(1.0)?, streams)?)?;
            }
            x = stage.down.forward(&x.elu(1.0)?, streams)?;
        }
        self.last.forward(&x.elu(1.0)?, streams)
    }
}
