//! Linear layers: a row of the result is the same bits whatever other rows there are.
//!
//! Owns how a weight is kept on each device. Knows no layer above it.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};

use crate::Error;
use crate::checkpoint::{Checkpoint, Recipe};
use crate::precision::{device_type, weight_type};
use crate::slices::with_slices;
use izwi_kernels::linear::{Rows, WeightSource, Weights};
use izwi_metal::{Fused, MetalWeights, Pass};
use izwi_types::Precision;

/// `y = x Wᵀ (+ b)`; on the CPU a row of `y` is the same bits for any number of rows of `x` and any other rows.
///
/// On the CPU the weight is packed in a [`Precision`] and read once a call for up to 6 rows; at 8 and 4 bits the rows are
/// quantised to 8 bits too. Metal keeps the same levels and f32 rows. Other devices keep 32 or 16 bits, bf16 for what
/// has fewer, and multiply rows of that type. A clone shares the weight.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>, // [outputs]
    inputs: usize,
    outputs: usize,
}

#[derive(Debug, Clone)]
enum Weight {
    Cpu(Arc<Weights>),
    Metal(MetalWeights),
    Device(Tensor), // [outputs, inputs], in the type of its products
}

impl Weight {
    /// A weight `[outputs, inputs]` as it is kept on `device`.
    fn new(weight: &Tensor, precision: Precision, device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Cpu(Arc::new(pack(weight, precision)?))),
            Device::Metal(device) => Ok(Self::Metal(MetalWeights::new(weight, precision, device)?)),
            device => {
                Ok(Self::Device(weight.to_dtype(device_type(precision))?.contiguous()?.to_device(device)?))
            }
        }
    }
}

