//! The rules that give the initialisers of a graph the names and the layout of the module they were exported from.
//!
//! An initialiser of floats named by a module's path keeps its name. Others are found by the node that uses them, and named
//! after its path: convolutions and products, and recurrent layers, whose gates are put into the order of PyTorch. A weight
//! that is stored as int8 is multiplied out.
//!
//! Source of the schema: <https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/flatbuffers/schema/ort.fbs>.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use safetensors::tensor::{Dtype, View};

use super::flatbuffer::Table;
use crate::convert::error::{ConversionError, malformed};

/// Identifier of a file, after its first offset.
const IDENTIFIER: &[u8] = b"ORTM";
/// Fields of the tables that are read, as the schema numbers them.
const SESSION_MODEL: usize = 1;
const MODEL_GRAPH: usize = 7;
const GRAPH_INITIALISERS: usize = 0;
const GRAPH_NODES: usize = 2;
const TENSOR: [usize; 4] = [0, 2, 3, 4];
const NODE_NAME: usize = 0;
const NODE_OP: usize = 5;
const NODE_INPUTS: usize = 8;
/// `TensorDataType`.
const FLOAT: i32 = 1;
const INT8: i32 = 3;
/// Int8 takes 4 times the space as f32; more means that the file repeats one weight.
const MAX_GROWTH: usize = 8;
/// Modules that exporters wrap around the one whose weights these are.
const WRAPPERS: [&str; 2] = ["inner.", "resnet."];
/// Where the gates of PyTorch, input, forget, cell and output, are among those of ONNX.
const GATES: [usize; 4] = [0, 2, 3, 1];

/// A tensor ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Floats {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl View for Floats {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// One initialiser.
struct Tensor<'a> {
    shape: Vec<usize>,
    kind: i32,
    data: &'a [u8],
}

impl<'a> Tensor<'a> {
    fn parse(table: Table<'a>) -> Result<(&'a str, Self), ConversionError> {
        let [name, shape, kind, data] = TENSOR;
        let (name, kind) = (table.text(name)?, table.number(kind)?);
        let sizes = table.vector(shape, size_of::<i64>())?.as_chunks().0.iter();
        let shape: Option<Vec<usize>> =
            sizes.map(|&bytes| usize::try_from(i64::from_le_bytes(bytes)).ok()).collect();
        let shape = shape.ok_or_else(|| malformed(format!("'{name}' has a negative size")))?;
        let data = table.vector(data, 1)?;
        let width = match kind {
            FLOAT => size_of::<f32>(),
            INT8 => 1,
            // Indices and the like, which no rule takes.
            _ => return Ok((name, Self { shape, kind, data })),
        };
        let count = shape.iter().try_fold(width, |product, &size| product.checked_mul(size));
        if count != Some(data.len()) {
            let message = format!("'{name}' has {} bytes for the shape {shape:?}", data.len());
            return Err(malformed(message));
        }
        Ok((name, Self { shape, kind, data }))
    }

    fn values(&self) -> Vec<f32> {
        match self.kind {
            FLOAT => self.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            _ => self.data.iter().map(|&byte| f32::from(byte.cast_signed())).collect(),
        }
    }
}

struct Weights<'a> {
    stored: BTreeMap<&'a str, Tensor<'a>>,
    found: BTreeMap<String, Floats>,
    /// Values that tensors may still have.
    room: usize,
}

/// All weights of a file of ONNX Runtime.
pub(super) fn named(file: &[u8]) -> Result<BTreeMap<String, Floats>, ConversionError> {
    if file.get(4..8) != Some(IDENTIFIER) {
        return Err(malformed("it is no model in the format of ONNX Runtime".to_owned()));
    }
    let graph = Table::root(file)?.table(SESSION_MODEL)?.table(MODEL_GRAPH)?;
    let room = file.len().saturating_mul(MAX_GROWTH) / size_of::<f32>();
    let mut weights = Weights { stored: BTreeMap::new(), found: BTreeMap::new(), room };
    for table in graph.tables(GRAPH_INITIALISERS)? {
        let (name, tensor) = Tensor::parse(table)?;
        if weights.stored.insert(name, tensor).is_some() {
            return Err(malformed(format!("two initialisers are named '{name}'")));
        }
    }
    let mut layers = 0;
    for node in graph.tables(GRAPH_NODES)? {
        let (op, inputs) = (node.text(NODE_OP)?, node.texts(NODE_INPUTS)?);
        let path = path_of(node.text(NODE_NAME)?);
        match (op, &inputs[..]) {
            ("Conv", [_, weight, bias, ..]) => {
                let (weight, bias) = (weights.value(weight)?, weights.value(bias)?);
                weights.insert(format!("{path}.weight"), weight)?;
                weights.insert(format!("{path}.bias"), bias)?;
            }
            ("MatMul", [_, weight, ..]) if weight.starts_with("onnx::") => {
                let weight = transposed(&weights.value(weight)?)
                    .ok_or_else(|| malformed(format!("'{weight}' is no matrix")))?;
                weights.insert(format!("{path}.weight"), weight)?;
            }
            ("Gemm", [_, weight, ..]) => {
                let weight = weights.value(weight)?;
                weights.insert(format!("{path}.weight"), weight)?;
            }
            ("LSTM", [_, input, hidden, bias, ..]) => {
                let values = [weights.value(input)?, weights.value(hidden)?, weights.value(bias)?];
                weights.lstm(&path, layers, &values)?;
                layers += 1;
            }
            _ => {}
        }
    }
    weights.keep_named()?;
    if weights.found.is_empty() {
        return Err(ConversionError::Unsupported("the graph has none".to_owned()));
    }
    Ok(weights.found)
}

