//! Conversion of a small model built here, and of malformed bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::convert;
use super::file::File;
use super::names::named;
use crate::convert::error::ConversionError;

const F32: u8 = 0;
const I8: u8 = 1;
const I16: u8 = 2;
const F16: u8 = 4;

/// (name, shape, data type, data)
type Variable = (String, Vec<u32>, u8, Vec<u8>);

/// A file under construction.
#[derive(Clone)]
struct Model {
    version: u32,
    variables: Vec<Variable>,
    aliases: Vec<(&'static str, &'static str)>,
}

/// Two channels, two encoder layers and one decoder layer; every value of every tensor differs.
fn speech() -> Model {
    let mut model = Model {
        version: 6,
        variables: Vec::new(),
        aliases: vec![("decoder/projection/weight", "decoder/embeddings/weight")],
    };
    for (name, shape) in [("conv1", [2, 5, 3]), ("conv2", [2, 2, 3])] {
        model.add(&format!("encoder/{name}/weight"), &shape);
        model.add(&format!("encoder/{name}/bias"), &[2]);
    }
    model.add("decoder/embeddings/weight", &[7, 2]);
    for side in ["encoder", "decoder"] {
        model.add(&format!("{side}/position_encodings/encodings"), &[4, 2]);
        model.norm(&format!("{side}/layer_norm"));
    }
    for layer in ["encoder/layer_0", "encoder/layer_1", "decoder/layer_0"] {
        model.attention(&format!("{layer}/self_attention"), &[6, 2]);
        if layer.starts_with("decoder") {
            model.attention(&format!("{layer}/attention"), &[2, 4, 2]);
        }
        model.linear(&format!("{layer}/ffn/linear_0"), 8, 2);
        model.linear(&format!("{layer}/ffn/linear_1"), 2, 8);
        model.norm(&format!("{layer}/ffn/layer_norm"));
    }
    model.variables.push(("encoder/num_heads".into(), vec![], I16, vec![1, 0]));
    model
}

impl Model {
    /// Half-precision numbers that count on over the whole model.
    fn add(&mut self, name: &str, shape: &[u32]) {
        let start: usize = self.variables.iter().map(|variable| variable.3.len() / 2).sum();
        let count = shape.iter().product::<u32>() as usize;
        let data = (start..start + count).flat_map(|value| (value as u16).to_le_bytes()).collect();
        self.variables.push((name.into(), shape.to_vec(), F16, data));
    }

    fn linear(&mut self, name: &str, outputs: u32, inputs: u32) {
        self.add(&format!("{name}/weight"), &[outputs, inputs]);
        self.add(&format!("{name}/bias"), &[outputs]);
    }

    fn norm(&mut self, name: &str) {
        self.add(&format!("{name}/gamma"), &[2]);
        self.add(&format!("{name}/beta"), &[2]);
    }

    /// Projections with these many outputs; the bias of keys is zero where they are fused.
    fn attention(&mut self, name: &str, outputs: &[u32]) {
        self.norm(&format!("{name}/layer_norm"));
        for (index, outputs) in outputs.iter().enumerate() {
            self.linear(&format!("{name}/linear_{index}"), *outputs, 2);
            let keys = match outputs {
                6 => 4..8,
                4 => 0..4,
                _ => continue,
            };
            self.data(&format!("{name}/linear_{index}/bias"))[keys].fill(0);
        }
    }

    fn variable(&mut self, name: &str) -> &mut Variable {
        self.variables.iter_mut().find(|variable| variable.0 == name).unwrap()
    }

