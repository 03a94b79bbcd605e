//! The rules that give initialisers the names and the layout of the module they were exported from.
//!
//! An initialiser named by a module's path keeps its name. Exporters and quantisers drop the names of linear weights and
//! store them as `[in, out]`: the rules find such a weight by the product that uses it, name it after the bias added to
//! the product, and transpose it to `[out, in]`. A weight without a rule is an error.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::{Dtype, View};

use super::graph::{Graph, Node, Tensor};
use crate::convert::error::ConversionError;

/// Dequantising int8 to f32 takes 4 times the space; more means that the file repeats one weight.
const MAX_GROWTH: usize = 8;
/// Operations between a product and its bias: a cast and the scales.
const MAX_STEPS_TO_BIAS: usize = 3;

/// A tensor ready to be written, always f32.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedTensor {
    shape: Vec<usize>,
    /// Little-endian values.
    data: Vec<u8>,
}

impl View for NamedTensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

impl NamedTensor {
    fn new(shape: Vec<usize>, values: &[f32]) -> Self {
        Self { shape, data: values.iter().flat_map(|value| value.to_le_bytes()).collect() }
    }
}

/// All tensors of a graph that was read from `file_bytes` bytes.
pub(super) fn named(
    graph: &Graph<'_>,
    file_bytes: usize,
) -> Result<BTreeMap<String, NamedTensor>, ConversionError> {
    let mut rules = Rules {
        graph,
        links: Links::of(&graph.nodes),
        used: BTreeSet::new(),
        tensors: BTreeMap::new(),
        room: file_bytes.saturating_mul(MAX_GROWTH),
    };
    for node in &graph.nodes {
        match node.op {
            "MatMulInteger" => rules.integer_matmul(node)?,
            "MatMul" => rules.float_matmul(node)?,
            _ => {}
        }
    }
    rules.named_initialisers()?;
    Ok(rules.tensors)
}

/// The producer and the consumers of each value of the graph.
struct Links<'g> {
    producers: BTreeMap<&'g str, &'g Node<'g>>,
    /// The only consumer; `None` if there are several.
    consumers: BTreeMap<&'g str, Option<&'g Node<'g>>>,
}

impl<'g> Links<'g> {
    fn of(nodes: &'g [Node<'g>]) -> Self {
        let mut links = Self { producers: BTreeMap::new(), consumers: BTreeMap::new() };
        for node in nodes {
            for output in &node.outputs {
                links.producers.insert(output, node);
            }
            for input in &node.inputs {
                links.consumers.entry(input).and_modify(|consumer| *consumer = None).or_insert(Some(node));
            }
        }
        links
    }

    /// The only consumer of the output of `node`.
    fn after(&self, node: &Node<'_>) -> Option<&'g Node<'g>> {
        *self.consumers.get(node.outputs.first()?)?
    }
}

struct Rules<'g> {
    graph: &'g Graph<'g>,
    links: Links<'g>,
    /// Initialisers that a tensor uses already.
    used: BTreeSet<&'g str>,
    tensors: BTreeMap<String, NamedTensor>,
    /// Bytes that tensors may still take.
    room: usize,
}

impl<'g> Rules<'g> {
    /// `(weight - zero point) * scale`, from MatMulInteger, Cast, Mul by the scales, Add of the bias.
    fn integer_matmul(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let Some((weight, tensor)) = self.initialiser(node.inputs.get(1)) else {
            return Err(unsupported(node, "multiplies by no stored weight"));
        };
        let zero_point = match node.inputs.get(3).filter(|name| !name.is_empty()) {
            None => None,
            Some(name) => {
                let found = self.initialiser(Some(name));
                Some(found.ok_or_else(|| unsupported(node, "has a zero point that is not stored"))?)
            }
        };
        let (name, between) = self.name_after_bias(node)?;
        let (scale, scale_tensor) = between
            .iter()
            .filter(|node| node.op == "Mul")
            .flat_map(|node| &node.inputs)
            .find_map(|input| self.scale(input))
            .ok_or_else(|| unsupported(node, "has no stored scale"))?;

        let [rows, columns] = matrix(weight, tensor)?;
        let scales = per_column(scale, scale_tensor, columns)?;
        let zeros = match zero_point {
            None => vec![0.0; columns],
            Some((name, tensor)) => per_column(name, tensor, columns)?,
        };
        self.used.extend([weight, scale]);
        self.used.extend(zero_point.map(|(name, _)| name));
        self.reserve(&name, rows, columns)?;
        let mut values = tensor.to_f32();
        for row in values.chunks_exact_mut(columns.max(1)) {
            for ((value, zero), scale) in row.iter_mut().zip(&zeros).zip(&scales) {
                *value = (*value - zero) * scale;
            }
        }
        self.insert(name, NamedTensor::new(vec![columns, rows], &transposed(&values, columns)))
    }

