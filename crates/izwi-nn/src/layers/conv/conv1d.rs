//! One-dimensional convolution over padded rows with explicit start rows: the product that causal, strided, dilated and
//! transposed convolutions share. Knows no stream.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::{Checkpoint, Recipe};
use crate::layers::activation::{Activation, activate};
use crate::layers::cat_weights;
use crate::slices::with_slices;
use izwi_kernels::conv::{ConvPanels, ConvPanelsQ8, ConvRows, ConvRowsQ8, conv1d, conv1d_q8};
use izwi_kernels::quantised_rows::QuantisedRows;
use izwi_metal::{ConvWeights, metal_device};
use izwi_types::Precision;

/// `y[i] = Σ_t W_t x[starts[i] + t * dilation] (+ b)`; on the CPU a row of `y` is the same bits for any
/// other rows. Sums are f32. A clone shares the weight.
#[derive(Debug, Clone)]
pub struct Conv1d {
    weight: Weight,
    bias: Option<Tensor>, // [outputs]
    taps: usize,
    dilation: usize,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug, Clone)]
enum Weight {
    Cpu(Arc<ConvPanels>),
    CpuQ8(Arc<ConvPanelsQ8>),
    Metal(ConvWeights),
    Device(Tensor), // [taps * inputs, outputs]
}

/// Rows before the first and after the last row of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Zeros.
    Zero,
    /// The rows mirrored at the outermost one, which is not repeated.
    Mirror,
    /// The outermost row.
    Repeat,
}

/// Sizes and precision of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct Conv1dShape {
    /// Taps, inputs and outputs.
    pub sizes: [usize; 3],
    /// Rows between two taps.
    pub dilation: usize,
    /// As [`Conv1d::with_precision`].
    pub precision: Precision,
}

impl Conv1d {
    /// From a weight `[outputs, inputs, taps]` as PyTorch has it and a bias `[outputs]`.
    ///
    /// # Errors
    /// The device is out of memory, or shapes do not fit.
    pub fn new(weight: &Tensor, bias: Option<Tensor>, dilation: usize) -> Result<Self> {
        Self::with_precision(weight, bias, dilation, Precision::F32)
    }

