//! Linear layers for autoregressive decoding: few rows, each the same bits whatever other rows there are.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};

use super::checkpoint::{Checkpoint, Recipe};
use super::precision::weight_type;
use super::slices::with_slices;
use crate::Error;
use izwi_kernels::linear::{Rows, WeightSource, Weights};
use izwi_types::Precision;

/// `y = x Wᵀ (+ b)`; on the CPU a row of `y` is the same bits however many rows `x` has and whatever they hold.
///
/// On the CPU the weight is kept in a [`Precision`] and read once a call for all rows up to 6; at 8 and 4 bits the rows
/// are brought to 8 bits too. Other devices keep f32, whatever the precision, and promise no bits. A copy shares the
/// weight.
#[derive(Debug, Clone)]
pub struct RowLinear {
    weight: Weight,
    bias: Option<Tensor>, // [outputs]
    inputs: usize,
    outputs: usize,
}

#[derive(Debug, Clone)]
enum Weight {
    Cpu(Arc<Weights>),
    Device(Tensor), // [inputs, outputs]
}

impl RowLinear {
    /// From a weight `[outputs, inputs]` of any floating-point type and a bias `[outputs]`, kept exactly: in 16 bits
    /// where every value survives that, else at f32.
    ///
    /// # Errors
    /// The device has not the memory, or shapes do not fit.
    pub fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        Self::with_precision(weight, bias, Precision::F32)
    }

    /// As [`Self::new`], the weight kept in `precision`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_precision(weight: &Tensor, bias: Option<Tensor>, precision: Precision) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let weight = if weight.device().is_cpu() {
            Weight::Cpu(Arc::new(pack(weight, precision)?))
        } else {
            Weight::Device(weight.to_dtype(DType::F32)?.t()?.contiguous()?)
        };
        let linear = Self { weight, bias: None, inputs, outputs };
        match bias {
            Some(bias) => linear.with_bias(&bias),
            None => Ok(linear),
        }
    }

    /// Takes `{name}.weight` `[outputs, inputs]` and, with `bias`, `{name}.bias` `[outputs]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> std::result::Result<Self, Error> {
        Self::load_with_precision(from, name, (inputs, outputs), bias, Precision::F32)
    }

    /// As [`Self::load`], the weight kept in `precision`; `shape` is inputs and outputs.
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

    /// Takes several weights `{name}.weight` `[outputs, inputs]` without bias and stacks them: a row of the answer is
    /// theirs, one after another.
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
        Self::load_made(from, (&parts.collect::<Vec<_>>(), ""), (inputs, outputs), precision, stacked)
    }

    /// Takes tensors of the given names and shapes, of which `make` makes a weight `[outputs, inputs]`; `way` says what
    /// it does, in words that are others wherever the outcome is. Without bias.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], and those of `make`.
    pub fn load_made(
        from: &mut Checkpoint,
        (parts, way): (&[(String, Vec<usize>)], &str),
        (inputs, outputs): (usize, usize),
        precision: Precision,
        make: impl FnOnce(Vec<Tensor>) -> std::result::Result<Tensor, Error>,
    ) -> std::result::Result<Self, Error> {
        if from.device().is_cpu() {
            let recipe = Recipe { parts, way, precision, sizes: [1, inputs, outputs] };
            let weights = from.take_packed(&recipe, |tensors| Ok(pack(&make(tensors)?, precision)?))?;
            return Ok(Self { weight: Weight::Cpu(weights), bias: None, inputs, outputs });
        }
        let tensors = parts.iter().map(|(name, shape)| from.take_stored(name, shape));
        let weight = make(tensors.collect::<std::result::Result<_, _>>()?)?;
        Ok(Self::with_precision(&weight, None, precision)?)
    }

    /// With a bias `[outputs]`.
    ///
    /// # Errors
    /// It is of another size.
    pub fn with_bias(self, bias: &Tensor) -> Result<Self> {
        if bias.dims() != [self.outputs] {
            bail!("row-linear: the bias is not one of {}", self.outputs)
        }
        Ok(Self { bias: Some(bias.to_dtype(DType::F32)?.contiguous()?), ..self })
    }

    /// Bytes of the weight in memory.
    pub fn bytes(&self) -> usize {
        match &self.weight {
            Weight::Cpu(weights) => weights.bytes(),
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

    /// The product without the bias, for callers that fuse the bias with what follows.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn product(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, None)
    }

    /// The bias `[outputs]`, where there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    fn apply(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        if inputs != self.inputs {
            bail!("row-linear: rows of {inputs} for a weight of {}", self.inputs)
        }
        match (&self.weight, bias) {
            (Weight::Cpu(weights), None) => self.on_cpu(weights, [x], rows),
            (Weight::Cpu(weights), Some(bias)) => self.on_cpu(weights, [x, bias], rows),
            (Weight::Device(weight), None) => x.matmul(weight),
            (Weight::Device(weight), Some(bias)) => x.matmul(weight)?.broadcast_add(bias),
        }
    }

    /// The CPU's kernel; `operands` are the rows and perhaps the bias.
    fn on_cpu<const N: usize>(
        &self,
        weights: &Weights,
        operands: [&Tensor; N],
        rows: usize,
    ) -> Result<Tensor> {
        let y = with_slices(operands, |slices| {
            let mut y = vec![0f32; rows * self.outputs];
            let x = Rows { data: slices[0], stride: self.inputs, count: rows };
            weights.product(x, slices.get(1).copied(), &mut y);
            y
        })?;
        Tensor::from_vec(y, (rows, self.outputs), operands[0].device())
    }

    /// Rows `ids` of the weight as it is kept, `[ids, inputs]` f32: an embedding that is tied to the head.
    ///
    /// # Errors
    /// An id is not below the number of outputs.
    pub fn select_rows(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.outputs) {
            bail!("row-linear: row {id} of {}", self.outputs)
        }
        match &self.weight {
            Weight::Cpu(weights) => {
                let mut rows = Vec::with_capacity(ids.len() * self.inputs);
                ids.iter().for_each(|&id| weights.push_column(id as usize, &mut rows));
                Tensor::from_vec(rows, (ids.len(), self.inputs), &Device::Cpu)
            }
            Weight::Device(weight) => {
                weight.index_select(&Tensor::new(ids, weight.device())?, 1)?.t()?.contiguous()
            }
        }
    }
}

