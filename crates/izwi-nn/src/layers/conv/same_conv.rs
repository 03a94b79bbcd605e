//! Dense convolutions over packed rows: of the same length, strided, and transposed to more rows. Gap rows of an input are zero where
//! a convolution reaches them.

use candle_core::{Result, Tensor, bail};

use super::{Conv1d, Conv1dShape, Padding};
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::{InstanceNorm, NormActivation, PackedRows, activation};

/// A convolution whose output has as many rows as its input: an odd number of taps, zero-padded on both sides.
#[derive(Debug, Clone)]
pub struct SameConv(Conv1d);

impl SameConv {
    /// Takes `{name}.weight` `[outputs, inputs, taps]` and, with `bias`, `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: Conv1dShape,
        bias: bool,
    ) -> std::result::Result<Self, Error> {
        let [taps, inputs, outputs] = shape.sizes;
        let bias = if bias { Some(from.take(&format!("{name}.bias"), &[outputs])?) } else { None };
        let part = (format!("{name}.weight"), vec![outputs, inputs, taps]);
        Ok(Self(Conv1d::load_transformed(from, (part, ""), bias, shape, Ok)?))
    }

    /// `[rows, inputs]` to `[rows, outputs]`; gap rows of the result are undefined.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let side = self.0.reach() / 2;
        self.0.forward_padded(x, (Padding::Zero, [side; 2]), 1, None)
    }

    /// A norm, what follows it, the convolution, and a residual where there is one: `x` `[rows, inputs]` and `residual` `[rows,
    /// outputs]` to `[rows, outputs]`; gap rows of the result are undefined. With weights at 8 bits the norm writes rows at 8
    /// bits.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_normed(
        &self,
        x: &Tensor,
        packed: &PackedRows,
        (norm, activation): (&InstanceNorm, NormActivation<'_>),
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        if let Some(weight) = self.0.on_q8().filter(|_| x.device().is_cpu()) {
            if x.dim(1)? != self.0.inputs() {
                bail!("convolution: {:?} for {} channels", x.dims(), self.0.inputs())
            }
            let side = self.0.reach() / 2;
            let x = norm.forward_q8(x, packed, activation, [side; 2])?;
            let starts: Vec<u32> = (0..packed.rows() as u32).collect();
            return self.0.on_cpu_q8(weight, &x, &starts, residual);
        }
        let y = self.forward(&norm.forward(x, packed, activation)?)?;
        match residual {
            Some(residual) => activation::residual(residual, y),
            None => Ok(y),
        }
    }

    /// Every `stride`-th output of each sequence, zero-padded by `pad` rows: from sequences of `packed` to those of
    /// `target`, gaps zero.
    ///
    /// # Errors
    /// Shapes do not fit, or a sequence of `target` has another length.
    pub fn forward_strided(
        &self,
        x: &Tensor,
        packed: &PackedRows,
        target: &PackedRows,
        [stride, pad]: [usize; 2],
    ) -> Result<Tensor> {
        let mut parts = Vec::with_capacity(packed.spans().len());
        let mut starts = Vec::with_capacity(packed.spans().len());
        let mut rows = 0;
        for (span, to) in packed.spans().iter().zip(target.spans()) {
            let part = x.narrow(0, span.start, span.len())?;
            let part = self.0.forward_padded(&part, (Padding::Zero, [pad; 2]), stride, None)?;
            if part.dim(0)? != to.len() {
                bail!("convolution: {} rows where {} are expected", part.dim(0)?, to.len())
            }
            starts.push(rows);
            rows += to.len();
            parts.push(part);
        }
        let parts = Tensor::cat(&parts, 0)?;
        target.gather(&parts, target.fill(|sequence, position| (starts[sequence] + position) as u32))
    }
}

/// A transposed convolution of `2 * rate` taps, `rate` even, padded by `rate / 2`: each row gives `rate` rows.
#[derive(Debug, Clone)]
pub struct UpsamplingConv {
    /// Two taps, the outputs of all `rate` rows side by side.
    conv: Conv1d,
    rate: usize,
    outputs: usize,
}

