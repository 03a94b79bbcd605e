//! Convolutions along packed rows `[rows, channels]`, centred, zero-padded by the gaps between sequences.
//!
//! The rows between sequences must be zero on entry and are not kept zero on exit.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::{Activation, bias_silu, sigmoid_gate};
use crate::layers::conv::{Conv1d, Padding};
use crate::layers::{Epilogue, Fused, Linear, PackedRows};
use crate::slices::cpu_slice;
use izwi_kernels::conv::depthwise_conv1d;
use izwi_metal::{DepthwiseForm, SequenceTable};

/// Depthwise convolution: one kernel per channel.
#[derive(Debug, Clone)]
pub struct DepthwiseConv {
    weight: Tensor, // [taps, channels]
    bias: Tensor,   // [channels]
    dilation: usize,
}

impl DepthwiseConv {
    /// Takes `{name}.weight` `[channels, 1, taps]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        channels: usize,
        taps: usize,
        dilation: usize,
    ) -> std::result::Result<Self, Error> {
        let weight = from.take(&format!("{name}.weight"), &[channels, 1, taps])?;
        Ok(Self::new(&weight, from.take(&format!("{name}.bias"), &[channels])?, dilation)?)
    }

    /// From a weight `[channels, 1, taps]` and a bias `[channels]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, bias: Tensor, dilation: usize) -> Result<Self> {
        Ok(Self { weight: weight.squeeze(1)?.t()?.contiguous()?, bias, dilation }) // [taps, channels]
    }

    /// `[rows, channels]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.device().is_cpu() {
            let op = Depthwise { dilation: self.dilation };
            return x.apply_op3_no_bwd(&self.weight, &self.bias, &op);
        }
        if x.device().is_metal() {
            let (rows, before) = (x.dim(0)?, self.weight.dim(0)? / 2 * self.dilation);
            return self.on_metal(before).run(x, &SequenceTable::one(rows, rows));
        }
        self.composite(x)
    }

    /// As [`Self::forward`]; on Metal what gaps have does not reach the spans.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_packed(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        if x.device().is_metal() {
            let before = self.weight.dim(0)? / 2 * self.dilation;
            return self.on_metal(before).run(x, &packed.on_metal());
        }
        self.forward(x)
    }

    /// The kernel for Metal, whose first output reads from `before` rows before the first row on.
    pub(crate) fn on_metal(&self, before: usize) -> izwi_metal::Depthwise<'_> {
        izwi_metal::Depthwise {
            weight: &self.weight,
            bias: Some(&self.bias),
            inputs: self.bias.elem_count(),
            dilation: self.dilation,
            before,
            form: DepthwiseForm::Plain,
            activation: None,
        }
    }

    fn composite(&self, x: &Tensor) -> Result<Tensor> {
        let (taps, _) = self.weight.dims2()?;
        let (rows, reach) = (x.dim(0)?, taps / 2 * self.dilation);
        let padded = x.pad_with_zeros(0, reach, reach)?;
        let mut y = x.zeros_like()?.broadcast_add(&self.bias)?;
        for tap in 0..taps {
            let shifted = padded.narrow(0, tap * self.dilation, rows)?;
            y = (y + shifted.broadcast_mul(&self.weight.narrow(0, tap, 1)?)?)?;
        }
        Ok(y)
    }
}

struct Depthwise {
    dilation: usize,
}

impl CustomOp3 for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise-rows"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (cpu_slice(x, x_layout)?, cpu_slice(weight, weight_layout)?);
        let bias = cpu_slice(bias, bias_layout)?;
        let channels = bias.len();
        if channels == 0 || x_layout.dims().last() != Some(&channels) {
            bail!("depthwise-rows: {:?} does not end in {channels}", x_layout.dims())
        }
        let mut y = vec![0f32; x.len()];
        depthwise_conv1d(x, weight, bias, self.dilation, &mut y);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }
}

/// A GLU, a depthwise convolution, a shift and SiLU: what is between the linear layers of a conformer's convolution.
/// <https://arxiv.org/abs/2005.08100>.
#[derive(Debug, Clone)]
pub struct GluConv {
    conv: DepthwiseConv, // without bias
    shift: Tensor,       // [channels]
}