impl Linear {
    /// From a weight `[outputs, inputs]` of any floating-point type and a bias `[outputs]`, kept exactly: in 16 bits if
    /// every value is representable there, else in f32.
    ///
    /// # Errors
    /// The device is out of memory, or shapes do not fit.
    pub fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        Self::with_precision(weight, bias, Precision::F32)
    }

    /// As [`Self::new`], the weight kept in `precision`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_precision(weight: &Tensor, bias: Option<Tensor>, precision: Precision) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let weight = Weight::new(weight, precision, weight.device())?;
        let linear = Self { weight, bias: None, inputs, outputs };
        match bias {
            Some(bias) => linear.with_bias(&bias),
            None => Ok(linear),
        }
    }

    /// From a weight `[outputs, inputs]` on the CPU, without bias, kept in `precision` on `device`. It is converted on the
    /// CPU: the device gets one buffer of the final type.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_device(weight: &Tensor, precision: Precision, device: &Device) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        Ok(Self { weight: Weight::new(weight, precision, device)?, bias: None, inputs, outputs })
    }

    /// Takes `{name}.weight` `[outputs, inputs]` and `{name}.bias` `[outputs]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> std::result::Result<Self, Error> {
        Self::load_with_precision(from, name, (inputs, outputs), true, Precision::F32)
    }

    /// As [`Self::load`], the weight kept in `precision`; without `bias`, no `{name}.bias` is taken.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_with_precision(
        from: &mut Checkpoint,
        name: &str,
        (inputs, outputs): (usize, usize),
        bias: bool,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let weight = Self::load_stacked(from, &[(name, outputs)], inputs, precision)?;
        let bias = if bias { Some(from.take(&format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(Self { bias, ..weight })
    }

    /// Takes several weights `{name}.weight` `[outputs, inputs]` without bias and concatenates them along the outputs.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load_stacked(
        from: &mut Checkpoint,
        parts: &[(&str, usize)],
        inputs: usize,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum();
        let parts = parts.iter().map(|(name, outputs)| (format!("{name}.weight"), vec![*outputs, inputs]));
        Self::load_transformed(
            from,
            (&parts.collect::<Vec<_>>(), ""),
            (inputs, outputs),
            precision,
            cat_weights,
        )
    }

    /// Takes tensors of the given names and shapes, which `transform` turns into a weight `[outputs, inputs]` without
    /// bias. `transform_id` names the transform: equal ids must give equal weights, the weight cache relies on it.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], and those of `transform`.
    pub fn load_transformed(
        from: &mut Checkpoint,
        (parts, transform_id): (&[(String, Vec<usize>)], &str),
        (inputs, outputs): (usize, usize),
        precision: Precision,
        transform: impl FnOnce(Vec<Tensor>) -> std::result::Result<Tensor, Error>,
    ) -> std::result::Result<Self, Error> {
        if from.device().is_cpu() {
            let recipe = Recipe { parts, transform_id, precision, sizes: [1, inputs, outputs] };
            let weights = from.take_packed(&recipe, |tensors| Ok(pack(&transform(tensors)?, precision)?))?;
            return Ok(Self { weight: Weight::Cpu(weights), bias: None, inputs, outputs });
        }
        let tensors = parts.iter().map(|(name, shape)| from.take_host(name, shape));
        let weight = transform(tensors.collect::<std::result::Result<_, _>>()?)?;
        Ok(Self::on_device(&weight, precision, from.device())?)
    }

    /// Replaces the bias, `[outputs]`.
    ///
    /// # Errors
    /// The bias has another size.
    pub fn with_bias(self, bias: &Tensor) -> Result<Self> {
        if bias.dims() != [self.outputs] {
            bail!("linear: the bias must have {} elements", self.outputs)
        }
        Ok(Self { bias: Some(bias.to_dtype(DType::F32)?.contiguous()?), ..self })
    }

    /// Bytes of the weight in memory.
    pub fn bytes(&self) -> usize {
        match &self.weight {
            Weight::Cpu(weights) => weights.bytes(),
            Weight::Metal(weights) => weights.bytes(),
            Weight::Device(weight) => weight.elem_count() * weight.dtype().size_in_bytes(),
        }
    }

    /// `[rows, inputs]` f32 to `[rows, outputs]` f32.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, self.bias.as_ref())
    }

    /// The product without the bias, for callers that fuse the bias into the next operation.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn product(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, None)
    }

    /// The weight for kernels on Metal.
    pub(crate) fn on_metal(&self) -> Option<&MetalWeights> {
        match &self.weight {
            Weight::Metal(weights) => Some(weights),
            _ => None,
        }
    }

    /// Outputs of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The bias `[outputs]`, if any.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    fn apply(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        if inputs != self.inputs {
            bail!("linear: {inputs} inputs do not fit a weight of {}", self.inputs)
        }
        match (&self.weight, bias) {
            (Weight::Cpu(weights), None) => self.on_cpu(weights, [x], rows),
            (Weight::Cpu(weights), Some(bias)) => self.on_cpu(weights, [x, bias], rows),
            (Weight::Metal(weights), bias) => {
                let x = if x.stride()[1] == 1 { x.clone() } else { x.contiguous()? };
                Pass::of(&x)?.linear(&x, weights, Fused { bias, ..Fused::default() })
            }
            (Weight::Device(weight), bias) => {
                let y = x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(DType::F32)?;
                if let Some(bias) = bias { y.broadcast_add(bias) } else { Ok(y) }
            }
        }
    }

    /// The CPU kernel; `operands` are the rows and, if any, the bias.
    fn on_cpu<const N: usize>(
        &self,
        weights: &Weights,
        operands: [&Tensor; N],
        rows: usize,
    ) -> Result<Tensor> {
        let y = with_slices(operands, |slices| {
            let x = Rows { data: slices[0], stride: self.inputs, count: rows };
            weights.product_to_vec(x, slices.get(1).copied())
        })?;
        Tensor::from_vec(y, (rows, self.outputs), operands[0].device())
    }

    /// Rows `ids` of the stored weight, dequantised to `[ids, inputs]` f32: the lookup of a tied embedding.
    ///
    /// # Errors
    /// An id is not below the number of outputs.
    pub fn select_rows(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.outputs) {
            bail!("linear: row {id} is out of range for {} outputs", self.outputs)
        }
        match &self.weight {
            Weight::Cpu(weights) => {
                let mut rows = Vec::with_capacity(ids.len() * self.inputs);
                ids.iter().for_each(|&id| weights.push_column(id as usize, &mut rows));
                Tensor::from_vec(rows, (ids.len(), self.inputs), &Device::Cpu)
            }
            Weight::Metal(weights) => weights.lookup(&Tensor::new(ids, weights.device())?),
            Weight::Device(weight) => {
                weight.index_select(&Tensor::new(ids, weight.device())?, 0)?.to_dtype(DType::F32)
            }
        }
    }
}

/// Concatenates weights along their first dimension, at f32 if their types differ.
///
/// # Errors
/// The shapes differ beyond the first dimension.
pub fn cat_weights(mut weights: Vec<Tensor>) -> std::result::Result<Tensor, Error> {
    if weights.iter().any(|weight| weight.dtype() != weights[0].dtype()) {
        weights = weights.iter().map(|weight| weight.to_dtype(DType::F32)).collect::<Result<_>>()?;
    }
    Ok(if weights.len() == 1 { weights.remove(0) } else { Tensor::cat(&weights, 0)? })
}

