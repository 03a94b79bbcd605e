//! Convolutions along the rows of packed sequences, dense and depthwise, with the state of streams and fused with what
//! follows. Knows no layer.

use candle_core::{DType, MetalDevice, Result, Tensor, bail};
use izwi_types::Precision;

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};
use crate::weights::{MetalWeights, Stored};

/// Output rows up to which a kernel computes them without tiles.
const FEW_ROWS: usize = 4;
/// Simdgroups of a threadgroup for few rows.
const SIMDGROUPS: usize = 2;
/// Threads of a threadgroup that computes an element each.
const ELEMENTS: usize = 256;
/// Stands for no state in a table.
pub const NO_STATE: u32 = u32::MAX;
/// Bytes that go into a command; a longer table takes a buffer.
const MAX_INLINE_BYTES: usize = 4096;

/// An activation, for layers that fuse it with what they compute.
#[derive(Debug, Clone, Copy)]
pub enum Activation<'a> {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// By the error function.
    Gelu,
    /// The larger of the value and 0.
    Relu,
    /// The value, or `exp(x) - 1` below 0.
    Elu,
    /// The nearest value from -1 to 1.
    Clamp,
    /// `x + amplitude * sin²(frequency * x)`, `[channels]` each.
    Snake {
        /// Of each channel.
        frequency: &'a Tensor,
        /// Of each channel.
        amplitude: &'a Tensor,
    },
}

/// A dense weight as `[outputs, taps * inputs]`, and its bias.
#[derive(Debug, Clone)]
pub struct ConvWeights {
    weights: MetalWeights,
    bias: Option<Tensor>,
    taps: usize,
    dilation: usize,
}

impl ConvWeights {
    /// From a weight `[outputs, inputs, taps]` and a bias `[outputs]`, kept in 16 bits if `precision` says so, else in f32.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        dilation: usize,
        precision: Precision,
        device: &MetalDevice,
    ) -> Result<Self> {
        let (outputs, inputs, taps) = weight.dims3()?;
        let precision = match precision {
            Precision::Bf16 | Precision::F16 => precision,
            _ => Precision::F32,
        };
        let rows = weight.to_device(&candle_core::Device::Cpu)?.transpose(1, 2)?.contiguous()?;
        let rows = rows.reshape((outputs, taps * inputs))?;
        let bias = bias.map(|bias| {
            let bias = bias.to_dtype(DType::F32)?.contiguous()?;
            bias.to_device(&candle_core::Device::Metal(device.clone()))
        });
        let weights = MetalWeights::new(&rows, precision, device)?;
        Ok(Self { weights, bias: bias.transpose()?, taps, dilation })
    }

    fn inputs(&self) -> usize {
        self.weights.inputs() / self.taps
    }

    fn kernel(&self, rows: usize) -> Result<(&'static str, Grid)> {
        let outputs = self.weights.outputs();
        let of_types = if rows == 1 {
            ["conv_rows_f32_1", "conv_rows_f16_1", "conv_rows_bf16_1"]
        } else if rows <= FEW_ROWS {
            ["conv_rows_f32_4", "conv_rows_f16_4", "conv_rows_bf16_4"]
        } else {
            ["conv_tiles_f32", "conv_tiles_f16", "conv_tiles_bf16"]
        };
        let name = match self.weights.stored() {
            Stored::F32 => of_types[0],
            Stored::F16 => of_types[1],
            Stored::Bf16 => of_types[2],
            Stored::Q8 | Stored::Q4 => bail!("convolution: quantised weights are not supported"),
        };
        Ok(if rows <= FEW_ROWS {
            let groups = [outputs.div_ceil(4 * SIMDGROUPS), 1, 1];
            (name, Grid { groups, threads: 32 * SIMDGROUPS })
        } else {
            (name, Grid { groups: [outputs.div_ceil(32), rows.div_ceil(32), 1], threads: 128 })
        })
    }
}

/// Rows outside a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The state of a stream, else zeros.
    Zero,
    /// Mirrored at the outermost row.
    Mirror,
    /// The outermost row.
    Repeat,
}

/// The sequences of a pass, and where in a buffer of states their rows before the new ones are.
#[derive(Debug, Clone, Default)]
pub struct SequenceTable {
    words: Vec<u32>, // rows, output rows, place of the old state, place of the new one
    state: Option<Tensor>,
}

impl SequenceTable {
    /// With states in a buffer of f32 elements.
    pub fn with_state(state: &Tensor) -> Self {
        Self { words: Vec::new(), state: Some(state.clone()) }
    }

    /// One sequence without state.
    pub fn one(rows: usize, outputs: usize) -> Self {
        let mut table = Self::default();
        table.push([rows, outputs], [NO_STATE; 2]);
        table
    }

    /// Adds a sequence: its rows and output rows, and where its state is and where the new one goes, [`NO_STATE`] for none.
    pub fn push(&mut self, [rows, outputs]: [usize; 2], [read, write]: [u32; 2]) {
        self.words.extend_from_slice(&[rows as u32, outputs as u32, read, write]);
    }