    /// As [`Self::new`]. On the CPU [`Precision::Bf16`] rounds weights and `x` to bf16, if the number of inputs is even, and
    /// [`Precision::Q8`] rounds the weights of an output and each row of `x` to 8 bits with one scale, for rows whose
    /// values are of like size; everything else is f32.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_precision(
        weight: &Tensor,
        bias: Option<Tensor>,
        dilation: usize,
        precision: Precision,
    ) -> Result<Self> {
        let (outputs, inputs, taps) = weight.dims3()?;
        let kernel = Conv1dShape { sizes: [taps, inputs, outputs], dilation, precision };
        let packed = if weight.device().is_cpu() {
            Weight::packed(weight, precision)?
        } else {
            let bias = bias.as_ref();
            Weight::on_device(&weight.to_device(&Device::Cpu)?, bias, kernel, weight.device())?
        };
        Self::assemble(packed, bias, kernel)
    }

    fn assemble(weight: Weight, bias: Option<Tensor>, kernel: Conv1dShape) -> Result<Self> {
        let Conv1dShape { sizes: [taps, inputs, outputs], dilation, .. } = kernel;
        if taps == 0 || dilation == 0 || bias.as_ref().is_some_and(|bias| bias.dims() != [outputs]) {
            bail!("convolution: {taps} taps of dilation {dilation}, or a bias without {outputs} elements")
        }
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)?.contiguous()).transpose()?;
        Ok(Self { weight, bias, taps, dilation, inputs, outputs })
    }

    /// Takes the tensor of the given name and shape, which `transform` turns into a weight `[outputs, inputs,
    /// taps]`; `transform_id` as in [`Linear::load_transformed`](crate::layers::Linear::load_transformed).
    ///
    /// # Errors
    /// As [`Checkpoint::take`], those of `transform` and of [`Self::with_precision`].
    pub fn load_transformed(
        from: &mut Checkpoint,
        (part, transform_id): ((String, Vec<usize>), &str),
        bias: Option<Tensor>,
        kernel: Conv1dShape,
        transform: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> std::result::Result<Self, Error> {
        let Conv1dShape { sizes, precision, .. } = kernel;
        let weight = if from.device().is_cpu() {
            let recipe = Recipe { parts: &[part], transform_id, precision, sizes };
            let made = |tensors: Vec<Tensor>| Ok::<_, Error>(transform(cat_weights(tensors)?)?);
            match precision {
                Precision::Q8 => Weight::CpuQ8(from.take_packed(&recipe, |t| Ok(pack_q8(&made(t)?)?))?),
                _ => Weight::Cpu(from.take_packed(&recipe, |t| Ok(pack(&made(t)?, precision)?))?),
            }
        } else {
            // Transformed on the host: the device gets one buffer of the final layout.
            let weight = transform(from.take_host(&part.0, &part.1)?.to_dtype(DType::F32)?)?;
            Weight::on_device(&weight, bias.as_ref(), kernel, from.device())?
        };
        Ok(Self::assemble(weight, bias, kernel)?)
    }

    /// Rows from the first tap to the last.
    pub fn reach(&self) -> usize {
        (self.taps - 1) * self.dilation
    }

    /// Channels of the input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Channels of the output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `x` `[rows, inputs]` with `pads` rows before and after it to `[outputs of a stride, outputs]`, activated.
    ///
    /// # Errors
    /// Shapes do not fit, or fewer rows are mirrored than `pads` asks for.
    pub fn forward_padded(
        &self,
        x: &Tensor,
        (padding, [before, behind]): (Padding, [usize; 2]),
        stride: usize,
        activation: Option<Activation<'_>>,
    ) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let is_short = padding == Padding::Mirror && before.max(behind) >= rows;
        let padded = before + rows + behind;
        if is_short || rows == 0 || padded <= self.reach() || stride == 0 {
            bail!("convolution: {rows} rows with {before} before and {behind} after are too few")
        }
        let count = (padded - self.reach() - 1) / stride + 1;
        if let Weight::Metal(weights) = &self.weight {
            let edge = match padding {
                Padding::Zero => izwi_metal::Edge::Zero,
                Padding::Mirror => izwi_metal::Edge::Mirror,
                Padding::Repeat => izwi_metal::Edge::Repeat,
            };
            let args = izwi_metal::ConvArgs { stride, before, edge };
            let epilogue = izwi_metal::ConvEpilogue {
                activation,
                drops_plain: activation.is_some(),
                ..Default::default()
            };
            let [plain, activated] =
                izwi_metal::conv(x, weights, args, &izwi_metal::SequenceTable::one(rows, count), epilogue)?;
            return match activated.or(plain) {
                Some(y) => Ok(y),
                None => bail!("convolution: no result"),
            };
        }
        let x = if before + behind == 0 { x.clone() } else { pad(x, padding, [before, behind])? };
        let starts: Vec<u32> = (0..count).map(|row| (row * stride) as u32).collect();
        let y = self.forward(&x, &starts)?;
        if let Some(activation) = activation { activate(&y, activation) } else { Ok(y) }
    }

    /// The weight for kernels on Metal.
    pub(crate) fn on_metal(&self) -> Option<&ConvWeights> {
        match &self.weight {
            Weight::Metal(weights) => Some(weights),
            _ => None,
        }
    }

    /// `x` `[n, inputs]` to `[starts, outputs]`, where `starts[i]` is the first row that output `i` reads; not on Metal.
    ///
    /// # Errors
    /// Shapes do not fit, or a row lies outside `x`.
    pub fn forward(&self, x: &Tensor, starts: &[u32]) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        let last = starts.iter().copied().max().unwrap_or(0) as usize + self.reach();
        if inputs != self.inputs || starts.is_empty() || last >= rows {
            bail!("convolution: [{rows}, {inputs}] for rows up to {last} of {} channels", self.inputs)
        }
        match (&self.weight, &self.bias) {
            (Weight::Cpu(weight), None) => self.on_cpu(weight, [x], starts),
            (Weight::Cpu(weight), Some(bias)) => self.on_cpu(weight, [x, bias], starts),
            (Weight::CpuQ8(weight), _) => {
                let rows = with_slices([x], |[x]| {
                    let mut quantised = QuantisedRows::zeros(rows, inputs);
                    quantised.write(0, x);
                    quantised
                })?;
                self.on_cpu_q8(weight, &rows, starts, None)
            }
            (Weight::Metal(_), _) => bail!("convolution: rows in any order are not computed on Metal"),
            (Weight::Device(weight), bias) => {
                let y = self.columns(x, starts)?.matmul(weight)?;
                if let Some(bias) = bias { y.broadcast_add(bias) } else { Ok(y) }
            }
        }
    }

    fn on_cpu<const N: usize>(
        &self,
        weight: &ConvPanels,
        operands: [&Tensor; N],
        starts: &[u32],
    ) -> Result<Tensor> {
        let y = with_slices(operands, |slices| {
            let mut y = vec![0f32; starts.len() * self.outputs];
            let x = ConvRows { data: slices[0], starts, dilation: self.dilation };
            conv1d(x, weight, slices.get(1).copied(), &mut y);
            y
        })?;
        Tensor::from_vec(y, (starts.len(), self.outputs), operands[0].device())
    }

    /// The weight for rows that were rounded to 8 bits before.
    pub(crate) fn on_q8(&self) -> Option<&Arc<ConvPanelsQ8>> {
        match &self.weight {
            Weight::CpuQ8(weight) => Some(weight),
            _ => None,
        }
    }

    /// [`Self::forward`] on rows at 8 bits, with a residual `[starts, outputs]`. The rows that `starts` name exist.
    pub(crate) fn on_cpu_q8(
        &self,
        weight: &ConvPanelsQ8,
        x: &QuantisedRows,
        starts: &[u32],
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let shape = (starts.len(), self.outputs);
        if residual.is_some_and(|residual| residual.dims() != [shape.0, shape.1]) {
            bail!("convolution: a residual of another shape than {shape:?}")
        }
        let operands: Vec<&Tensor> = self.bias.iter().chain(residual).collect();
        let run = |bias: Option<&[f32]>, residual: Option<&[f32]>| {
            let mut y = vec![0f32; shape.0 * shape.1];
            let x = ConvRowsQ8 { data: x, starts, dilation: self.dilation };
            conv1d_q8(x, weight, bias, residual, &mut y);
            y
        };
        let y = match (&operands[..], &self.bias) {
            ([bias, residual], _) => with_slices([bias, residual], |[b, r]| run(Some(b), Some(r)))?,
            ([bias], Some(_)) => with_slices([bias], |[bias]| run(Some(bias), None))?,
            ([residual], None) => with_slices([residual], |[residual]| run(None, Some(residual)))?,
            _ => run(None, None),
        };
        Tensor::from_vec(y, shape, &Device::Cpu)
    }

    /// The input of each output (im2col): `[starts, taps * inputs]`.
    fn columns(&self, x: &Tensor, starts: &[u32]) -> Result<Tensor> {
        let taps = |start: &u32| {
            let start = *start;
            (0..self.taps).map(move |tap| start + (tap * self.dilation) as u32)
        };
        let rows: Vec<u32> = starts.iter().flat_map(taps).collect();
        let rows = Tensor::from_vec(rows, starts.len() * self.taps, x.device())?;
        x.contiguous()?.index_select(&rows, 0)?.reshape((starts.len(), self.taps * self.inputs))
    }
}