impl UpsamplingConv {
    /// Takes `{name}.weight` `[inputs, outputs, 2 * rate]` and `{name}.bias`; `sizes` are rate, inputs and outputs.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the rate is odd.
    pub fn load(from: &mut Checkpoint, name: &str, shape: Conv1dShape) -> std::result::Result<Self, Error> {
        let [rate, inputs, outputs] = shape.sizes;
        if rate == 0 || !rate.is_multiple_of(2) {
            return Err(Error::Internal("an upsampling convolution has an even rate"));
        }
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        let bias = bias.unsqueeze(0)?.broadcast_as((rate, outputs))?.contiguous()?.flatten_all()?;
        let part = (format!("{name}.weight"), vec![inputs, outputs, 2 * rate]);
        // A row is the sum of the row before, under the later taps, and the row itself, under the earlier ones.
        let by_phase = |weight: Tensor| {
            let taps = weight.reshape((inputs, outputs, 2, rate))?.permute((3, 1, 0, 2))?; // [rate, outputs, inputs, 2]
            let taps = Tensor::cat(&[taps.narrow(3, 1, 1)?, taps.narrow(3, 0, 1)?], 3)?;
            taps.reshape((rate * outputs, inputs, 2))
        };
        let shape = Conv1dShape { sizes: [2, inputs, rate * outputs], dilation: 1, ..shape };
        let conv = Conv1d::load_transformed(from, (part, "by phase, "), Some(bias), shape, by_phase)?;
        Ok(Self { conv, rate, outputs })
    }

    /// Sequences of `packed` to those of `target`, gaps zero. A sequence of `target` has `rate` times the rows; one that is
    /// longer begins with that many rows more, mirrored at its first.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows, target: &PackedRows) -> Result<Tensor> {
        let y = self.conv.forward_padded(x, (Padding::Zero, [1; 2]), 1, None)?; // [rows + 1, rate * outputs]
        let y = y.reshape((y.dim(0)? * self.rate, self.outputs))?;
        let lengths = packed.spans().iter().zip(target.spans());
        let more: Vec<Option<usize>> =
            lengths.map(|(from, to)| to.len().checked_sub(from.len() * self.rate)).collect();
        if packed.spans().len() != target.spans().len()
            || more.iter().any(|more| more.is_none_or(|more| more > self.rate))
        {
            bail!("convolution: the sequences are not {} times as long", self.rate)
        }
        let rows = target.fill(|sequence, position| {
            let first = packed.spans()[sequence].start * self.rate + self.rate / 2;
            (first + position.abs_diff(more[sequence].unwrap_or(0))) as u32
        });
        target.gather(&y, rows)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use izwi_types::Precision;

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn upsampling_equals_a_transposed_convolution() {
        for rate in [2, 6] {
            let shape = Conv1dShape { sizes: [rate, 12, 5], dilation: 1, precision: Precision::F32 };
            let conv = UpsamplingConv::load(&mut Checkpoint::random(&Device::Cpu, DType::F32), "c", shape);
            let conv = conv.unwrap();
            let mut from = Checkpoint::random(&Device::Cpu, DType::F32);
            let weight = from.take("c.weight", &[12, 5, 2 * rate]).unwrap();
            let bias = from.take("c.bias", &[5]).unwrap();
            let lengths = [9, 2, 30];
            let packed = PackedRows::new(&lengths, 1, &Device::Cpu).unwrap();
            let x = Tensor::randn(0f32, 1.0, (packed.rows(), 12), &Device::Cpu).unwrap();
            let x = packed.clear_gaps(&x).unwrap();
            let target = PackedRows::new(&lengths.map(|length| rate * length + 1), 1, &Device::Cpu).unwrap();
            let y = conv.forward(&x, &packed, &target).unwrap();
            for (span, to) in packed.spans().iter().zip(target.spans()) {
                let part = x.narrow(0, span.start, span.len()).unwrap().t().unwrap().unsqueeze(0).unwrap();
                let part = part.contiguous().unwrap();
                let reference = part.conv_transpose1d(&weight, rate / 2, 0, rate, 1, 1).unwrap();
                let reference = reference.squeeze(0).unwrap().t().unwrap().broadcast_add(&bias).unwrap();
                assert!(worst(&y.narrow(0, to.start + 1, to.len() - 1).unwrap(), &reference) < 1e-4);
                let first = y.narrow(0, to.start, 1).unwrap();
                assert_eq!(worst(&first, &y.narrow(0, to.start + 2, 1).unwrap()), 0.0);
            }
        }
    }

