//! Layers that a style steers: adaptive norms, and the residual block of the predictors and the decoder. Knows no text.

use candle_core::{Result, Tensor};

use super::config::STYLE;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::{Conv1dShape, SameConv};
use izwi_nn::layers::{InstanceNorm, LayerNorm, Linear, NormActivation, PackedRows};
use izwi_types::Precision;

const EPS: f64 = 1e-5;
const SLOPE: f32 = 0.2;

/// `x` above 0, the slope times `x` below.
pub(super) fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    x.maximum(&(x * slope)?)
}

/// Style `[sequences, STYLE]` to scale and shift, `[sequences, channels]` each.
#[derive(Debug)]
struct Affine {
    linear: Linear,
    channels: usize,
}

impl Affine {
    fn load(from: &mut Checkpoint, name: &str, channels: usize) -> std::result::Result<Self, Error> {
        Ok(Self { linear: Linear::load(from, &format!("{name}.fc"), STYLE, 2 * channels)?, channels })
    }

    fn forward(&self, style: &Tensor) -> Result<[Tensor; 2]> {
        let both = self.linear.forward(style)?;
        Ok([both.narrow(1, 0, self.channels)?, both.narrow(1, self.channels, self.channels)?])
    }
}

/// The precision of convolutions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvPrecision {
    /// Over rows that a norm made.
    pub(super) normed: Precision,
    /// Over other rows, whose values may be of very different size.
    pub(super) plain: Precision,
}

/// Adaptive instance norm.
#[derive(Debug)]
pub(super) struct AdaIn(Affine);

impl AdaIn {
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        channels: usize,
    ) -> std::result::Result<Self, Error> {
        Ok(Self(Affine::load(from, name, channels)?))
    }

    /// The norm of each sequence by its style, `[sequences, STYLE]`.
    pub(super) fn of(&self, style: &Tensor) -> Result<InstanceNorm> {
        let [scale, shift] = self.0.forward(style)?;
        Ok(InstanceNorm::new(scale, shift))
    }
}

/// Adaptive layer norm.
#[derive(Debug)]
pub(super) struct AdaLayerNorm {
    affine: Affine,
    norm: LayerNorm,
}

impl AdaLayerNorm {
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        channels: usize,
    ) -> std::result::Result<Self, Error> {
        let affine = Affine::load(from, name, channels)?;
        let ones = Tensor::ones(channels, candle_core::DType::F32, from.device())?;
        Ok(Self { affine, norm: LayerNorm::new(ones.clone(), ones.zeros_like()?, EPS) })
    }

    /// `[rows, channels]` to the same, gaps zero.
    pub(super) fn forward(&self, x: &Tensor, packed: &PackedRows, style: &Tensor) -> Result<Tensor> {
        let [scale, shift] = self.affine.forward(style)?;
        let rows = || packed.fill(|sequence, _| sequence as u32);
        let x = (self.norm.forward(x)? * (packed.gather(&scale, rows())? + 1.0)?)?;
        packed.clear_gaps(&(x + packed.gather(&shift, rows())?)?)
    }
}

/// Two convolutions with adaptive norms, and a residual; it may double the rows.
#[derive(Debug)]
pub(super) struct AdaInBlock {
    norms: [AdaIn; 2],
    convs: [SameConv; 2],
    shortcut: Option<SameConv>,
    doubling: Option<Doubling>,
}

impl AdaInBlock {
    /// `sizes` are inputs and outputs.
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        [inputs, outputs]: [usize; 2],
        doubles: bool,
        precision: ConvPrecision,
    ) -> std::result::Result<Self, Error> {
        let mut conv = |part: &str, taps: usize, inputs: usize| {
            let precision = if taps > 1 { precision.normed } else { precision.plain };
            let shape = Conv1dShape { sizes: [taps, inputs, outputs], dilation: 1, precision };
            SameConv::load(from, &format!("{name}.{part}"), shape, taps > 1)
        };
        let convs = [conv("conv1", 3, inputs)?, conv("conv2", 3, outputs)?];
        let shortcut = if inputs == outputs { None } else { Some(conv("conv1x1", 1, inputs)?) };
        let norms = [
            AdaIn::load(from, &format!("{name}.norm1"), inputs)?,
            AdaIn::load(from, &format!("{name}.norm2"), outputs)?,
        ];
        let pool = format!("{name}.pool");
        let doubling = if doubles { Some(Doubling::load(from, &pool, inputs)?) } else { None };
        Ok(Self { norms, convs, shortcut, doubling })
    }

    /// `[rows of packed, inputs]` to `[rows of target, outputs]`; gap rows are undefined. `target` is `packed` with twice the
    /// rows of each sequence if the block doubles them, else `packed` itself.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        packed: &PackedRows,
        target: &PackedRows,
        style: &Tensor,
    ) -> Result<Tensor> {
        let activation = NormActivation::LeakyRelu(SLOPE);
        let [first, second] = [self.norms[0].of(style)?, self.norms[1].of(style)?];
        let mut x = x.clone();
        let change = if let Some(doubling) = &self.doubling {
            let change = doubling.forward(&first.forward(&x, packed, activation)?, packed, target)?;
            let starts = packed.spans();
            let rows = target.fill(|sequence, row| (starts[sequence].start + row / 2) as u32);
            x = target.gather(&x, rows)?;
            self.convs[0].forward(&change)?
        } else {
            self.convs[0].forward_normed(&x, packed, (&first, activation), None)?
        };
        if let Some(shortcut) = &self.shortcut {
            x = shortcut.forward(&x)?;
        }
        let y = self.convs[1].forward_normed(&change, target, (&second, activation), Some(&x))?;
        y * std::f64::consts::FRAC_1_SQRT_2
    }
}

/// A transposed convolution of each channel alone: 3 taps, 2 rows for each row.
#[derive(Debug)]
struct Doubling {
    taps: [Tensor; 3], // [channels]
    bias: Tensor,      // [channels]
}

impl Doubling {
    fn load(from: &mut Checkpoint, name: &str, channels: usize) -> std::result::Result<Self, Error> {
        let weight = from.take(&format!("{name}.weight"), &[channels, 1, 3])?.squeeze(1)?;
        let tap = |at: usize| weight.narrow(1, at, 1)?.flatten_all();
        Ok(Self { taps: [tap(0)?, tap(1)?, tap(2)?], bias: from.take(&format!("{name}.bias"), &[channels])? })
    }

    /// `x` has zeros in its gaps, and so has the result.
    fn forward(&self, x: &Tensor, packed: &PackedRows, target: &PackedRows) -> Result<Tensor> {
        let (rows, channels) = x.dims2()?;
        let next = x.narrow(0, 1, rows - 1)?.pad_with_zeros(0, 0, 1)?;
        let even = x.broadcast_mul(&self.taps[1])?;
        let odd = (x.broadcast_mul(&self.taps[2])? + next.broadcast_mul(&self.taps[0])?)?;
        let both = Tensor::stack(&[even, odd], 1)?.reshape((2 * rows, channels))?;
        let both = both.broadcast_add(&self.bias)?;
        let spans = packed.spans();
        let rows = target.fill(|sequence, row| (2 * spans[sequence].start + row) as u32);
        target.gather(&both, rows)
    }
}
