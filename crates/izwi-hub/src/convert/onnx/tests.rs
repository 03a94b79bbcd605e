//! Conversion of small graphs built here, and of malformed bytes.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::{Quantised, convert};
use crate::convert::error::ConversionError;

/// A protobuf message under construction.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, field: u64, value: u64) -> Self {
        self.push_varint(field << 3);
        self.push_varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.push_varint(field << 3 | 2);
        self.push_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn push_varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A graph under construction, in the style of the exporters.
#[derive(Clone, Default)]
struct Onnx(Message);

impl Onnx {
    fn tensor(self, name: &str, kind: u64, dims: &[u64], data: impl FnOnce(Message) -> Message) -> Self {
        let message = dims.iter().fold(Message::default(), |message, dim| message.varint(1, *dim));
        let message = data(message.varint(2, kind)).bytes(8, name.as_bytes());
        Self(self.0.bytes(5, &message.0))
    }

    fn raw_f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, 1, dims, |message| message.bytes(9, &bytes))
    }

    fn node(self, op: &str, inputs: &[&str], output: &str) -> Self {
        let message =
            inputs.iter().fold(Message::default(), |message, input| message.bytes(1, input.as_bytes()));
        Self(self.0.bytes(1, &message.bytes(2, output.as_bytes()).bytes(4, op.as_bytes()).0))
    }

    /// A node with a name, as the exporters give it: the path of its module and its operation.
    fn named_node(self, name: &str, op: &str, inputs: &[&str], output: &str) -> Self {
        let message =
            inputs.iter().fold(Message::default(), |message, input| message.bytes(1, input.as_bytes()));
        let message = message.bytes(2, output.as_bytes()).bytes(3, name.as_bytes());
        Self(self.0.bytes(1, &message.bytes(4, op.as_bytes()).0))
    }

    fn int8(self, name: &str, dims: &[u64], values: &[i8]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
        self.tensor(name, 3, dims, |m| m.bytes(9, &bytes))
    }

    /// MatMulInteger, Cast, Mul, Add, each of their values beginning with `prefix`.
    fn quantised(self, prefix: &str, weight: &str, bias: &str) -> Self {
        let value = |name: &str| format!("{prefix}/{name}");
        let stored = |suffix: &str| format!("{weight}_{suffix}");
        self.node("DynamicQuantizeLinear", &["x"], &value("x_scale"))
            .node(
                "MatMulInteger",
                &[&value("x"), &stored("quantized"), &value("x_zero"), &stored("zero_point")],
                &value("product"),
            )
            .node("Cast", &[&value("product")], &value("cast"))
            .node("Mul", &[&value("x_scale"), &stored("scale")], &value("scales"))
            .node("Mul", &[&value("cast"), &value("scales")], &value("scaled"))
            .node("Add", &[bias, &value("scaled")], &value("sum"))
    }

    fn model(&self) -> Vec<u8> {
        Message::default().varint(1, 8).bytes(7, &self.0.0).0
    }
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn converted(model: &[u8]) -> Result<Tensors, ConversionError> {
    let folder = tempfile::tempdir().unwrap();
    let [source, target, again] =
        ["a.onnx", "a.safetensors", "b.safetensors"].map(|name| folder.path().join(name));
    std::fs::write(&source, model).unwrap();
    convert(&source, &target, Quantised::Floats)?;
    convert(&source, &again, Quantised::Floats)?;
    let bytes = std::fs::read(&target).unwrap();
    assert_eq!(bytes, std::fs::read(&again).unwrap(), "equal input gives equal output");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let entry = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        assert_eq!(view.dtype(), safetensors::Dtype::F32);
        (name, (view.shape().to_vec(), values(view.data())))
    };
    Ok(tensors.tensors().into_iter().map(entry).collect())
}

/// Two inputs, three outputs, scalar scale and zero point.
fn linear() -> Onnx {
    Onnx::default()
        .tensor("/w_quantized", 3, &[2, 3], |m| m.bytes(9, &[1, 2, 3, 253, 254, 255]))
        .tensor("/w_scale", 1, &[], |m| m.bytes(4, &0.5_f32.to_le_bytes()))
        .tensor("/w_zero_point", 3, &[1], |m| m.varint(5, (-1_i64).cast_unsigned()))
        .raw_f32("m.attn.in_proj_bias", &[3], &[0.0; 3])
}

