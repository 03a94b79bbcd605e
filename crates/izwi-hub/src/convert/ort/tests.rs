//! Conversion of files as ONNX Runtime lays them out, and of malformed bytes.

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

/// What a field of a table holds.
enum Value {
    Number(i32),
    /// Elements and their number.
    Bytes(Vec<u8>, usize),
    Table(Vec<(usize, Value)>),
    List(Vec<Value>),
}

fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec(), text.len())
}

/// Appends a value, which offsets lead to; its place.
fn append(out: &mut Vec<u8>, value: &Value) -> usize {
    let link = |out: &mut Vec<u8>, from: usize, value: &Value| {
        let distance = (append(out, value) - from) as u32;
        out[from..from + 4].copy_from_slice(&distance.to_le_bytes());
    };
    match value {
        Value::Number(_) => unreachable!("a number is inside its table"),
        Value::Bytes(bytes, count) => {
            let place = out.len();
            out.extend((*count as u32).to_le_bytes());
            out.extend(bytes);
            place
        }
        Value::List(values) => {
            let place = out.len();
            out.extend((values.len() as u32).to_le_bytes());
            out.resize(place + 4 + 4 * values.len(), 0);
            for (index, value) in values.iter().enumerate() {
                link(out, place + 4 + 4 * index, value);
            }
            place
        }
        Value::Table(fields) => {
            let count = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
            let mut offsets = vec![0u16; count];
            for (index, (number, _)) in fields.iter().enumerate() {
                offsets[*number] = 4 + 4 * index as u16;
            }
            let back = 4 + 2 * count;
            let head = [back as u16, 4 + 4 * fields.len() as u16];
            out.extend(head.into_iter().chain(offsets).flat_map(u16::to_le_bytes));
            let place = out.len();
            out.extend((back as i32).to_le_bytes());
            out.resize(place + 4 + 4 * fields.len(), 0);
            for (index, (_, value)) in fields.iter().enumerate() {
                let at = place + 4 + 4 * index;
                match value {
                    Value::Number(number) => out[at..at + 4].copy_from_slice(&number.to_le_bytes()),
                    value => link(out, at, value),
                }
            }
            place
        }
    }
}

fn tensor(name: &str, kind: i32, shape: &[usize], bytes: Vec<u8>) -> Value {
    let sizes = shape.iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
    let count = bytes.len();
    Value::Table(vec![
        (0, text(name)),
        (2, Value::Bytes(sizes, shape.len())),
        (3, Value::Number(kind)),
        (4, Value::Bytes(bytes, count)),
    ])
}

fn floats(name: &str, shape: &[usize], values: impl IntoIterator<Item = f32>) -> Value {
    tensor(name, 1, shape, values.into_iter().flat_map(f32::to_le_bytes).collect())
}

fn node(name: &str, op: &str, inputs: &[&str]) -> Value {
    let inputs = Value::List(inputs.iter().map(|input| text(input)).collect());
    Value::Table(vec![(0, text(name)), (5, text(op)), (8, inputs)])
}

fn file(tensors: Vec<Value>, nodes: Vec<Value>) -> Vec<u8> {
    let graph = Value::Table(vec![(0, Value::List(tensors)), (2, Value::List(nodes))]);
    let session = Value::Table(vec![(1, Value::Table(vec![(7, graph)]))]);
    let mut out = b"\0\0\0\0ORTM".to_vec();
    let root = append(&mut out, &session) as u32;
    out[..4].copy_from_slice(&root.to_le_bytes());
    out
}