/// Packs a weight `[outputs, inputs]` of any floating-point type for the CPU kernels.
fn pack(weight: &Tensor, precision: Precision) -> Result<Weights> {
    let (outputs, inputs) = weight.dims2()?;
    let weight = match weight.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => weight.contiguous()?,
        _ => weight.to_dtype(DType::F32)?.contiguous()?,
    };
    let (storage, layout) = weight.storage_and_layout();
    let part = layout.start_offset()..layout.start_offset() + outputs * inputs;
    let source = match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => WeightSource::F32(&values[part]),
        Storage::Cpu(CpuStorage::F16(values)) => WeightSource::F16(&values[part]),
        Storage::Cpu(CpuStorage::BF16(values)) => WeightSource::Bf16(&values[part]),
        _ => bail!("linear: the weight must be a floating-point tensor on the CPU"),
    };
    Ok(Weights::pack(source, inputs, outputs, weight_type(precision)))
}

#[cfg(test)]
mod tests {
    use izwi_kernels::packed::{Packed, PackedKind};
    use proptest::prelude::*;

    use super::*;

    fn random(rows: usize, width: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap()
    }

    fn halved(weight: &Tensor) -> Tensor {
        weight.to_dtype(DType::F16).unwrap()
    }

    const PRECISIONS: [Precision; 5] =
        [Precision::F32, Precision::Bf16, Precision::F16, Precision::Q8, Precision::Q4];

    /// Error relative to the norm of the reference.
    fn error(y: &Tensor, reference: &Tensor) -> f32 {
        let norm = |x: &Tensor| x.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
        norm(&(y - reference).unwrap()) / norm(reference).max(1e-9)
    }

    /// The product with the dequantised weight, and with rows quantised to 8 bits if the kernel does so.
    fn reference(linear: &Linear, x: &Tensor) -> Tensor {
        let ids: Vec<u32> = (0..linear.outputs as u32).collect();
        let kept = linear.select_rows(&ids).unwrap();
        let Weight::Cpu(weights) = &linear.weight else { panic!("on the CPU") };
        let x = match weights.kind() {
            PackedKind::Q8 | PackedKind::Q4 => rounded_to_8_bits(x),
            _ => x.clone(),
        };
        x.matmul(&kept.t().unwrap()).unwrap()
    }

