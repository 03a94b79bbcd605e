//! The rules that rename variables to tensors of the transformers library.
//!
//! CTranslate2 fuses the projections of an attention with the same input: queries, keys and values of self-attention,
//! keys and values of cross-attention. Their rows are stacked; the rules split them. Keys have no bias in the network;
//! the fused bias is zero there. A variable without a rule is an error, unless it is a single number, which is a
//! setting.

use std::collections::BTreeMap;

use super::file::{File, Kind, Variable};
use crate::convert::error::ConversionError;

/// Variables and tensors of one layer, each with a weight and a bias.
const LINEAR: &[(&str, &str)] =
    &[("self_attention/linear_1", "self_attn.out_proj"), ("ffn/linear_0", "fc1"), ("ffn/linear_1", "fc2")];
const NORMS: &[(&str, &str)] =
    &[("self_attention/layer_norm", "self_attn_layer_norm"), ("ffn/layer_norm", "final_layer_norm")];
/// Cross-attention of decoder layers.
const CROSS_LINEAR: &[(&str, &str)] =
    &[("attention/linear_0", "encoder_attn.q_proj"), ("attention/linear_2", "encoder_attn.out_proj")];
const CROSS_NORMS: &[(&str, &str)] = &[("attention/layer_norm", "encoder_attn_layer_norm")];

/// The output head, tied to the embeddings.
const HEAD: &str = "decoder/projection/weight";
const EMBEDDINGS: &str = "decoder/embeddings/weight";

/// All tensors of a file.
pub(super) fn named(file: File<'_>) -> Result<BTreeMap<String, Variable<'_>>, ConversionError> {
    let head = file.aliases.get(HEAD);
    if head != Some(&EMBEDDINGS) {
        return Err(ConversionError::Unsupported(format!("'{HEAD}' is not another name of '{EMBEDDINGS}'")));
    }
    let mut rules = Rules { left: file.variables, tensors: BTreeMap::new() };
    for convolution in ["conv1", "conv2"] {
        rules.affine(&format!("encoder/{convolution}"), &format!("encoder.{convolution}"))?;
    }
    rules.rename(EMBEDDINGS, "decoder.embed_tokens.weight")?;
    for side in ["encoder", "decoder"] {
        let positions = format!("{side}/position_encodings/encodings");
        rules.rename(&positions, &format!("{side}.embed_positions.weight"))?;
        rules.norm(&format!("{side}/layer_norm"), &format!("{side}.layer_norm"))?;
        rules.layers(side)?;
    }
    rules.finish()
}

struct Rules<'a> {
    /// Variables that no rule has used yet.
    left: BTreeMap<&'a str, Variable<'a>>,
    tensors: BTreeMap<String, Variable<'a>>,
}

impl<'a> Rules<'a> {
    fn layers(&mut self, side: &str) -> Result<(), ConversionError> {
        let mut index = 0;
        while self.has_layer(side, index) {
            let (from, to) = (format!("{side}/layer_{index}"), format!("{side}.layers.{index}"));
            self.fused(
                &format!("{from}/self_attention/linear_0"),
                &format!("{to}.self_attn"),
                &["q", "k", "v"],
            )?;
            let (mut linear, mut norms) = (LINEAR.to_vec(), NORMS.to_vec());
            if side == "decoder" {
                self.fused(
                    &format!("{from}/attention/linear_1"),
                    &format!("{to}.encoder_attn"),
                    &["k", "v"],
                )?;
                linear.extend(CROSS_LINEAR);
                norms.extend(CROSS_NORMS);
            }
            for (variable, tensor) in linear {
                self.affine(&format!("{from}/{variable}"), &format!("{to}.{tensor}"))?;
            }
            for (variable, tensor) in norms {
                self.norm(&format!("{from}/{variable}"), &format!("{to}.{tensor}"))?;
            }
            index += 1;
        }
        if index == 0 {
            return Err(ConversionError::Unsupported(format!("the {side} has no layer")));
        }
        Ok(())
    }