impl Weight {
    /// A weight `[outputs, inputs, taps]` on the CPU.
    fn packed(weight: &Tensor, precision: Precision) -> Result<Self> {
        Ok(match precision {
            Precision::Q8 => Self::CpuQ8(Arc::new(pack_q8(weight)?)),
            _ => Self::Cpu(Arc::new(pack(weight, precision)?)),
        })
    }

    /// A weight `[outputs, inputs, taps]` on the CPU as it is kept on `device`.
    fn on_device(
        weight: &Tensor,
        bias: Option<&Tensor>,
        kernel: Conv1dShape,
        device: &Device,
    ) -> Result<Self> {
        if let Some(device) = metal_device(device) {
            let Conv1dShape { dilation, precision, .. } = kernel;
            return Ok(Self::Metal(ConvWeights::new(weight, bias, dilation, precision, device)?));
        }
        Ok(Self::Device(columns_of(weight)?.to_device(device)?))
    }
}

/// `x` `[rows, channels]` with rows before and after.
fn pad(x: &Tensor, padding: Padding, [before, behind]: [usize; 2]) -> Result<Tensor> {
    let rows = x.dim(0)?;
    let last = rows.saturating_sub(1);
    let source = |at: usize| match padding {
        Padding::Repeat => at.saturating_sub(before).min(last),
        _ => {
            let at = at.abs_diff(before);
            if at < rows { at } else { 2 * last - at }
        }
    };
    if padding == Padding::Zero {
        return x.pad_with_zeros(0, before, behind);
    }
    let sources = Tensor::from_iter((0..before + rows + behind).map(|at| source(at) as u32), x.device())?;
    x.index_select(&sources, 0)
}

