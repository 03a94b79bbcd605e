//! Linear layers for autoregressive decoding: few rows, each the same bits whatever other rows there are.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use super::checkpoint::Checkpoint;
use super::conv::cpu_slice;
use crate::model::ModelError;

/// `y = x Wᵀ (+ b)`; on the CPU a row of `y` is the same bits however many rows `x` has and whatever they hold.
#[derive(Debug, Clone)]
pub struct RowLinear {
    weight: Tensor, // [outputs, inputs]
    bias: Option<Tensor>,
}

impl RowLinear {
    /// From a weight `[outputs, inputs]` of any floating-point type and a bias `[outputs]`. The weight is kept at f16
    /// if every value survives that, else at f32.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        Ok(Self { weight: weight.to_dtype(DType::F32)?.contiguous()?, bias })
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

    /// `[rows, inputs]` f32 to `[rows, outputs]` f32.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = if x.device().is_cpu() {
            let (weight, layout) = self.weight.storage_and_layout();
            let candle_core::Storage::Cpu(weight) = &*weight else {
                bail!("row-linear: weight not on the CPU")
            };
            x.contiguous()?.apply_op1_no_bwd(&Rows { weight: cpu_slice(weight, layout)? })?
        } else {
            x.matmul(&self.weight.t()?)?
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// Rows `ids` of the weight as `[ids, inputs]` f32: an embedding that is tied to the head.
    ///
    /// # Errors
    /// An id is not below the number of outputs.
    pub fn select_rows(&self, ids: &[u32]) -> Result<Tensor> {
        self.weight.index_select(&Tensor::new(ids, self.weight.device())?, 0)
    }
}

struct Rows<'a> {
    weight: &'a [f32],
}

impl CustomOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        "row-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, inputs) = layout.shape().dims2()?;
        let outputs = self.weight.len() / inputs.max(1);
        if inputs == 0 || outputs * inputs != self.weight.len() {
            bail!("row-linear: {rows} rows of {inputs} do not fit a weight of {} elements", self.weight.len())
        }
        let x = cpu_slice(x, layout)?;
        let mut y = Vec::with_capacity(rows * outputs);
        for x in x.chunks_exact(inputs) {
            y.extend(self.weight.chunks_exact(inputs).map(|weight| dot(x, weight)));
        }
        Ok((CpuStorage::F32(y), Shape::from((rows, outputs))))
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_row_is_the_same_bits_in_any_batch() {
        for (inputs, outputs) in [(192, 1), (384, 384), (512, 70)] {
            let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu).unwrap();
            let linear = RowLinear::new(&weight, None).unwrap();
            let x = Tensor::randn(0f32, 1.0, (40, inputs), &Device::Cpu).unwrap();
            let whole: Vec<Vec<f32>> = linear.forward(&x).unwrap().to_vec2().unwrap();
            for rows in 1..=17 {
                let part = linear.forward(&x.narrow(0, rows, rows).unwrap()).unwrap();
                assert_eq!(
                    part.to_vec2::<f32>().unwrap(),
                    whole[rows..2 * rows],
                    "{inputs} {outputs} {rows}"
                );
            }
        }
    }
}