    fn has_layer(&self, side: &str, index: usize) -> bool {
        let prefix = format!("{side}/layer_{index}/");
        self.left.range(prefix.as_str()..).next().is_some_and(|(name, _)| name.starts_with(&prefix))
    }

    fn affine(&mut self, from: &str, to: &str) -> Result<(), ConversionError> {
        self.rename(&format!("{from}/weight"), &format!("{to}.weight"))?;
        self.rename(&format!("{from}/bias"), &format!("{to}.bias"))
    }

    fn norm(&mut self, from: &str, to: &str) -> Result<(), ConversionError> {
        self.rename(&format!("{from}/gamma"), &format!("{to}.weight"))?;
        self.rename(&format!("{from}/beta"), &format!("{to}.bias"))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), ConversionError> {
        let variable = self.take(from)?;
        self.insert(to, variable);
        Ok(())
    }

    /// Splits a fused projection into one for each of `parts`.
    fn fused(&mut self, from: &str, to: &str, parts: &[&str]) -> Result<(), ConversionError> {
        let weights = self.split(&format!("{from}/weight"), 2, parts)?;
        let biases = self.split(&format!("{from}/bias"), 1, parts)?;
        for ((part, weight), bias) in parts.iter().zip(weights).zip(biases) {
            if weight.shape.first() != bias.shape.first() {
                let reason = format!("'{from}' has weights and biases of different lengths");
                return Err(ConversionError::Unsupported(reason));
            }
            self.insert(&format!("{to}.{part}_proj.weight"), weight);
            if *part != "k" {
                self.insert(&format!("{to}.{part}_proj.bias"), bias);
            } else if !is_zero(&bias) {
                return Err(ConversionError::Unsupported(format!("'{from}/bias' is not zero for keys")));
            }
        }
        Ok(())
    }

    /// Equal parts of a variable along its first axis.
    fn split(
        &mut self,
        name: &str,
        rank: usize,
        parts: &[&str],
    ) -> Result<impl Iterator<Item = Variable<'a>> + use<'a>, ConversionError> {
        let Variable { kind, mut shape, data } = self.take(name)?;
        let count = parts.len();
        match shape.first_mut() {
            Some(rows) if *rows > 0 && rows.is_multiple_of(count) => *rows /= count,
            _ => return Err(indivisible(name, count, &shape)),
        }
        let bytes = data.len() / count;
        if shape.len() != rank || bytes == 0 {
            return Err(indivisible(name, count, &shape));
        }
        Ok(data.chunks_exact(bytes).map(move |data| Variable { kind, shape: shape.clone(), data }))
    }

    fn take(&mut self, name: &str) -> Result<Variable<'a>, ConversionError> {
        let variable = self.left.remove(name);
        let variable =
            variable.ok_or_else(|| ConversionError::Unsupported(format!("there is no '{name}'")))?;
        match variable.kind {
            Kind::F16 | Kind::F32 => Ok(variable),
            kind => Err(ConversionError::Unsupported(format!(
                "'{name}' is {kind}, only float16 and float32 are converted"
            ))),
        }
    }

    fn insert(&mut self, name: &str, tensor: Variable<'a>) {
        self.tensors.insert(format!("model.{name}"), tensor);
    }

    fn finish(self) -> Result<BTreeMap<String, Variable<'a>>, ConversionError> {
        match self.left.iter().find(|(_, variable)| !variable.shape.is_empty()) {
            None => Ok(self.tensors),
            Some((name, _)) => Err(ConversionError::Unsupported(format!("no rule names '{name}'"))),
        }
    }
}

fn indivisible(name: &str, count: usize, shape: &[usize]) -> ConversionError {
    ConversionError::Unsupported(format!("'{name}' of the shape {shape:?} cannot be split into {count}"))
}

/// Whether every value is zero, of either sign.
fn is_zero(variable: &Variable<'_>) -> bool {
    variable.data.chunks_exact(variable.kind.bytes()).all(|value| match value.split_last() {
        Some((last, rest)) => last & 0x7f == 0 && rest.iter().all(|byte| *byte == 0),
        None => true,
    })
}
