//! Linear layers of the same rows: one product on Metal, one product each elsewhere. Knows no layer above them.

use candle_core::{DType, Result, Tensor};

use super::{Fused, Linear, Norm};
use crate::Error;
use crate::checkpoint::Checkpoint;
use izwi_types::Precision;

/// One of the layers.
#[derive(Debug, Clone, Copy)]
pub struct JointPart<'a> {
    /// The name of its weight and bias, without `.weight`.
    pub name: &'a str,
    /// Its outputs.
    pub outputs: usize,
    /// Whether it has a bias.
    pub has_bias: bool,
}

/// Several [`Linear`] layers.
#[derive(Debug, Clone)]
pub struct JointLinear {
    kept: Kept,
    outputs: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Kept {
    /// The outputs of all layers side by side.
    Joint(Linear),
    Parts(Vec<Linear>),
}

/// The results of the layers, `[rows, outputs]` each.
#[derive(Debug)]
pub struct JointRows {
    /// Of each layer; views of `joint` where there is one.
    pub parts: Vec<Tensor>,
    /// Side by side, if they were computed together on Metal.
    pub joint: Option<Tensor>,
}

impl JointLinear {
    /// Takes the layers of `inputs` inputs, the weights kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        parts: &[JointPart<'_>],
        inputs: usize,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let outputs = parts.iter().map(|part| part.outputs).collect();
        if !from.device().is_metal() {
            let parts = parts.iter().map(|part| {
                let sizes = (inputs, part.outputs);
                Linear::load_with_precision(from, part.name, sizes, part.has_bias, precision)
            });
            return Ok(Self { kept: Kept::Parts(parts.collect::<std::result::Result<_, _>>()?), outputs });
        }
        let names: Vec<_> = parts.iter().map(|part| (part.name, part.outputs)).collect();
        let joint = Linear::load_stacked(from, &names, inputs, precision)?;
        if !parts.iter().any(|part| part.has_bias) {
            return Ok(Self { kept: Kept::Joint(joint), outputs });
        }
        let biases = parts.iter().map(|part| match part.has_bias {
            true => from.take(&format!("{}.bias", part.name), &[part.outputs]),
            false => Ok(Tensor::zeros(part.outputs, DType::F32, from.device())?),
        });
        let biases = biases.collect::<std::result::Result<Vec<_>, Error>>()?;
        Ok(Self { kept: Kept::Joint(joint.with_bias(&Tensor::cat(&biases, 0)?)?), outputs })
    }

    /// From one layer whose outputs are those of `parts` layers of equal size.
    pub fn stacked(linear: Linear, parts: usize) -> Self {
        let outputs = vec![linear.outputs() / parts.max(1); parts];
        Self { kept: Kept::Joint(linear), outputs }
    }

    /// The results for `x` `[rows, inputs]` f32, normalised first.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, norm: Option<Norm<'_>>) -> Result<JointRows> {
        match &self.kept {
            Kept::Joint(linear) => {
                let joint = linear.forward_fused(x, Fused { norm, ..Fused::default() })?;
                let mut start = 0;
                let parts = self.outputs.iter().map(|&outputs| {
                    start += outputs;
                    let part = joint.narrow(1, start - outputs, outputs)?;
                    if joint.device().is_metal() { Ok(part) } else { part.contiguous() }
                });
                let parts = parts.collect::<Result<_>>()?;
                Ok(JointRows { parts, joint: Some(joint).filter(|joint| joint.device().is_metal()) })
            }
            Kept::Parts(parts) => {
                let normed = norm.map(|norm| norm.forward(x)).transpose()?;
                let x = normed.as_ref().unwrap_or(x);
                let parts = parts.iter().map(|part| part.forward(x)).collect::<Result<_>>()?;
                Ok(JointRows { parts, joint: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::layers::LayerNorm;

    #[test]
    fn parts_and_one_stacked_layer_give_the_same_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        let (a, b, bias) = (random(&[20, 40]), random(&[20, 40]), random(&[20]));
        let (scale, shift) = (random(&[40]), random(&[40]));
        let tensors =
            [("a.weight", &a), ("b.weight", &b), ("b.bias", &bias), ("n.weight", &scale), ("n.bias", &shift)];
        let tensors: std::collections::HashMap<_, _> =
            tensors.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone())).collect();
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let mut from = Checkpoint::open(&path, &Device::Cpu).unwrap();
        let part = |name, has_bias| JointPart { name, outputs: 20, has_bias };
        let parts = [part("a", false), part("b", true)];
        let joint = JointLinear::load(&mut from, &parts, 40, Precision::F32).unwrap();
        let norm = LayerNorm::load(&mut from, "n", 40).unwrap();
        let zeros = Tensor::zeros(20, DType::F32, &Device::Cpu).unwrap();
        let biases = Tensor::cat(&[&zeros, &bias], 0).unwrap();
        let stacked = Linear::new(&Tensor::cat(&[a, b], 0).unwrap(), Some(biases)).unwrap();
        let stacked = JointLinear::stacked(stacked, 2);
        let x = random(&[3, 40]);
        let rows = |of: &JointLinear| {
            let rows = of.forward(&x, Some(Norm::Layer(&norm))).unwrap();
            rows.parts.iter().map(|part| part.to_vec2::<f32>().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(rows(&joint), rows(&stacked));
    }
}