impl GluConv {
    /// From a weight `[channels, 1, taps]` and a shift `[channels]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, shift: Tensor) -> Result<Self> {
        Ok(Self { conv: DepthwiseConv::new(weight, shift.zeros_like()?, 1)?, shift })
    }

    /// Values and arguments of their sigmoid gates, `[rows, 2 * channels]`, to `[rows, channels]`; rows of gaps are
    /// undefined and reach no span.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        if x.device().is_metal() {
            let conv = izwi_metal::Depthwise {
                bias: Some(&self.shift),
                form: DepthwiseForm::Glu,
                activation: Some(Activation::Silu),
                ..self.conv.on_metal(self.conv.weight.dim(0)? / 2)
            };
            return conv.run(x, &packed.on_metal());
        }
        let x = packed.clear_gaps(&sigmoid_gate(x)?)?;
        bias_silu(&self.conv.forward(&x)?, &self.shift)
    }
}

/// Dense convolution: all channels to all channels.
#[derive(Debug, Clone)]
pub struct DenseConv {
    form: DenseForm,
    taps: usize,
}

#[derive(Debug, Clone)]
enum DenseForm {
    /// Over columns `[rows, taps * inputs]`.
    Columns(Linear),
    Metal(Conv1d),
}

impl DenseConv {
    /// Takes `{name}.weight` `[outputs, inputs, taps]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        inputs: usize,
        outputs: usize,
        taps: usize,
    ) -> std::result::Result<Self, Error> {
        let weight = from.take(&format!("{name}.weight"), &[outputs, inputs, taps])?;
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        Ok(Self::new(&weight, bias)?)
    }

    /// From a weight `[outputs, inputs, taps]`, `taps` odd, and a bias `[outputs]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(weight: &Tensor, bias: Tensor) -> Result<Self> {
        let (outputs, inputs, taps) = weight.dims3()?;
        if weight.device().is_metal() {
            return Ok(Self { form: DenseForm::Metal(Conv1d::new(weight, Some(bias), 1)?), taps });
        }
        let weight = weight.transpose(1, 2)?.reshape((outputs, taps * inputs))?;
        Ok(Self { form: DenseForm::Columns(Linear::new(&weight, Some(bias))?), taps })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, reach) = (x.dim(0)?, self.taps / 2);
        let linear = match &self.form {
            DenseForm::Columns(linear) => linear,
            DenseForm::Metal(conv) => return conv.forward_padded(x, (Padding::Zero, [reach; 2]), 1, None),
        };
        if self.taps == 1 {
            return linear.forward(x);
        }
        let padded = x.pad_with_zeros(0, reach, reach)?;
        let shifted: Vec<_> = (0..self.taps).map(|tap| padded.narrow(0, tap, rows)).collect::<Result<_>>()?;
        linear.forward(&Tensor::cat(&shifted, 1)?) // [rows, taps * inputs]
    }
}

/// Strided dense convolution along one sequence, zero-padded by `taps / 2` at both ends, followed by GELU.
#[derive(Debug, Clone)]
pub struct StridedConv {
    form: DenseForm,
    taps: usize,
    stride: usize,
}