    #[test]
    fn a_norm_and_a_convolution_at_8_bits_are_near_those_in_f32_and_each_sequence_alone() {
        let lengths = [30, 7, 100];
        let random =
            |rows: usize, width: usize| Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap();
        let run = |precision: Precision, packed: &PackedRows, x: &[&Tensor; 4], activated: bool| {
            let shape = Conv1dShape { sizes: [7, 40, 24], dilation: 3, precision };
            let mut from = Checkpoint::random(&Device::Cpu, DType::F32);
            let conv = SameConv::load(&mut from, "c", shape, true).unwrap();
            let frequency = Tensor::ones(40, DType::F32, &Device::Cpu).unwrap();
            let snake = NormActivation::Snake { frequency: &frequency, amplitude: &frequency };
            let activation = if activated { snake } else { NormActivation::LeakyRelu(0.2) };
            let norm = InstanceNorm::new(x[1].clone(), x[2].clone());
            conv.forward_normed(x[0], packed, (&norm, activation), Some(x[3])).unwrap()
        };
        let packed = PackedRows::new(&lengths, 9, &Device::Cpu).unwrap();
        let (x, residual) = (random(packed.rows(), 40), random(packed.rows(), 24));
        let (scale, shift) = (random(3, 40), random(3, 40));
        for activated in [false, true] {
            let whole = run(Precision::Q8, &packed, &[&x, &scale, &shift, &residual], activated);
            let exact = run(Precision::F32, &packed, &[&x, &scale, &shift, &residual], activated);
            for (sequence, span) in packed.spans().iter().enumerate() {
                let part = |x: &Tensor| x.narrow(0, span.start, span.len()).unwrap();
                let off = worst(&part(&whole), &part(&exact));
                assert!(off > 0.0 && off < 0.1, "{off}");
                let alone = PackedRows::new(&[span.len()], 9, &Device::Cpu).unwrap();
                let wide = |x: &Tensor| part(x).pad_with_zeros(0, 0, alone.rows() - span.len()).unwrap();
                let [scale, shift] = [&scale, &shift].map(|style| style.narrow(0, sequence, 1).unwrap());
                let own =
                    run(Precision::Q8, &alone, &[&wide(&x), &scale, &shift, &wide(&residual)], activated);
                assert_eq!(worst(&own.narrow(0, 0, span.len()).unwrap(), &part(&whole)), 0.0);
            }
        }
    }

    #[test]
    fn strides_count_within_each_sequence() {
        let shape = Conv1dShape { sizes: [4, 6, 3], dilation: 1, precision: Precision::F32 };
        let mut from = Checkpoint::random(&Device::Cpu, DType::F32);
        let conv = SameConv::load(&mut from, "c", shape, true).unwrap();
        let packed = PackedRows::new(&[21, 41], 0, &Device::Cpu).unwrap();
        let target = PackedRows::new(&[10, 20], 2, &Device::Cpu).unwrap();
        let x = Tensor::randn(0f32, 1.0, (packed.rows(), 6), &Device::Cpu).unwrap();
        let y = conv.forward_strided(&x, &packed, &target, [2, 1]).unwrap();
        let weight = Checkpoint::random(&Device::Cpu, DType::F32).take("c.weight", &[3, 6, 4]).unwrap();
        let bias = Checkpoint::random(&Device::Cpu, DType::F32).take("c.bias", &[3]).unwrap();
        for (span, to) in packed.spans().iter().zip(target.spans()) {
            let part = x.narrow(0, span.start, span.len()).unwrap().t().unwrap().unsqueeze(0).unwrap();
            let reference = part.contiguous().unwrap().conv1d(&weight, 1, 2, 1, 1).unwrap();
            let reference = reference.squeeze(0).unwrap().t().unwrap().broadcast_add(&bias).unwrap();
            assert!(worst(&y.narrow(0, to.start, to.len()).unwrap(), &reference) < 1e-4);
        }
        assert!(conv.forward_strided(&x, &packed, &packed, [2, 1]).is_err());
    }
}