    fn sequences(&self) -> usize {
        self.words.len() / 4
    }

    fn sum(&self, column: usize) -> usize {
        self.words.chunks_exact(4).map(|words| words[column] as usize).sum()
    }

    /// The table in a buffer, if it is too long for a command.
    fn buffer(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let long = size_of_val(&self.words[..]) > MAX_INLINE_BYTES;
        long.then(|| Tensor::new(&self.words[..], x.device())).transpose()
    }

    /// The states, or `written` where there are none.
    fn state<'a>(&'a self, written: Arg<'a>) -> Arg<'a> {
        self.state.as_ref().map_or(written, Arg::Out)
    }
}

/// What follows a dense convolution, in this order: residual, activation.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConvEpilogue<'a> {
    /// Added to the result, of its shape.
    pub residual: Option<&'a Tensor>,
    /// Makes a second result.
    pub activation: Option<Activation<'a>>,
    /// Whether the result before the activation is not wanted.
    pub drops_plain: bool,
}

/// How the output rows of a dense convolution lie in its input.
#[derive(Debug, Clone, Copy)]
pub struct ConvArgs {
    /// Input rows per output row.
    pub stride: usize,
    /// Rows that the first output reads before the first row.
    pub before: usize,
    /// What rows outside the sequence are.
    pub edge: Edge,
}

/// Runs a dense convolution over `x` `[rows, inputs]`: `[output rows, outputs]` and the same activated, as asked for.
///
/// # Errors
/// Shapes do not fit.
pub fn conv(
    x: &Tensor,
    weights: &ConvWeights,
    args: ConvArgs,
    table: &SequenceTable,
    epilogue: ConvEpilogue<'_>,
) -> Result<[Option<Tensor>; 2]> {
    let x = x.contiguous()?;
    let (inputs, outputs) = (weights.inputs(), weights.weights.outputs());
    let rows = table.sum(1);
    if x.dims() != [table.sum(0), inputs] || rows == 0 {
        bail!("convolution: {:?} for {} rows of {inputs} channels", x.dims(), table.sum(0))
    }
    if epilogue.residual.is_some_and(|residual| residual.dims() != [rows, outputs]) {
        bail!("convolution: the residual does not fit {rows} rows of {outputs} channels")
    }
    let (activation, [frequency, amplitude], channels) = activation_args(epilogue.activation, outputs)?;
    let writes = u32::from(!epilogue.drops_plain) + 2 * u32::from(epilogue.activation.is_some());
    let params = [
        inputs as u32,
        outputs as u32,
        weights.taps as u32,
        weights.dilation as u32,
        args.stride as u32,
        rows as u32,
        table.sequences() as u32,
        args.before as u32,
        match args.edge {
            Edge::Zero => 0,
            Edge::Mirror => 1,
            Edge::Repeat => 2,
        },
        weights.weights.row_bytes() as u32,
        weights.weights.blocks() as u32,
        weights.bias.is_some().into(),
        activation,
        epilogue.residual.is_some().into(),
        writes,
        channels as u32,
    ];
    let (name, grid) = weights.kernel(rows)?;
    let words = table.buffer(&x)?;
    let pass = Pass::of(&x)?;
    let new = |wanted: bool| wanted.then(|| pass.empty((rows, outputs), DType::F32)).transpose();
    let results = [new(writes & 1 != 0)?, new(writes & 2 != 0)?];
    let [plain, activated] = &results;
    // One of them is wanted.
    let written = plain.as_ref().or(activated.as_ref()).map_or(Arg::Unused, Arg::Out);
    let arguments = [
        Arg::In(weights.weights.data()),
        Arg::In(&x),
        plain.as_ref().map_or(written, Arg::Out),
        activated.as_ref().map_or(written, Arg::Out),
        table.state(written),
        Arg::optional(weights.bias.as_ref()),
        Arg::optional(epilogue.residual),
        frequency,
        amplitude,
        words.as_ref().map_or(Arg::Params(&table.words), Arg::In),
        Arg::Params(&params),
    ];
    pass.expect(2 * rows * weights.taps * inputs * outputs, 0)?;
    pass.run(Kernel(Source::Conv, name), &arguments, grid)?;
    Ok(results)
}

/// The number of an activation in the kernels, its parameters and their channels.
fn activation_args(activation: Option<Activation<'_>>, outputs: usize) -> Result<(u32, [Arg<'_>; 2], usize)> {
    let (number, args, channels) = match activation {
        None => (0, [Arg::Unused; 2], 1),
        Some(Activation::Silu) => (1, [Arg::Unused; 2], 1),
        Some(Activation::Gelu) => (2, [Arg::Unused; 2], 1),
        Some(Activation::Relu) => (3, [Arg::Unused; 2], 1),
        Some(Activation::Elu) => (4, [Arg::Unused; 2], 1),
        Some(Activation::Clamp) => (6, [Arg::Unused; 2], 1),
        Some(Activation::Snake { frequency, amplitude }) => {
            (5, [Arg::In(frequency), Arg::In(amplitude)], frequency.elem_count())
        }
    };
    if channels == 0 || !outputs.is_multiple_of(channels) {
        bail!("convolution: an activation of {channels} channels for {outputs}")
    }
    Ok((number, args, channels))
}