impl StridedConv {
    /// From a weight `[outputs, inputs, taps]`, `taps` odd, and a bias `[outputs]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(weight: &Tensor, bias: Tensor, stride: usize) -> Result<Self> {
        let (outputs, inputs, taps) = weight.dims3()?;
        if weight.device().is_metal() {
            let conv = Conv1d::new(weight, Some(bias), 1)?;
            return Ok(Self { form: DenseForm::Metal(conv), taps, stride });
        }
        let weight = weight.transpose(1, 2)?.reshape((outputs, taps * inputs))?;
        Ok(Self { form: DenseForm::Columns(Linear::new(&weight, Some(bias))?), taps, stride })
    }

    /// `gelu` of the convolution: `[rows, inputs]` to `[ceil(rows / stride), outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        let (outputs, reach) = (rows.div_ceil(self.stride), self.taps / 2);
        let linear = match &self.form {
            DenseForm::Columns(linear) => linear,
            DenseForm::Metal(conv) => {
                let behind = ((outputs - 1) * self.stride + self.taps).saturating_sub(reach + rows);
                let padding = (Padding::Zero, [reach, behind]);
                return conv.forward_padded(x, padding, self.stride, Some(Activation::Gelu));
            }
        };
        let x = x.pad_with_zeros(0, reach, reach + self.stride)?;
        let column = |tap: usize| {
            let rows = x.narrow(0, tap, outputs * self.stride)?.reshape((outputs, self.stride * inputs))?;
            rows.narrow(1, 0, inputs)
        };
        let columns: Vec<_> = (0..self.taps).map(column).collect::<Result<_>>()?;
        let fused = Fused { epilogue: Epilogue::Gelu, ..Fused::default() };
        linear.forward_fused(&Tensor::cat(&columns, 1)?, fused)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    /// candle's convolution over `[1, channels, rows]`.
    fn conv1d(x: &Tensor, weight: &Tensor, bias: &Tensor, dilation: usize, groups: usize) -> Tensor {
        let reach = weight.dim(2).unwrap() / 2 * dilation;
        let x = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
        let y = x.conv1d(weight, reach, 1, dilation, groups).unwrap();
        y.squeeze(0).unwrap().t().unwrap().broadcast_add(bias).unwrap()
    }

    #[test]
    fn depthwise_equals_grouped_conv1d_and_its_own_composite() {
        for (taps, dilation, rows) in [(5, 1, 40), (7, 1, 130), (7, 8, 70), (7, 8, 9)] {
            let x = Tensor::randn(0f32, 1.0, (rows, 12), &Device::Cpu).unwrap();
            let weight = Tensor::randn(0f32, 1.0, (12, 1, taps), &Device::Cpu).unwrap();
            let bias = Tensor::randn(0f32, 1.0, 12, &Device::Cpu).unwrap();
            let columns = weight.squeeze(1).unwrap().t().unwrap().contiguous().unwrap();
            let conv = DepthwiseConv { weight: columns, bias: bias.clone(), dilation };
            let y = conv.forward(&x).unwrap();
            assert!(worst(&y, &conv1d(&x, &weight, &bias, dilation, 12)) < 1e-5);
            assert!(worst(&y, &conv.composite(&x).unwrap()) < 1e-5);
        }
    }

    #[test]
    fn dense_equals_conv1d() {
        for taps in [1, 3, 7] {
            let x = Tensor::randn(0f32, 1.0, (33, 20), &Device::Cpu).unwrap();
            let weight = Tensor::randn(0f32, 1.0, (30, 20, taps), &Device::Cpu).unwrap();
            let bias = Tensor::randn(0f32, 1.0, 30, &Device::Cpu).unwrap();
            let conv = DenseConv::new(&weight, bias.clone()).unwrap();
            assert!(worst(&conv.forward(&x).unwrap(), &conv1d(&x, &weight, &bias, 1, 1)) < 1e-4);
        }
    }

    #[test]
    fn strided_equals_conv1d_with_gelu() {
        for (rows, stride) in [(30, 1), (30, 2), (31, 2), (1, 2), (33, 3)] {
            let x = Tensor::randn(0f32, 1.0, (rows, 20), &Device::Cpu).unwrap();
            let weight = Tensor::randn(0f32, 1.0, (30, 20, 3), &Device::Cpu).unwrap();
            let bias = Tensor::randn(0f32, 1.0, 30, &Device::Cpu).unwrap();
            let columns = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let y = columns.conv1d(&weight, 1, stride, 1, 1).unwrap().squeeze(0).unwrap().t().unwrap();
            let reference = y.broadcast_add(&bias).unwrap().gelu_erf().unwrap();
            let conv = StridedConv::new(&weight, bias, stride).unwrap();
            assert!(worst(&conv.forward_gelu(&x).unwrap(), &reference) < 1e-4, "{rows} {stride}");
        }
    }
}
