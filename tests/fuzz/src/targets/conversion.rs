//! Files of weights that are converted when they are pulled: ONNX and CTranslate2.

use std::path::Path;

use candle_core::Device;
use izwi_hub::{ConversionError, fuzzing};
use izwi_nn::checkpoint::Checkpoint;

use crate::{Target, scratch};

pub(super) const ONNX: Target =
    Target { name: "onnx", run: |bytes| run(bytes, fuzzing::convert_onnx), seeds: onnx, max_bytes: 4 << 10 };
pub(super) const CTRANSLATE2: Target = Target {
    name: "ctranslate2",
    run: |bytes| run(bytes, fuzzing::convert_ctranslate2),
    seeds: ctranslate2,
    max_bytes: 4 << 10,
};

/// What is converted can be opened, and is not many times as large as its source.
fn run(bytes: &[u8], convert: fn(&Path, &Path) -> Result<(), ConversionError>) {
    let source = scratch::file("converted/source", bytes);
    let target = scratch::path("converted/model.safetensors");
    match convert(&source, &target) {
        Ok(()) => {
            let size = std::fs::metadata(&target).unwrap().len();
            assert!(size <= 64 * bytes.len() as u64 + 1_000, "{size} bytes of {}", bytes.len());
            Checkpoint::open(&target, &Device::Cpu).expect("a converted file can be opened");
        }
        Err(error) => {
            let length = error.to_string().len();
            assert!(length <= 1_000 + 4 * bytes.len(), "an error of {length} bytes");
        }
    }
}

/// A protobuf field with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend(bytes);
    message
}

fn tensor(name: &str, kind: u8, dims: &[u8], raw: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| [1 << 3, *dim]).collect();
    field(5, &[dims, vec![2 << 3, kind], field(9, raw), field(8, name.as_bytes())].concat())
}

fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let mut message: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    message.extend(field(2, output.as_bytes()));
    message.extend(field(4, op.as_bytes()));
    field(1, &message)
}

/// A quantised linear layer, one in f32, and a named weight.
fn onnx() -> Vec<Vec<u8>> {
    let half = 0.5_f32.to_le_bytes();
    let quantised = [
        tensor("w_q", 3, &[2, 3], &[1, 2, 3, 253, 254, 255]),
        tensor("w_s", 1, &[], &half),
        tensor("w_z", 3, &[1], &[255]),
        tensor("m.attn.in_proj_bias", 1, &[3], &half.repeat(3)),
        node("MatMulInteger", &["x", "w_q", "x_z", "w_z"], "p"),
        node("Cast", &["p"], "c"),
        node("Mul", &["x_s", "w_s"], "s"),
        node("Mul", &["c", "s"], "d"),
        node("Add", &["m.attn.in_proj_bias", "d"], "y"),
    ]
    .concat();
    let plain = [
        tensor("onnx::MatMul_7", 1, &[2, 1], &half.repeat(2)),
        tensor("m.fc.bias", 1, &[1], &half),
        tensor("m.norm.weight", 1, &[2], &half.repeat(2)),
        node("MatMul", &["x", "onnx::MatMul_7"], "p"),
        node("Add", &["p", "m.fc.bias"], "y"),
    ]
    .concat();
    vec![
        field(7, &quantised),
        field(7, &plain),
        [vec![1 << 3, 8], field(7, &[quantised, plain].concat())].concat(),
    ]
}

/// One encoder layer and one decoder layer of two channels.
fn ctranslate2() -> Vec<Vec<u8>> {
    let mut variables: Vec<(String, Vec<u32>)> = Vec::new();
    let mut add = |name: String, shape: &[u32]| variables.push((name, shape.to_vec()));
    for (name, inputs) in [("conv1", 5), ("conv2", 2)] {
        add(format!("encoder/{name}/weight"), &[2, inputs, 3]);
        add(format!("encoder/{name}/bias"), &[2]);
    }
    add("decoder/embeddings/weight".to_owned(), &[7, 2]);
    for side in ["encoder", "decoder"] {
        add(format!("{side}/position_encodings/encodings"), &[4, 2]);
        let layer = format!("{side}/layer_0");
        let mut linears = vec![("self_attention/linear_0", 6, 2), ("self_attention/linear_1", 2, 2)];
        let mut norms = vec!["layer_norm".to_owned(), "layer_0/self_attention/layer_norm".to_owned()];
        linears.extend([("ffn/linear_0", 8, 2), ("ffn/linear_1", 2, 8)]);
        norms.push("layer_0/ffn/layer_norm".to_owned());
        if side == "decoder" {
            linears.extend([
                ("attention/linear_0", 2, 2),
                ("attention/linear_1", 4, 2),
                ("attention/linear_2", 2, 2),
            ]);
            norms.push("layer_0/attention/layer_norm".to_owned());
        }
        for (name, outputs, inputs) in linears {
            add(format!("{layer}/{name}/weight"), &[outputs, inputs]);
            add(format!("{layer}/{name}/bias"), &[outputs]);
        }
        for norm in norms {
            add(format!("{side}/{norm}/gamma"), &[2]);
            add(format!("{side}/{norm}/beta"), &[2]);
        }
    }
    let text = |text: &str| [&(text.len() as u16 + 1).to_le_bytes()[..], text.as_bytes(), &[0]].concat();
    let mut bytes = 6_u32.to_le_bytes().to_vec();
    bytes.extend(text("SpeechSpec"));
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((variables.len() as u32).to_le_bytes());
    for (name, shape) in &variables {
        bytes.extend(text(name));
        bytes.push(shape.len() as u8);
        bytes.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
        let length = shape.iter().product::<u32>() * 2;
        // Half precision, all zeros.
        bytes.push(4);
        bytes.extend(length.to_le_bytes());
        bytes.extend(vec![0; length as usize]);
    }
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(text("decoder/projection/weight"));
    bytes.extend(text("decoder/embeddings/weight"));
    vec![bytes]
}