    /// A product with a float weight without a name.
    fn float_matmul(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let Some((weight, tensor)) = self.initialiser(node.inputs.get(1)) else {
            return Ok(());
        };
        if is_module_path(weight) || !tensor.is_float() {
            return Ok(());
        }
        let (name, _) = self.name_after_bias(node)?;
        let [rows, columns] = matrix(weight, tensor)?;
        self.used.insert(weight);
        self.reserve(&name, rows, columns)?;
        self.insert(name, NamedTensor::new(vec![columns, rows], &transposed(&tensor.to_f32(), columns)))
    }

    /// Initialisers that have their names.
    fn named_initialisers(&mut self) -> Result<(), ConversionError> {
        let graph = self.graph;
        for (name, tensor) in &graph.initialisers {
            if self.used.contains(name) {
                continue;
            }
            if is_module_path(name) {
                let values = tensor.to_f32();
                self.reserve(name, values.len(), 1)?;
                self.insert((*name).to_owned(), NamedTensor::new(tensor.shape.clone(), &values))?;
            } else if tensor.is_float() && tensor.shape.len() > 1 {
                return Err(ConversionError::Unsupported(format!("no rule names the weight '{name}'")));
            }
        }
        Ok(())
    }

    fn initialiser(&self, name: Option<&&'g str>) -> Option<(&'g str, &'g Tensor<'g>)> {
        let graph = self.graph;
        graph.initialisers.get_key_value(*name?).map(|(name, tensor)| (*name, tensor))
    }

    /// A stored scale: the value itself, or one of the factors it is the product of.
    fn scale(&self, value: &&'g str) -> Option<(&'g str, &'g Tensor<'g>)> {
        self.initialiser(Some(value)).or_else(|| {
            let producer = self.links.producers.get(value).filter(|producer| producer.op == "Mul")?;
            producer.inputs.iter().find_map(|factor| self.initialiser(Some(factor)))
        })
    }

    /// The weight's name, from the bias added to the product, and the nodes in between.
    fn name_after_bias(&self, product: &'g Node<'g>) -> Result<(String, Vec<&'g Node<'g>>), ConversionError> {
        let mut between = Vec::new();
        let mut node = product;
        while let Some(next) = self.links.after(node) {
            if next.op == "Add" {
                let bias = next.inputs.iter().find_map(|input| self.initialiser(Some(input)));
                let stem = bias
                    .and_then(|(name, _)| name.strip_suffix("bias"))
                    .filter(|_| bias.is_some_and(|(name, _)| is_module_path(name)));
                return match stem {
                    Some(stem) => Ok((format!("{stem}weight"), between)),
                    None => Err(unsupported(product, "is followed by no named bias")),
                };
            }
            between.push(next);
            if between.len() == MAX_STEPS_TO_BIAS {
                break;
            }
            node = next;
        }
        Err(unsupported(product, "is followed by no named bias"))
    }

    fn reserve(&mut self, name: &str, rows: usize, columns: usize) -> Result<(), ConversionError> {
        if self.tensors.contains_key(name) {
            return Ok(());
        }
        let bytes = rows.saturating_mul(columns).saturating_mul(size_of::<f32>());
        self.room = self.room.checked_sub(bytes).ok_or_else(|| {
            ConversionError::Unsupported(format!(
                "the tensors would be {MAX_GROWTH} times as large as the file"
            ))
        })?;
        Ok(())
    }

    /// Adds a tensor. A name may repeat with an equal tensor, as in a graph that applies one layer several times.
    fn insert(&mut self, name: String, tensor: NamedTensor) -> Result<(), ConversionError> {
        match self.tensors.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(tensor);
                Ok(())
            }
            Entry::Occupied(entry) if *entry.get() == tensor => Ok(()),
            Entry::Occupied(entry) => {
                Err(ConversionError::Unsupported(format!("two weights would be named '{}'", entry.key())))
            }
        }
    }
}

fn unsupported(node: &Node<'_>, reason: &str) -> ConversionError {
    let name = node.outputs.first().copied().unwrap_or_default();
    ConversionError::Unsupported(format!("the {} that computes '{name}' {reason}", node.op))
}

/// Whether a name is the path of a module's parameter: `layers.0.norm.weight`.
fn is_module_path(name: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    name.contains('.') && name.split('.').all(plain)
}

/// Rows and columns, neither of them 0: a matrix without values may claim any number of columns.
fn matrix(name: &str, tensor: &Tensor<'_>) -> Result<[usize; 2], ConversionError> {
    <[usize; 2]>::try_from(tensor.shape.as_slice()).ok().filter(|sizes| !sizes.contains(&0)).ok_or_else(
        || ConversionError::Unsupported(format!("the weight '{name}' has the shape {:?}", tensor.shape)),
    )
}

/// One value per column, from a tensor with one value or with one per column.
fn per_column(name: &str, tensor: &Tensor<'_>, columns: usize) -> Result<Vec<f32>, ConversionError> {
    let values = tensor.to_f32();
    match values.as_slice() {
        [value] => Ok(vec![*value; columns]),
        _ if values.len() == columns => Ok(values),
        _ => {
            let count = values.len();
            Err(ConversionError::Unsupported(format!("'{name}' has {count} values for {columns} columns")))
        }
    }
}

/// Transposes row-major `[rows, columns]` to `[columns, rows]`.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}