    fn rounded_to_8_bits(x: &Tensor) -> Tensor {
        let mut rows = x.to_vec2::<f32>().unwrap();
        for block in rows.iter_mut().flat_map(|row| row.chunks_mut(32)) {
            let scale = block.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 127.0;
            block.iter_mut().for_each(|x| *x = (*x / scale.max(1e-30)).round_ties_even() * scale);
        }
        Tensor::new(rows, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_device_without_kernels_of_its_own_keeps_the_type_asked_for() {
        let (weight, x) = (random(40, 64), random(3, 64));
        let exact = Linear::new(&weight, None).unwrap().forward(&x).unwrap();
        for (precision, bytes, most) in [
            (Precision::F32, 4, 1e-5),
            (Precision::F16, 2, 2e-3),
            (Precision::Bf16, 2, 1e-2),
            (Precision::Q8, 2, 1e-2),
            (Precision::Q4, 2, 1e-2),
        ] {
            let kept = weight.to_dtype(device_type(precision)).unwrap();
            let linear = Linear { weight: Weight::Device(kept), bias: None, inputs: 64, outputs: 40 };
            assert_eq!(linear.bytes(), bytes * 40 * 64, "{precision}");
            let y = linear.forward(&x).unwrap();
            assert!(y.dtype() == DType::F32 && error(&y, &exact) < most, "{precision}");
            let row = linear.select_rows(&[39]).unwrap();
            assert!(error(&row, &weight.narrow(0, 39, 1).unwrap()) < most, "{precision}");
        }
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_slice_of_hundreds_of_rows() {
        for (inputs, outputs) in [(192, 1), (192, 4), (910, 256), (768, 256), (256, 3005)] {
            let linear = Linear::new(&random(outputs, inputs), None).unwrap();
            let x = random(16 * 40, inputs);
            let whole: Vec<Vec<f32>> = linear.forward(&x).unwrap().to_vec2().unwrap();
            assert_eq!(whole[0].len(), outputs);
            for (start, rows) in [(0, 16), (16, 32), (48, 208), (320, 320)] {
                let part = linear.forward(&x.narrow(0, start, rows).unwrap()).unwrap();
                assert_eq!(part.to_vec2::<f32>().unwrap(), whole[start..start + rows], "{inputs} {outputs}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_row_is_the_same_bits_in_any_batch_and_close_to_candle(
            inputs in 1usize..600,
            outputs in 1usize..700,
            stored in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
            precision in prop::sample::select(PRECISIONS.to_vec()),
            cuts in prop::collection::vec(1usize..18, 1..6),
        ) {
            let weight = random(outputs, inputs).to_dtype(stored).unwrap();
            let bias = Tensor::randn(0f32, 1.0, outputs, &Device::Cpu).unwrap();
            let linear = Linear::with_precision(&weight, Some(bias.clone()), precision).unwrap();
            let x = random(cuts.iter().sum(), inputs);
            let y = linear.forward(&x).unwrap();
            let off = error(&y.broadcast_sub(&bias).unwrap(), &reference(&linear, &x));
            // A value halfway between two levels may round to either.
            let quantised = matches!(precision, Precision::Q8 | Precision::Q4);
            prop_assert!(off < if quantised { 2e-3 } else { 1e-5 }, "{off}");
            let y = y.to_vec2::<f32>().unwrap();
            let mut start = 0;
            for rows in cuts {
                let part = linear.forward(&x.narrow(0, start, rows).unwrap()).unwrap();
                prop_assert_eq!(&part.to_vec2::<f32>().unwrap()[..], &y[start..start + rows]);
                start += rows;
            }
        }
    }

    #[test]
    fn weights_are_exact_at_f32_and_within_the_rounding_error_of_other_precisions() {
        let wide = random(200, 320);
        for (stored, precision, bytes, most) in [
            (DType::F32, Precision::F32, 4.0, 0.0),
            (DType::F16, Precision::F32, 2.0, 0.0),
            (DType::BF16, Precision::F32, 2.0, 0.0),
            (DType::BF16, Precision::Bf16, 2.0, 0.0),
            (DType::F32, Precision::Bf16, 2.0, 2.5e-3),
            (DType::F32, Precision::F16, 2.0, 3e-4),
            (DType::BF16, Precision::Auto, 1.0625, 7e-3),
            (DType::F16, Precision::Q8, 1.0625, 7e-3),
            (DType::F32, Precision::Q4, 0.5625, 9e-2),
        ] {
            let weight = wide.to_dtype(stored).unwrap();
            let linear = Linear::with_precision(&weight, None, precision).unwrap();
            let kept = linear.select_rows(&(0..200).collect::<Vec<_>>()).unwrap();
            let off = error(&kept, &weight.to_dtype(DType::F32).unwrap());
            assert!(off <= most, "{stored:?} {precision}: {off}");
            assert!(linear.bytes() as f64 <= bytes * (256 * 320) as f64, "{stored:?} {precision}");
        }
    }

    #[test]
    fn nan_and_infinity_stay_in_their_row() {
        for precision in PRECISIONS {
            let linear = Linear::with_precision(&random(70, 64), None, precision).unwrap();
            for bad in [f32::NAN, f32::INFINITY] {
                let mut rows = random(3, 64).to_vec2::<f32>().unwrap();
                rows[1][40] = bad;
                let y = linear.forward(&Tensor::new(rows, &Device::Cpu).unwrap()).unwrap();
                let finite = y
                    .to_vec2::<f32>()
                    .unwrap()
                    .iter()
                    .map(|row| row.iter().any(|y| y.is_finite()))
                    .collect::<Vec<_>>();
                assert_eq!(finite, [true, false, true], "{precision} {bad}");
            }
        }
    }

    #[test]
    fn one_to_512_rows_equal_each_row_alone() {
        for precision in PRECISIONS {
            let linear = Linear::with_precision(&random(1000, 640), None, precision).unwrap();
            let x = random(512, 640);
            let whole = linear.forward(&x).unwrap().to_vec2::<f32>().unwrap();
            for rows in (1..=17).chain([48, 49, 230, 511]) {
                let part = linear.forward(&x.narrow(0, 512 - rows, rows).unwrap()).unwrap();
                assert_eq!(part.to_vec2::<f32>().unwrap(), whole[512 - rows..], "{precision} {rows}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        for precision in PRECISIONS {
            let linear = Linear::with_precision(&random(1500, 1024), None, precision).unwrap();
            let x = random(100, 1024);
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| linear.forward(&x).unwrap().to_vec2::<f32>().unwrap())
            };
            assert!(with(1) == with(3), "{precision}");
        }
    }

    #[test]
    fn selected_rows_equal_the_weight() {
        for half in [true, false] {
            let weight = random(130, 37);
            let weight = if half { halved(&weight) } else { weight };
            let rows: Vec<Vec<f32>> = weight.to_dtype(DType::F32).unwrap().to_vec2().unwrap();
            let linear = Linear::new(&weight, None).unwrap();
            let selected = linear.select_rows(&[129, 0, 64, 129]).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(selected, [129, 0, 64, 129].map(|row: usize| rows[row].clone()));
            assert!(linear.select_rows(&[130]).is_err());
            assert!(linear.forward(&random(2, 36)).is_err());
        }
    }
}