    fn data(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.variable(name).3
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        push_text(&mut bytes, "SpeechSpec");
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend((self.variables.len() as u32).to_le_bytes());
        for (name, shape, kind, data) in &self.variables {
            push_text(&mut bytes, name);
            bytes.push(shape.len() as u8);
            bytes.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.push(*kind);
            bytes.extend((data.len() as u32).to_le_bytes());
            bytes.extend(data);
        }
        bytes.extend((self.aliases.len() as u32).to_le_bytes());
        for (alias, variable) in &self.aliases {
            push_text(&mut bytes, alias);
            push_text(&mut bytes, variable);
        }
        bytes
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u16 + 1).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn converted(model: &[u8]) -> Result<Tensors, ConversionError> {
    let folder = tempfile::tempdir().unwrap();
    let [source, target] = ["model.bin", "model.safetensors"].map(|name| folder.path().join(name));
    std::fs::write(&source, model).unwrap();
    convert(&source, &target)?;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    let bytes = std::fs::read(&target).unwrap();
    let entry = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    Ok(SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter().map(entry).collect())
}

/// The conversion without the disk.
fn read(model: &[u8]) -> Result<BTreeSet<String>, ConversionError> {
    Ok(named(File::parse(model)?)?.into_keys().collect())
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Model), reason: &str) {
    let mut model = speech();
    change(&mut model);
    let error = converted(&model.bytes()).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn the_set_of_names() {
    let attention = |layer: &str, name: &str| {
        ["q_proj.weight", "q_proj.bias", "k_proj.weight", "v_proj.weight", "v_proj.bias", "out_proj.weight"]
            .into_iter()
            .chain(["out_proj.bias"])
            .map(|part| format!("model.{layer}.{name}.{part}"))
            .chain(["weight", "bias"].map(|part| format!("model.{layer}.{name}_layer_norm.{part}")))
            .collect::<Vec<_>>()
    };
    let both = |names: &[&str]| {
        names.iter().flat_map(|name| ["weight", "bias"].map(|part| format!("model.{name}.{part}"))).collect()
    };
    let mut expected: BTreeSet<String> =
        both(&["encoder.conv1", "encoder.conv2", "encoder.layer_norm", "decoder.layer_norm"]);
    for layer in ["encoder.layers.0", "encoder.layers.1", "decoder.layers.0"] {
        expected.extend(attention(layer, "self_attn"));
        let parts = ["fc1", "fc2", "final_layer_norm"].map(|part| format!("{layer}.{part}"));
        expected.extend(both(&parts.each_ref().map(String::as_str)));
    }
    expected.extend(attention("decoder.layers.0", "encoder_attn"));
    expected.extend(
        ["encoder.embed_positions", "decoder.embed_positions", "decoder.embed_tokens"]
            .map(|name| format!("model.{name}.weight")),
    );
    let found: BTreeSet<String> = converted(&speech().bytes()).unwrap().into_keys().collect();
    assert_eq!(found, expected);
}

#[test]
fn fused_projections_are_cut_and_bits_are_kept() {
    let mut model = speech();
    let tensors = converted(&model.bytes()).unwrap();
    let weight = model.data("encoder/layer_1/self_attention/linear_0/weight").clone();
    for (part, rows) in ["q", "k", "v"].into_iter().zip(weight.chunks_exact(8)) {
        let name = format!("model.encoder.layers.1.self_attn.{part}_proj.weight");
        assert_eq!(tensors[&name], (Dtype::F16, vec![2, 2], rows.to_vec()), "{name}");
    }
    let bias = model.data("decoder/layer_0/attention/linear_1/bias").clone();
    assert_eq!(
        tensors["model.decoder.layers.0.encoder_attn.v_proj.bias"],
        (Dtype::F16, vec![2], bias[4..].to_vec())
    );
    let convolution = model.data("encoder/conv1/weight").clone();
    assert_eq!(tensors["model.encoder.conv1.weight"], (Dtype::F16, vec![2, 5, 3], convolution));
}

#[test]
fn single_precision_stays_single_and_a_negative_zero_is_zero() {
    let mut model = speech();
    let values: Vec<u8> = (0..14).flat_map(|value| (value as f32 / 3.0).to_le_bytes()).collect();
    *model.variable("decoder/embeddings/weight") =
        ("decoder/embeddings/weight".into(), vec![7, 2], F32, values.clone());
    model.data("encoder/layer_0/self_attention/linear_0/bias")[5] = 0x80;
    let tensors = converted(&model.bytes()).unwrap();
    assert_eq!(tensors["model.decoder.embed_tokens.weight"], (Dtype::F32, vec![7, 2], values));
}

#[test]
fn what_no_rule_covers_is_refused_by_name() {
    let (query, fused) = ("decoder/layer_0/attention/linear_0/weight", "decoder/layer_0/attention/linear_1");
    refused(|m| m.version = 5, "version 5, only 6 is read");
    refused(
        |m| *m.variable(query) = (query.into(), vec![2, 2], I8, vec![1; 4]),
        "'decoder/layer_0/attention/linear_0/weight' is int8, only float16 and float32",
    );
    refused(|m| m.variable(query).2 = 9, "linear_0/weight' has data type 9");
    refused(
        |m| m.variables.retain(|v| v.0 != query),
        "there is no 'decoder/layer_0/attention/linear_0/weight'",
    );
    refused(|m| m.variables.retain(|v| !v.0.contains("encoder/layer_0/")), "the encoder has no layer");
    refused(|m| m.variables.retain(|v| !v.0.contains("conv2")), "there is no 'encoder/conv2/weight'");
    refused(|m| m.add("decoder/layer_0/gate/weight", &[2]), "no rule names 'decoder/layer_0/gate/weight'");
    refused(|m| m.add("decoder/layer_2/gate/weight", &[2]), "no rule names 'decoder/layer_2/gate/weight'");
    refused(|m| m.aliases.clear(), "is not another name of 'decoder/embeddings/weight'");
    refused(|m| m.data(&format!("{fused}/bias"))[0] = 1, "linear_1/bias' is not zero for keys");
    refused(|m| m.variable(&format!("{fused}/weight")).1 = vec![8], "cannot be split into 2");
    refused(|m| m.variable(&format!("{fused}/weight")).1 = vec![1, 8], "cannot be split into 2");
    refused(|m| m.variable(&format!("{fused}/weight")).1 = vec![2, 4], "different lengths");
    refused(
        |m| *m.variable(&format!("{fused}/weight")) = (format!("{fused}/weight"), vec![4, 0], F16, vec![]),
        "cannot be split into 2",
    );
}

#[test]
fn contradictions_are_malformed() {
    let bias = "encoder/conv1/bias";
    refused(|m| m.variable(bias).1 = vec![3], "has 4 bytes for float16 of the shape [3]");
    refused(|m| m.variable(bias).1 = vec![u32::MAX; 255], "has 4 bytes for float16 of the shape");
    refused(|m| m.add(bias, &[2]), "two variables are named 'encoder/conv1/bias'");
    refused(|m| m.aliases.push(m.aliases[0]), "the name 'decoder/projection/weight' is given twice");
    let mut longer = speech().bytes();
    longer.push(0);
    assert!(converted(&longer).unwrap_err().to_string().contains("1 bytes follow its end"));
}

#[test]
fn counts_beyond_the_file_are_refused() {
    let bytes = speech().bytes();
    let count_at = 4 + 2 + "SpeechSpec".len() + 1 + 4;
    let mut many = bytes.clone();
    many[count_at..count_at + 4].fill(0xff);
    assert!(read(&many).is_err());
    let mut large = bytes;
    let name_at = count_at + 4;
    large[name_at..name_at + 2].fill(0xff);
    assert!(matches!(read(&large), Err(ConversionError::Malformed(_))));
}

#[test]
fn every_truncated_file_is_refused() {
    let bytes = speech().bytes();
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn an_unreadable_source_names_its_path() {
    let error = convert(Path::new("/nowhere/model.bin"), Path::new("/nowhere/b")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/model.bin");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let headed = [&6_u32.to_le_bytes()[..], &bytes].concat();
        let _ = read(&headed);
    }

    #[test]
    fn a_damaged_model_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut model = speech().bytes();
        for (index, byte) in changes {
            let at = index.index(model.len());
            model[at] = byte;
        }
        let _ = read(&model);
    }
}