/// Weights one under another, at f32 where their types differ.
pub fn stacked(mut weights: Vec<Tensor>) -> std::result::Result<Tensor, Error> {
    if weights.iter().any(|weight| weight.dtype() != weights[0].dtype()) {
        weights = weights.iter().map(|weight| weight.to_dtype(DType::F32)).collect::<Result<_>>()?;
    }
    Ok(if weights.len() == 1 { weights.remove(0) } else { Tensor::cat(&weights, 0)? })
}

/// A weight `[outputs, inputs]` on the CPU for its kernels, out of the type it is stored in.
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
        _ => bail!("row-linear: a weight of floating-point type on the CPU is needed here"),
    };
    Ok(Weights::pack(source, inputs, outputs, weight_type(precision)))
}

#[cfg(test)]
mod tests {
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

    /// The error of a result relative to its own size.
    fn error(y: &Tensor, reference: &Tensor) -> f32 {
        let norm = |x: &Tensor| x.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
        norm(&(y - reference).unwrap()) / norm(reference).max(1e-9)
    }

    /// The product with the weight that is really kept, and with rows at 8 bits where they are.
    fn reference(linear: &RowLinear, x: &Tensor) -> Tensor {
        let ids: Vec<u32> = (0..linear.outputs as u32).collect();
        let kept = linear.select_rows(&ids).unwrap();
        let Weight::Cpu(weights) = &linear.weight else { panic!("on the CPU") };
        let x = match **weights {
            Weights::Q8(_) | Weights::Q4(_) => at_eight_bits(x),
            _ => x.clone(),
        };
        x.matmul(&kept.t().unwrap()).unwrap()
    }

    fn at_eight_bits(x: &Tensor) -> Tensor {
        let mut rows = x.to_vec2::<f32>().unwrap();
        for block in rows.iter_mut().flat_map(|row| row.chunks_mut(32)) {
            let scale = block.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 127.0;
            block.iter_mut().for_each(|x| *x = (*x / scale.max(1e-30)).round_ties_even() * scale);
        }
        Tensor::new(rows, &Device::Cpu).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_row_is_the_same_bits_in_any_batch_and_near_candles(
            inputs in 1usize..600,
            outputs in 1usize..700,
            stored in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
            precision in prop::sample::select(PRECISIONS.to_vec()),
            cuts in prop::collection::vec(1usize..18, 1..6),
        ) {
            let weight = random(outputs, inputs).to_dtype(stored).unwrap();
            let bias = Tensor::randn(0f32, 1.0, outputs, &Device::Cpu).unwrap();
            let linear = RowLinear::with_precision(&weight, Some(bias.clone()), precision).unwrap();
            let x = random(cuts.iter().sum(), inputs);
            let y = linear.forward(&x).unwrap();
            let off = error(&y.broadcast_sub(&bias).unwrap(), &reference(&linear, &x));
            // A value that lies between two levels may be rounded to either here.
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
    fn a_weight_is_kept_exactly_where_asked_and_within_its_error_elsewhere() {
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
            let linear = RowLinear::with_precision(&weight, None, precision).unwrap();
            let kept = linear.select_rows(&(0..200).collect::<Vec<_>>()).unwrap();
            let off = error(&kept, &weight.to_dtype(DType::F32).unwrap());
            assert!(off <= most, "{stored:?} {precision}: {off}");
            assert!(linear.bytes() as f64 <= bytes * (256 * 320) as f64, "{stored:?} {precision}");
        }
    }

    #[test]
    fn what_is_no_number_shows_in_its_row_alone() {
        for precision in PRECISIONS {
            let linear = RowLinear::with_precision(&random(70, 64), None, precision).unwrap();
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
    fn one_to_512_rows_split_over_threads_are_the_rows_alone() {
        for precision in PRECISIONS {
            let linear = RowLinear::with_precision(&random(1000, 640), None, precision).unwrap();
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
            let linear = RowLinear::with_precision(&random(1500, 1024), None, precision).unwrap();
            let x = random(100, 1024);
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| linear.forward(&x).unwrap().to_vec2::<f32>().unwrap())
            };
            assert!(with(1) == with(3), "{precision}");
        }
    }

    #[test]
    fn selected_rows_are_the_weights_own() {
        for half in [true, false] {
            let weight = random(130, 37);
            let weight = if half { halved(&weight) } else { weight };
            let rows: Vec<Vec<f32>> = weight.to_dtype(DType::F32).unwrap().to_vec2().unwrap();
            let linear = RowLinear::new(&weight, None).unwrap();
            let selected = linear.select_rows(&[129, 0, 64, 129]).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(selected, [129, 0, 64, 129].map(|row: usize| rows[row].clone()));
            assert!(linear.select_rows(&[130]).is_err());
            assert!(linear.forward(&random(2, 36)).is_err());
        }
    }
}