#[track_caller]
fn check(onnx: &Onnx, expected: &[(&str, &[usize], &[f32])]) {
    let tensors = converted(&onnx.model()).unwrap();
    let expected: Tensors = expected
        .iter()
        .map(|(name, shape, values)| ((*name).to_owned(), (shape.to_vec(), values.to_vec())))
        .collect();
    assert_eq!(tensors, expected);
}

#[track_caller]
fn refused(onnx: &Onnx, reason: &str) {
    let error = converted(&onnx.model()).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn a_quantised_weight_is_dequantised_transposed_and_named_after_its_bias() {
    let onnx = linear().quantised("a", "/w", "m.attn.in_proj_bias");
    check(
        &onnx,
        &[
            ("m.attn.in_proj_bias", &[3], &[0.0; 3]),
            ("m.attn.in_proj_weight", &[3, 2], &[1.0, -1.0, 1.5, -0.5, 2.0, 0.0]),
        ],
    );
}

#[test]
fn scales_and_zero_points_may_be_per_column() {
    let onnx = Onnx::default()
        .tensor("/w_quantized", 2, &[1, 2], |m| m.varint(5, 10).varint(5, 250))
        .raw_f32("/w_scale", &[2], &[0.5, 2.0])
        .tensor("/w_zero_point", 2, &[2], |m| m.bytes(9, &[8, 200]))
        .raw_f32("m.bias", &[2], &[1.0, 2.0])
        .quantised("a", "/w", "m.bias");
    check(&onnx, &[("m.bias", &[2], &[1.0, 2.0]), ("m.weight", &[2, 1], &[1.0, 100.0])]);
}

#[test]
fn a_layer_applied_twice_gives_one_weight() {
    let onnx =
        linear().quantised("a", "/w", "m.attn.in_proj_bias").quantised("b", "/w", "m.attn.in_proj_bias");
    assert_eq!(converted(&onnx.model()).unwrap().len(), 2);
}

#[test]
fn two_weights_with_one_name_are_refused() {
    let onnx = linear()
        .quantised("a", "/w", "m.attn.in_proj_bias")
        .raw_f32("onnx::MatMul_7", &[1, 1], &[3.0])
        .node("MatMul", &["y", "onnx::MatMul_7"], "z")
        .node("Add", &["z", "m.attn.in_proj_bias"], "s");
    refused(&onnx, "two weights would be named 'm.attn.in_proj_weight'");
}

#[test]
fn an_unnamed_float_weight_is_transposed_and_named_after_its_bias() {
    let onnx = Onnx::default()
        .raw_f32("onnx::MatMul_7", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .raw_f32("m.head.bias", &[3], &[7.0, 8.0, 9.0])
        .node("MatMul", &["x", "onnx::MatMul_7"], "y")
        .node("Add", &["m.head.bias", "y"], "z");
    check(
        &onnx,
        &[
            ("m.head.bias", &[3], &[7.0, 8.0, 9.0]),
            ("m.head.weight", &[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
        ],
    );
}

#[test]
fn named_tensors_of_every_type_become_floats() {
    let onnx = Onnx::default()
        .raw_f32("m.emb.weight", &[2, 1], &[1.5, -2.5])
        .tensor("m.floats", 1, &[2], |m| m.bytes(4, &[1.0_f32.to_le_bytes(), 2.0_f32.to_le_bytes()].concat()))
        .tensor("m.index", 7, &[2], |m| m.varint(7, 3).varint(7, (-4_i64).cast_unsigned()))
        .tensor("m.raw_index", 7, &[1], |m| m.bytes(9, &(-5_i64).to_le_bytes()))
        .tensor("m.small", 6, &[], |m| m.bytes(9, &6_i32.to_le_bytes()))
        .tensor("/shape", 7, &[2], |m| m.varint(7, 1).varint(7, 2))
        .raw_f32("/epsilon", &[], &[1e-5]);
    check(
        &onnx,
        &[
            ("m.emb.weight", &[2, 1], &[1.5, -2.5]),
            ("m.floats", &[2], &[1.0, 2.0]),
            ("m.index", &[2], &[3.0, -4.0]),
            ("m.raw_index", &[1], &[-5.0]),
            ("m.small", &[], &[6.0]),
        ],
    );
}

#[test]
fn weights_without_a_rule_are_refused() {
    let nameless = Onnx::default().raw_f32("onnx::LSTM_1", &[1, 1], &[1.0]);
    refused(&nameless, "no rule names the weight 'onnx::LSTM_1'");
    refused(
        &nameless.clone().node("MatMul", &["x", "onnx::LSTM_1"], "y"),
        "MatMul that computes 'y' is followed by no",
    );
    let onnx = nameless.node("MatMul", &["x", "onnx::LSTM_1"], "y").node("Add", &["y", "x"], "z");
    refused(&onnx, "is followed by no named bias");
    refused(&Onnx::default().node("MatMulInteger", &["x", "w"], "y"), "multiplies by no stored weight");
    let lone = linear().node("MatMulInteger", &["x", "/w_quantized"], "y").node(
        "Add",
        &["y", "m.attn.in_proj_bias"],
        "z",
    );
    refused(&lone, "has no stored scale");
    refused(
        &Onnx::default().tensor("m.half", 10, &[1], |m| m.bytes(9, &[0, 0])),
        "'m.half' has data type 10",
    );
    refused(
        &Onnx::default().tensor("m.far", 1, &[1], |m| m.varint(14, 1)),
        "'m.far' is stored outside the file",
    );
}

#[test]
fn shapes_must_fit_their_values() {
    refused(&Onnx::default().raw_f32("m.a", &[3], &[1.0]), "'m.a' has another number of values");
    refused(
        &Onnx::default().tensor("m.a", 1, &[1], |m| m.bytes(9, &[0; 5])),
        "'m.a' has another number of values",
    );
    refused(
        &Onnx::default().raw_f32("m.a", &[u64::MAX, u64::MAX], &[]),
        "'m.a' has another number of values",
    );
    refused(&Onnx::default().raw_f32("m.a", &[], &[1.0]).raw_f32("m.a", &[], &[1.0]), "two initialisers");
}

#[test]
fn one_weight_under_many_names_does_not_grow_without_bounds() {
    let large = Onnx::default().tensor("/w_quantized", 3, &[64, 64], |m| m.bytes(9, &[1; 4096])).raw_f32(
        "/w_scale",
        &[],
        &[1.0],
    );
    let many = (0..64).fold(large, |onnx, index| {
        let bias = format!("m.{index}.bias");
        let [product, scaled, sum] = ["p", "s", "a"].map(|value| format!("{value}{index}"));
        onnx.raw_f32(&bias, &[], &[0.0])
            .node("MatMulInteger", &["x", "/w_quantized"], &product)
            .node("Mul", &[&product, "/w_scale"], &scaled)
            .node("Add", &[&scaled, &bias], &sum)
    });
    refused(&many, "8 times as large as the file");
}

#[test]
fn an_unreadable_source_names_its_path() {
    let error =
        convert(Path::new("/nowhere/a.onnx"), Path::new("/nowhere/b"), Quantised::Floats).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/a.onnx");
}

#[test]
fn a_matrix_without_rows_claims_no_columns() {
    let model = linear()
        .tensor("/e_quantized", 3, &[0, 1 << 40], |m| m.bytes(9, &[]))
        .tensor("/e_scale", 1, &[], |m| m.bytes(4, &0.5_f32.to_le_bytes()))
        .tensor("/e_zero_point", 3, &[1], |m| m.varint(5, 1))
        .raw_f32("m.empty.in_proj_bias", &[3], &[0.0; 3])
        .quantised("e", "/e", "m.empty.in_proj_bias")
        .model();
    let error = converted(&model).unwrap_err().to_string();
    assert!(error.contains("'/e_quantized' has the shape [0, 1099511627776]"), "{error}");
}

/// Two outputs of one input with two taps, zero point 128 as the quantisers of convolutions have it.
fn convolution() -> Onnx {
    Onnx::default()
        .tensor("/c/Mul_output_0_quantized", 2, &[2, 1, 2], |m| m.bytes(9, &[128, 130, 127, 0]))
        .tensor("/c/Mul_output_0_zero_point", 2, &[], |m| m.bytes(9, &[128]))
        .raw_f32("/c/Mul_output_0_scale", &[], &[0.25])
        .node("Mul", &["x_scale", "/c/Mul_output_0_scale"], "scales")
}

#[test]
fn a_convolution_is_named_after_its_integer_bias_or_its_node() {
    let inputs = ["x", "/c/Mul_output_0_quantized", "x_zero", "/c/Mul_output_0_zero_point"];
    let with_bias = convolution()
        .raw_f32("m.conv.bias", &[2], &[1.0, 2.0])
        .node("Reshape", &["m.conv.bias", "shape"], "reshaped")
        .node("Div", &["reshaped", "scales"], "divided")
        .node("Floor", &["divided"], "floor")
        .node("Cast", &["floor"], "whole")
        .named_node("/m/other/Conv_quant", "ConvInteger", &inputs, "product")
        .node("Add", &["product", "whole"], "sum")
        .node("Cast", &["sum"], "cast")
        .node("Mul", &["cast", "scales"], "y");
    let weight: &[f32] = &[0.0, 0.5, -0.25, -32.0];
    check(&with_bias, &[("m.conv.bias", &[2], &[1.0, 2.0]), ("m.conv.weight", &[2, 1, 2], weight)]);
    let bare = convolution()
        .named_node("/m/conv1x1/Conv_quant", "ConvInteger", &inputs, "product")
        .node("Cast", &["product"], "cast")
        .node("Mul", &["cast", "scales"], "y");
    check(&bare, &[("m.conv1x1.weight", &[2, 1, 2], weight)]);
    let nameless = convolution()
        .node("ConvInteger", &inputs, "product")
        .node("Cast", &["product"], "cast")
        .node("Mul", &["cast", "scales"], "y");
    refused(&nameless, "is followed by no named bias");
}

#[test]
fn weights_may_stay_int8_beside_their_scales() {
    let inputs = ["x", "/c/Mul_output_0_quantized", "x_zero", "/c/Mul_output_0_zero_point"];
    let onnx = convolution()
        .named_node("/m/conv1x1/Conv_quant", "ConvInteger", &inputs, "product")
        .node("Cast", &["product"], "cast")
        .node("Mul", &["cast", "scales"], "y")
        .int8("m.table.weight_quantized", &[2, 2], &[1, 2, 3, 4])
        .raw_f32("m.table.weight_scale", &[], &[0.5])
        .node("Gather", &["m.table.weight_quantized", "ids"], "rows")
        .node("DequantizeLinear", &["rows", "m.table.weight_scale"], "floats");
    let folder = tempfile::tempdir().unwrap();
    let [source, target] = ["a.onnx", "a.safetensors"].map(|name| folder.path().join(name));
    std::fs::write(&source, onnx.model()).unwrap();
    convert(&source, &target, Quantised::Int8).unwrap();
    let bytes = std::fs::read(&target).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let table = tensors.tensor("m.table.weight").unwrap();
    assert_eq!((table.dtype(), table.data()), (safetensors::Dtype::I8, &[1, 2, 3, 4][..]));
    assert_eq!(tensors.tensor("m.table.weight_scale").unwrap().data(), 0.5_f32.to_le_bytes());
    let conv = tensors.tensor("m.conv1x1.weight").unwrap();
    assert_eq!((conv.shape(), conv.data()), (&[2, 1, 2][..], &[0, 2, 255, 128][..]));
    assert_eq!(tensors.len(), 4);
}

#[test]
fn a_recurrent_layer_has_the_names_and_the_gates_of_the_module() {
    // One unit, one input, two directions; gates input, output, forget, cell.
    let onnx = Onnx::default()
        .int8("onnx::LSTM_1_quantized", &[2, 1, 4], &[1, 2, 3, 4, 5, 6, 7, 8])
        .raw_f32("onnx::LSTM_1_scale", &[2], &[1.0, 10.0])
        .int8("onnx::LSTM_2_quantized", &[2, 1, 4], &[-1, -2, -3, -4, -5, -6, -7, -8])
        .raw_f32("onnx::LSTM_2_scale", &[2], &[1.0, 0.5])
        .int8("zero", &[2], &[0, 1])
        .raw_f32("onnx::LSTM_3", &[2, 8], &(0..16u8).map(f32::from).collect::<Vec<_>>());
    let (w, r) = ("onnx::LSTM_1", "onnx::LSTM_2");
    let stored = |name: &str, suffix: &str| format!("{name}_{suffix}");
    let names = [stored(w, "quantized"), stored(r, "quantized"), stored(w, "scale"), stored(r, "scale")];
    let [w, r, w_scale, r_scale] = names.each_ref().map(String::as_str);
    let inputs = ["x", w, r, "onnx::LSTM_3", "", "h", "c", "", w_scale, "zero", r_scale, "zero"];
    check(
        &onnx.clone().named_node("/m/lstm/LSTM_quant", "DynamicQuantizeLSTM", &inputs, "y"),
        &[
            ("m.lstm.bias_hh_l0", &[4], &[4.0, 6.0, 7.0, 5.0]),
            ("m.lstm.bias_hh_l0_reverse", &[4], &[12.0, 14.0, 15.0, 13.0]),
            ("m.lstm.bias_ih_l0", &[4], &[0.0, 2.0, 3.0, 1.0]),
            ("m.lstm.bias_ih_l0_reverse", &[4], &[8.0, 10.0, 11.0, 9.0]),
            ("m.lstm.weight_hh_l0", &[4, 1], &[-1.0, -3.0, -4.0, -2.0]),
            ("m.lstm.weight_hh_l0_reverse", &[4, 1], &[-3.0, -4.0, -4.5, -3.5]),
            ("m.lstm.weight_ih_l0", &[4, 1], &[1.0, 3.0, 4.0, 2.0]),
            ("m.lstm.weight_ih_l0_reverse", &[4, 1], &[40.0, 60.0, 70.0, 50.0]),
        ],
    );
    refused(&onnx.node("DynamicQuantizeLSTM", &inputs, "y"), "has no name");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = converted(&bytes);
    }

    #[test]
    fn a_damaged_graph_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut model = linear().quantised("a", "/w", "m.attn.in_proj_bias").model();
        for (index, byte) in changes {
            let at = index.index(model.len());
            model[at] = byte;
        }
        let _ = converted(&model);
        model.truncate(cut.index(model.len()));
        let _ = converted(&model);
    }
}

#[test]
fn a_weight_that_is_dequantised_before_its_product_is_named_after_its_bias_or_the_product() {
    let rounded = |onnx: Onnx, value: &str, into: &str| {
        onnx.node("QuantizeLinear", &[value, "at", "middle"], &format!("{value}_8")).node(
            "DequantizeLinear",
            &[&format!("{value}_8"), "at", "middle"],
            into,
        )
    };
    let weight = |onnx: Onnx, name: &str| {
        let part = |suffix: &str| format!("{name}_{suffix}");
        onnx.int8(&part("quantized"), &[2, 3], &[1, 2, 3, -4, -5, -6])
            .raw_f32(&part("scale"), &[3], &[1.0, 0.5, 2.0])
            .int8(&part("zero_point"), &[3], &[0, 0, 1])
            .node(
                "DequantizeLinear",
                &[&part("quantized"), &part("scale"), &part("zero_point")],
                &part("floats"),
            )
    };
    let onnx = Onnx::default().raw_f32("at", &[], &[0.1]).raw_f32("m.fc.bias", &[3], &[0.0; 3]);
    let onnx = rounded(weight(weight(onnx, "val_1"), "val_2"), "x", "x_near");
    let onnx = onnx.node("MatMul", &["x_near", "val_1_floats"], "product");
    let onnx = rounded(onnx, "product", "near").node("Add", &["near", "m.fc.bias"], "sum");
    let onnx = onnx.node("MatMul", &["x_near", "val_2_floats"], "linear_1");
    let values: &[f32] = &[1.0, -4.0, 1.0, -2.5, 4.0, -14.0];
    let expected: &[(&str, &[usize], &[f32])] = &[
        ("linear_1.weight", &[3, 2], values),
        ("m.fc.bias", &[3], &[0.0; 3]),
        ("m.fc.weight", &[3, 2], values),
    ];
    check(&rounded(onnx, "linear_1", "last"), expected);
}