/// A recurrent layer of width 1 whose gates have the values 0, 1, 2 and 3, and what the other rules are for.
fn model() -> Vec<u8> {
    let gates = |times: usize| (0..times).flat_map(|_| [0.0, 1.0, 2.0, 3.0]);
    let tensors = vec![
        floats("inner.norm.weight", &[2], [1.0, 2.0]),
        tensor("onnx::Conv_1_quantized", 3, &[1, 2], vec![255, 2]),
        floats("onnx::Conv_1_scale", &[1], [0.5]),
        floats("onnx::Conv_1_zero_point", &[1], [10.0]),
        floats("onnx::Conv_2", &[1], [7.0]),
        floats("onnx::MatMul_3", &[2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        floats("onnx::LSTM_4", &[2, 4, 1], gates(2)),
        floats("onnx::LSTM_5", &[2, 4, 1], gates(2)),
        floats("onnx::LSTM_6", &[2, 8], gates(4)),
        floats("resnet.last.weight", &[1, 1], [9.0]),
        tensor("/shape", 7, &[1], vec![1, 0, 0, 0, 0, 0, 0, 0]),
    ];
    let nodes = vec![
        node("/inner/layer1/layer1.0/conv1/Conv", "Conv", &["x", "onnx::Conv_1_add_tensor", "onnx::Conv_2"]),
        node("/inner/linear.0/MatMul", "MatMul", &["x", "onnx::MatMul_3"]),
        node("/inner/MatMul", "MatMul", &["x", "y"]),
        node("/inner/lstm/LSTM", "LSTM", &["x", "onnx::LSTM_4", "onnx::LSTM_5", "onnx::LSTM_6", ""]),
        node("/resnet/last/Gemm", "Gemm", &["x", "resnet.last.weight"]),
    ];
    file(tensors, nodes)
}

fn converted(bytes: &[u8]) -> Result<Vec<u8>, ConversionError> {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("model.ort"), folder.path().join("model.safetensors"));
    fs::write(&source, bytes).unwrap();
    convert(&source, &target)?;
    Ok(fs::read(&target).unwrap())
}

#[test]
fn weights_get_the_names_and_the_layout_of_the_module() {
    let weights = converted(&model()).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let check = |name: &str, shape: &[usize], expected: &[f32]| {
        let tensor = weights.tensor(name).unwrap();
        let values: Vec<f32> =
            tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!((tensor.shape(), &values[..]), (shape, expected), "{name}");
    };
    check("norm.weight", &[2], &[1.0, 2.0]);
    check("layer1.0.conv1.weight", &[1, 2], &[9.5, 11.0]);
    check("layer1.0.conv1.bias", &[1], &[7.0]);
    check("linear.0.weight", &[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    check("last.weight", &[1, 1], &[9.0]);
    for part in ["weight_ih_l0", "weight_hh_l0_reverse"] {
        check(&format!("lstm.{part}"), &[4, 1], &[0.0, 2.0, 3.0, 1.0]);
    }
    check("lstm.bias_hh_l0_reverse", &[4], &[0.0, 2.0, 3.0, 1.0]);
    assert_eq!(weights.names().len(), 13);
}

#[test]
fn what_no_rule_covers_is_refused_by_name() {
    let check = |bytes: Vec<u8>, reason: &str| {
        let error = converted(&bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    check(b"ONNX is not ORT".to_vec(), "no model in the format of ONNX Runtime");
    check(file(vec![], vec![]), "the graph has none");
    let conv = || vec![node("/a/Conv", "Conv", &["x", "w", "b"])];
    check(file(vec![], conv()), "'w' is not stored");
    let one = |name: &str| floats(name, &[1], [1.0]);
    check(file(vec![one("w"), one("w")], conv()), "two initialisers are named 'w'");
    check(file(vec![floats("w", &[2], [1.0])], conv()), "'w' has 4 bytes for the shape [2]");
    let twice = conv().into_iter().chain(conv()).collect();
    check(file(vec![one("w"), one("b")], twice), "two weights are named 'a.weight'");
    let lstm = vec![node("/a/LSTM", "LSTM", &["x", "w", "w", "w"])];
    check(file(vec![one("w")], lstm), "the shapes of the layer 'a'");
    let many = (0..100).map(|at| node(&format!("/a.{at}/Gemm"), "Gemm", &["x", "w"])).collect();
    check(file(vec![floats("w", &[1000], vec![1.0; 1000])], many), "repeats the weights of others");
    for length in (8..model().len()).step_by(7) {
        assert!(converted(&model()[..length]).is_err(), "{length}");
    }
}

proptest! {
    #[test]
    fn changed_bytes_are_converted_or_refused(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = model();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let _ = converted(&bytes);
    }
}