/// The module of a node called `/path/to/module/Operation`. A block repeats the name of its stage.
fn path_of(name: &str) -> String {
    let module = name.trim_matches('/').rsplit_once('/').map_or("", |(module, _)| module);
    let mut parts: Vec<&str> = module.split('/').collect();
    for at in (1..parts.len()).rev() {
        let block = parts[at].strip_prefix(parts[at - 1]).and_then(|rest| rest.strip_prefix('.'));
        if block.is_some_and(|block| block.starts_with(|c: char| c.is_ascii_digit())) {
            parts.remove(at - 1);
        }
    }
    parts.join(".")
}

/// Whether a name is the path of a module's tensor, such as `layer.0.weight`.
fn is_module_path(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    name.contains('.') && name.split('.').all(is_part)
}

fn transposed(weight: &Floats) -> Option<Floats> {
    let &[rows, columns] = &weight.shape[..] else { return None };
    let values = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    Some(Floats { shape: vec![columns, rows], values: values.map(|at| weight.values[at]).collect() })
}

impl Weights<'_> {
    /// A stored weight, or one that the graph makes of int8, a scale and what is added.
    fn value(&self, name: &str) -> Result<Floats, ConversionError> {
        let missing = || ConversionError::Unsupported(format!("'{name}' is not stored"));
        if let Some(tensor) = self.stored.get(name) {
            return Ok(Floats { shape: tensor.shape.clone(), values: tensor.values() });
        }
        let stem = name.strip_suffix("_add_tensor").ok_or_else(missing)?;
        let part = |suffix: &str| self.stored.get(format!("{stem}{suffix}").as_str()).ok_or_else(missing);
        let one = |suffix: &str| match part(suffix)?.values()[..] {
            [one] => Ok(one),
            _ => Err(ConversionError::Unsupported(format!("'{stem}{suffix}' has not one value"))),
        };
        let (tensor, scale, zero) = (part("_quantized")?, one("_scale")?, one("_zero_point")?);
        let values = tensor.values().into_iter().map(|value| value * scale + zero).collect();
        Ok(Floats { shape: tensor.shape.clone(), values })
    }

    /// The weights of a recurrent layer of two directions.
    fn lstm(&mut self, path: &str, layer: usize, values: &[Floats; 3]) -> Result<(), ConversionError> {
        let [input, hidden, bias] = values;
        let unsupported = || ConversionError::Unsupported(format!("the shapes of the layer '{path}'"));
        let &[directions, gates, width] = &hidden.shape[..] else { return Err(unsupported()) };
        let &[_, _, inputs] = &input.shape[..] else { return Err(unsupported()) };
        if directions != 2
            || width == 0
            || inputs == 0
            || gates != GATES.len() * width
            || input.shape[..2] != [2, gates]
            || bias.shape != [2, 2 * gates]
        {
            return Err(unsupported());
        }
        for (direction, suffix) in ["", "_reverse"].into_iter().enumerate() {
            let whole = |all: &Floats, columns: usize| {
                all.values[direction * gates * columns..][..gates * columns].to_vec()
            };
            let biases = |half: usize| bias.values[(2 * direction + half) * gates..][..gates].to_vec();
            for (part, shape, values) in [
                ("weight_ih", vec![gates, inputs], whole(input, inputs)),
                ("weight_hh", vec![gates, width], whole(hidden, width)),
                ("bias_ih", vec![gates], biases(0)),
                ("bias_hh", vec![gates], biases(1)),
            ] {
                let own = values.len() / GATES.len();
                let values = GATES.iter().flat_map(|&gate| &values[gate * own..][..own]).copied().collect();
                self.insert(format!("{path}.{part}_l{layer}{suffix}"), Floats { shape, values })?;
            }
        }
        Ok(())
    }

    /// Takes the floats that have the name of a module's tensor.
    fn keep_named(&mut self) -> Result<(), ConversionError> {
        let is_kept = |name: &str, tensor: &Tensor<'_>| {
            tensor.kind == FLOAT
                && is_module_path(name)
                && !name.ends_with("_scale")
                && !name.ends_with("_zero_point")
        };
        let named: Vec<_> = self.stored.iter().filter(|(name, tensor)| is_kept(name, tensor)).collect();
        let named: Vec<(String, Floats)> = named
            .into_iter()
            .map(|(name, tensor)| {
                ((*name).to_owned(), Floats { shape: tensor.shape.clone(), values: tensor.values() })
            })
            .filter(|(name, _)| !self.found.contains_key(unwrapped(name)))
            .collect();
        named.into_iter().try_for_each(|(name, values)| self.insert(name, values))
    }

    fn insert(&mut self, name: String, floats: Floats) -> Result<(), ConversionError> {
        let room = self.room.checked_sub(floats.values.len());
        self.room = room.ok_or_else(|| malformed(format!("'{name}' repeats the weights of others")))?;
        match self.found.entry(unwrapped(&name).to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(floats);
                Ok(())
            }
            Entry::Occupied(entry) => {
                Err(ConversionError::Unsupported(format!("two weights are named '{}'", entry.key())))
            }
        }
    }
}

fn unwrapped(name: &str) -> &str {
    WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)).unwrap_or(name)
}
