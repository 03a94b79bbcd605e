//! Linear layers for autoregressive decoding: few rows, each the same bits whatever other rows there are.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};

use super::checkpoint::Checkpoint;
use super::cpu::panels::{Rows, Weights};
use super::precision::Precision;
use super::slices::with_slices;
use crate::model::ModelError;

/// `y = x Wᵀ (+ b)`; on the CPU a row of `y` is the same bits however many rows `x` has and whatever they hold.
///
/// On the CPU the weight is kept at f16 where every value survives that, else at f32, and is read once a call for all
/// rows up to 6. Other devices keep f32 and promise no bits. A copy shares the weight.
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
    /// From a weight `[outputs, inputs]` of any floating-point type and a bias `[outputs]`.
    ///
    /// # Errors
    /// The device has not the memory, or shapes do not fit.
    pub fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if bias.as_ref().is_some_and(|bias| bias.dims() != [outputs]) {
            bail!("row-linear: the bias is not one of {outputs}")
        }
        let weight = weight.to_dtype(DType::F32)?;
        let weight = if weight.device().is_cpu() {
            let pack = |[weight]: [&[f32]; 1]| Weights::pack(weight, inputs, outputs);
            Weight::Cpu(Arc::new(with_slices([&weight], pack)?))
        } else {
            Weight::Device(weight.t()?.contiguous()?)
        };
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)?.contiguous()).transpose()?;
        Ok(Self { weight, bias, inputs, outputs })
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
    ) -> std::result::Result<Self, ModelError> {
        let weight = from.take_stored(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(from.take(&format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(Self::new(&weight, bias)?)
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
    ) -> std::result::Result<Self, ModelError> {
        let weights = parts.iter().map(|(name, outputs)| {
            Ok(from.take_stored(&format!("{name}.weight"), &[*outputs, inputs])?.to_dtype(DType::F32)?)
        });
        let weights = weights.collect::<std::result::Result<Vec<_>, ModelError>>()?;
        Ok(Self::with_precision(&Tensor::cat(&weights, 0)?, None, precision)?)
    }

    /// From a weight `[outputs, inputs]` of any floating-point type and a bias `[outputs]`, the weight kept in
    /// `precision`.
    ///
    /// # Errors
    /// The device has not the memory, or shapes do not fit.
    pub fn with_precision(weight: &Tensor, bias: Option<Tensor>, _precision: Precision) -> Result<Self> {
        Self::new(weight, bias)
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

    /// Rows `ids` of the weight as `[ids, inputs]` f32: an embedding that is tied to the head.
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_row_is_the_same_bits_in_any_batch_and_near_candles(
            inputs in 1usize..600,
            outputs in 1usize..700,
            half in any::<bool>(),
            cuts in prop::collection::vec(1usize..18, 1..6),
        ) {
            let weight = random(outputs, inputs);
            let weight = if half { halved(&weight) } else { weight };
            let bias = Tensor::randn(0f32, 1.0, outputs, &Device::Cpu).unwrap();
            let linear = RowLinear::new(&weight, Some(bias.clone())).unwrap();
            let is_half = matches!(&linear.weight, Weight::Cpu(kept) if matches!(**kept, Weights::Half(_)));
            prop_assert!(is_half || !half);
            let x = random(cuts.iter().sum(), inputs);
            let y = linear.forward(&x).unwrap();
            let wide = weight.to_dtype(DType::F32).unwrap();
            let reference = x.matmul(&wide.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
            let off = (&y - reference).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            prop_assert!(off < 2e-4, "{off}");
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
    fn one_to_512_rows_split_over_threads_are_the_rows_alone() {
        let linear = RowLinear::new(&halved(&random(1000, 640)), None).unwrap();
        let x = random(512, 640);
        let whole = linear.forward(&x).unwrap().to_vec2::<f32>().unwrap();
        for rows in (1..=17).chain([48, 49, 230, 511]) {
            let part = linear.forward(&x.narrow(0, 512 - rows, rows).unwrap()).unwrap();
            assert_eq!(part.to_vec2::<f32>().unwrap(), whole[512 - rows..], "{rows}");
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