/// A weight `[outputs, inputs, taps]` as `[taps * inputs, outputs]`, on its own device.
fn columns_of(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, taps) = weight.dims3()?;
    let rows = weight.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?; // [outputs, taps, inputs]
    rows.reshape((outputs, taps * inputs))?.t()?.contiguous()
}

/// Packs a weight `[outputs, inputs, taps]` at 8 bits.
fn pack_q8(weight: &Tensor) -> Result<ConvPanelsQ8> {
    let (outputs, inputs, taps) = weight.dims3()?;
    let rows = weight.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?; // [outputs, taps, inputs]
    with_slices([&rows], |[rows]| ConvPanelsQ8::pack(rows, outputs, taps, inputs))
}

/// Packs a weight `[outputs, inputs, taps]` for the CPU kernels.
fn pack(weight: &Tensor, precision: Precision) -> Result<ConvPanels> {
    let (outputs, inputs, taps) = weight.dims3()?;
    let rows = weight.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?; // [outputs, taps, inputs]
    let pairs = precision == Precision::Bf16 && inputs.is_multiple_of(2);
    let pack = if pairs { ConvPanels::pack_pairs } else { ConvPanels::pack };
    with_slices([&rows], |[rows]| pack(rows, outputs, taps, inputs))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;

    use super::*;

    fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn rows_equal_a_plain_product_and_each_row_alone(
            inputs in 1usize..70,
            outputs in 1usize..200,
            taps in 1usize..8,
            dilation in 1usize..5,
            starts in prop::collection::vec(0u32..60, 1..30),
        ) {
            let (weight, bias) = (random((outputs, inputs, taps)), random(outputs));
            let conv = Conv1d::new(&weight, Some(bias.clone()), dilation).unwrap();
            let x = random((60 + conv.reach(), inputs));
            let y = conv.forward(&x, &starts).unwrap();
            let rows = weight.transpose(1, 2).unwrap().reshape((outputs, taps * inputs)).unwrap();
            let reference = conv.columns(&x, &starts).unwrap().matmul(&rows.t().unwrap()).unwrap();
            let off = (&y - reference.broadcast_add(&bias).unwrap()).unwrap().abs().unwrap();
            prop_assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 2e-4);
            for (row, start) in y.to_vec2::<f32>().unwrap().iter().zip(&starts) {
                let alone = conv.forward(&x, &[*start]).unwrap();
                prop_assert_eq!(&alone.to_vec2::<f32>().unwrap()[0], row);
            }
        }
    }

    #[test]
    fn rows_over_several_blocks_equal_each_row_alone() {
        for (inputs, outputs) in [(300, 96), (300, 130), (5, 1)] {
            let conv = Conv1d::new(&random((outputs, inputs, 7)), None, 3).unwrap();
            let x = random((500, inputs));
            let starts: Vec<u32> = (0..450).collect();
            let y = conv.forward(&x, &starts).unwrap().to_vec2::<f32>().unwrap();
            for row in [0usize, 1, 97, 190, 191, 192, 449] {
                let alone = conv.forward(&x, &[row as u32]).unwrap();
                assert_eq!(alone.to_vec2::<f32>().unwrap()[0], y[row]);
            }
            assert!(conv.forward(&x, &[490]).is_err());
        }
    }
}