/// What a depthwise convolution reads of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthwiseForm {
    /// The row.
    Plain,
    /// A factor, a gate and an input: their product is convolved, then gated.
    Gated,
    /// A value and the argument of its sigmoid gate.
    Glu,
}

/// A depthwise convolution: output `o` reads channel `o % inputs`.
#[derive(Debug, Clone, Copy)]
pub struct Depthwise<'a> {
    /// `[taps, outputs]`.
    pub weight: &'a Tensor,
    /// `[outputs]`.
    pub bias: Option<&'a Tensor>,
    /// Channels of the input.
    pub inputs: usize,
    /// Rows between two taps.
    pub dilation: usize,
    /// As [`ConvArgs::before`]; rows outside are the state or zeros.
    pub before: usize,
    /// What it reads of a row.
    pub form: DepthwiseForm,
    /// Not Snake.
    pub activation: Option<Activation<'a>>,
}

impl Depthwise<'_> {
    /// `x` `[rows, parts * inputs]` to `[rows, outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn run(self, x: &Tensor, table: &SequenceTable) -> Result<Tensor> {
        let x = x.contiguous()?;
        let (taps, outputs) = self.weight.dims2()?;
        let (name, parts) = match self.form {
            DepthwiseForm::Plain => ("depthwise_plain", 1),
            DepthwiseForm::Gated => ("depthwise_gated", 3),
            DepthwiseForm::Glu => ("depthwise_glu", 2),
        };
        let rows = table.sum(0);
        let fits = self.bias.is_none_or(|bias| bias.dims() == [outputs]);
        if x.dims() != [rows, parts * self.inputs] || !outputs.is_multiple_of(self.inputs) || !fits {
            bail!("depthwise convolution: {:?} does not fit {outputs} outputs", x.dims())
        }
        let (activation, ..) = activation_args(self.activation, outputs)?;
        let params = [
            self.inputs as u32,
            outputs as u32,
            taps as u32,
            self.dilation as u32,
            rows as u32,
            table.sequences() as u32,
            self.before as u32,
            self.bias.is_some().into(),
            activation,
        ];
        let words = table.buffer(&x)?;
        let pass = Pass::of(&x)?;
        let y = pass.empty((rows, outputs), DType::F32)?;
        let arguments = [
            Arg::In(self.weight),
            Arg::In(&x),
            Arg::Out(&y),
            table.state(Arg::Out(&y)),
            Arg::optional(self.bias),
            words.as_ref().map_or(Arg::Params(&table.words), Arg::In),
            Arg::Params(&params),
        ];
        let grid = Grid { groups: [(rows * outputs).div_ceil(ELEMENTS), 1, 1], threads: ELEMENTS };
        pass.run(Kernel(Source::Conv, name), &arguments, grid)?;
        Ok(y)
    }
}

/// A 3 x 3 depthwise convolution with stride 2 around row `shift` of `x` `[n, columns, channels]` and every second row on:
/// `[rows, ceil(columns / 2), channels]`. `weight` is `[9, channels]`.
///
/// # Errors
/// The tensors are on another device.
pub fn depthwise_2d(x: &Tensor, [weight, bias]: [&Tensor; 2], shift: usize, rows: usize) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (count, columns, channels) = x.dims3()?;
    let halved = columns.div_ceil(2);
    let params = [count as u32, columns as u32, channels as u32, shift as u32, rows as u32];
    let pass = Pass::of(&x)?;
    let y = pass.empty((rows, halved, channels), DType::F32)?;
    let args = [Arg::In(weight), Arg::In(&x), Arg::Out(&y), Arg::In(bias), Arg::Params(&params)];
    let grid = Grid { groups: [y.elem_count().div_ceil(ELEMENTS), 1, 1], threads: ELEMENTS };
    pass.run(Kernel(Source::Conv, "depthwise_2d"), &args, grid)?;
    Ok(y)
}

/// Copies `count` f32 elements from `from` of one buffer to `to` of another, or to another place of the same.
///
/// # Errors
/// The tensors are on another device.
pub(crate) fn copy_elements(
    [source, target]: [&Tensor; 2],
    from: usize,
    to: usize,
    count: usize,
) -> Result<()> {
    if from + count > source.elem_count() || to + count > target.elem_count() {
        bail!("copy: {count} elements do not fit")
    }
    let params = [from as u32, to as u32, count as u32];
    let grid = Grid { groups: [count.div_ceil(ELEMENTS), 1, 1], threads: ELEMENTS };
    let args = [Arg::In(source), Arg::Out(target), Arg::Params(&params)];
    Pass::of(target)?.run(Kernel(Source::Conv, "copy_elements"), &args, grid)
}
