//! The rules that give initialisers the names and the layout of the module they were exported from.
//!
//! An initialiser named by a module's path keeps its name. Exporters and quantisers drop the names of linear weights and
//! store them as `[in, out]`: the rules find such a weight by the product that uses it, name it after the bias added to
//! the product, and transpose it to `[out, in]`. A weight without a rule is an error.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::graph::{Graph, Node, Tensor};
use super::quantised::{NamedTensor, Quantised, Weight};
use crate::convert::error::ConversionError;

/// Dequantising int8 to f32 takes 4 times the space; more means that the file repeats one weight.
const MAX_GROWTH: usize = 8;
/// Operations after a product: a cast, the scales and the bias, or a rounding to 8 bits and back and the bias.
const MAX_STEPS: usize = 4;
/// Rows and columns that are transposed together.
const TILE: usize = 32;
/// Operations that make an integer bias of a stored one.
const MAX_BIAS_STEPS: usize = 6;

/// All tensors of a graph that was read from `file_bytes` bytes.
pub(super) fn named(
    graph: &Graph<'_>,
    file_bytes: usize,
    kept: Quantised,
) -> Result<BTreeMap<String, NamedTensor>, ConversionError> {
    let mut rules = Rules {
        graph,
        kept,
        links: Links::of(&graph.nodes),
        used: BTreeSet::new(),
        tensors: BTreeMap::new(),
        products: BTreeMap::new(),
        room: file_bytes.saturating_mul(MAX_GROWTH),
    };
    for node in &graph.nodes {
        match node.op {
            "MatMulInteger" | "ConvInteger" => rules.integer_product(node)?,
            "DynamicQuantizeLSTM" => rules.lstm(node)?,
            "DequantizeLinear" => rules.table(node)?,
            "MatMul" => rules.float_matmul(node)?,
            "Conv" | "ConvTranspose" => rules.float_conv(node)?,
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
    kept: Quantised,
    links: Links<'g>,
    /// Initialisers that a tensor uses already.
    used: BTreeSet<&'g str>,
    tensors: BTreeMap<String, NamedTensor>,
    /// Operation, weight, scale and zero point of the integer product that gave each of the tensors.
    products: BTreeMap<String, [&'g str; 4]>,
    /// Bytes that tensors may still take.
    room: usize,
}

impl<'g> Rules<'g> {
    /// `(weight - zero point) * scale`, from MatMulInteger or ConvInteger, a Cast and a Mul by the scales, and the Add of a
    /// bias before or after those.
    fn integer_product(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let Some((weight, tensor)) = self.initialiser(node.inputs.get(1)) else {
            return Err(unsupported(node, "multiplies by no stored weight"));
        };
        let zero_point = self.zero_point(node, 3)?;
        let found = self.behind(node);
        let name = self.name_of(node, found.bias)?;
        let (scale, scale_tensor) = found.scale.ok_or_else(|| unsupported(node, "has no stored scale"))?;
        self.used.extend([weight, scale]);
        self.used.extend(zero_point.map(|(name, _)| name));
        // One layer that is applied several times has a product for each of them.
        let product = [node.op, weight, scale, zero_point.map_or("", |(name, _)| name)];
        if self.products.get(&name) == Some(&product) {
            return Ok(());
        }
        self.products.insert(name.clone(), product);
        let zeros = zero_point.map(|(_, tensor)| tensor.to_f32());
        let scales = scale_tensor.to_f32();
        let weight = match node.op {
            "ConvInteger" => Weight::by_rows(weight, tensor.shape.clone(), tensor.to_f32(), (zeros, scales))?,
            _ => {
                let [_, columns] = matrix(weight, tensor)?;
                let turned = vec![columns, tensor.shape[0]];
                Weight::by_rows(weight, turned, transposed(&tensor.to_f32(), columns), (zeros, scales))?
            }
        };
        self.insert_weight(name, weight)
    }

    /// The stored zero point that is input `at` of a node; `None` if it has none.
    fn zero_point(
        &self,
        node: &'g Node<'g>,
        at: usize,
    ) -> Result<Option<(&'g str, &'g Tensor<'g>)>, ConversionError> {
        match node.inputs.get(at).filter(|name| !name.is_empty()) {
            None => Ok(None),
            Some(name) => match self.initialiser(Some(name)) {
                None => Err(unsupported(node, "has a zero point that is not stored")),
                found => Ok(found),
            },
        }
    }

    /// The four weights of a recurrent layer, or eight if it has two directions, in PyTorch's order of gates and under its
    /// names.
    fn lstm(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let stored = |at: usize| {
            self.initialiser(node.inputs.get(at))
                .ok_or_else(|| unsupported(node, "has a weight that is not stored"))
        };
        let path = path_of(node).ok_or_else(|| unsupported(node, "has no name"))?;
        let (bias, inputs) = (stored(3)?, [(stored(1)?, stored(8)?, 9), (stored(2)?, stored(10)?, 11)]);
        let [directions, hidden, gates] = inputs[1].0.1.shape[..] else {
            return Err(unsupported(node, "has weights of another rank than 3"));
        };
        if !(1..=2).contains(&directions) || hidden == 0 || gates != 4 * hidden {
            return Err(unsupported(node, "is no LSTM of one or two directions"));
        }
        if bias.1.shape != [directions, 2 * gates] {
            return Err(unsupported(node, "has a bias of another shape"));
        }
        let biases = bias.1.to_f32();
        for (part, ((name, tensor), (scale_name, scale), zero_at)) in ["ih", "hh"].into_iter().zip(inputs) {
            let zero_point = self.zero_point(node, zero_at)?;
            let [_, width, _] = tensor.shape[..] else {
                return Err(unsupported(node, "has weights of another rank than 3"));
            };
            if tensor.shape != [directions, width, gates] || width == 0 {
                return Err(unsupported(node, "has weights of another shape"));
            }
            self.used.extend([name, scale_name, bias.0]);
            self.used.extend(zero_point.map(|(name, _)| name));
            let (values, scales) = (tensor.to_f32(), scale.to_f32());
            let zeros = zero_point.map(|(_, tensor)| tensor.to_f32());
            for direction in 0..directions {
                let suffix = if direction == 0 { "" } else { "_reverse" };
                let own = |all: &[f32]| match all.len() == directions || all.len() == directions * gates {
                    true => {
                        let count = all.len() / directions;
                        let own = all[direction * count..][..count].to_vec();
                        Ok(if count == gates { gates_in_order(&own) } else { own })
                    }
                    false => Err(unsupported(node, "has scales of another shape")),
                };
                let values = transposed(&values[direction * width * gates..][..width * gates], gates);
                let quantised = (zeros.as_deref().map(own).transpose()?, own(&scales)?);
                let weight = Weight::by_rows(name, vec![gates, width], gates_in_order(&values), quantised)?;
                self.insert_weight(format!("{path}.weight_{part}_l0{suffix}"), weight)?;
                let first = (2 * direction + usize::from(part == "hh")) * gates;
                let values = gates_in_order(&biases[first..first + gates]);
                self.reserve(&path, gates, 1)?;
                self.insert(
                    format!("{path}.bias_{part}_l0{suffix}"),
                    NamedTensor::floats(vec![gates], &values),
                )?;
            }
        }
        Ok(())
    }

    /// A quantised table of which a Gather reads rows, or a weight that is dequantised before its use.
    fn table(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let gathered = node.inputs.first().and_then(|input| self.links.producers.get(input));
        let gathered =
            gathered.filter(|producer| producer.op == "Gather").and_then(|node| node.inputs.first());
        let Some((weight, tensor)) = self.initialiser(gathered.or(node.inputs.first())) else {
            return Ok(());
        };
        let (Some((scale, scales)), zero_point) =
            (self.initialiser(node.inputs.get(1)), self.zero_point(node, 2)?)
        else {
            return Err(unsupported(node, "has no stored scale"));
        };
        let name = weight.strip_suffix("_quantized").filter(|name| is_module_path(name));
        let product = self
            .links
            .after(node)
            .filter(|next| next.op == "MatMul" && next.inputs.get(1) == node.outputs.first());
        let quantised = (zero_point.map(|(_, tensor)| tensor.to_f32()), scales.to_f32());
        let (name, kept) = match (name, product) {
            (Some(name), _) => {
                let kept = Weight::by_rows(weight, tensor.shape.clone(), tensor.to_f32(), quantised)?;
                (name.to_owned(), kept)
            }
            (None, Some(product)) => {
                let [rows, columns] = matrix(weight, tensor)?;
                let values = transposed(&tensor.to_f32(), columns);
                let kept = Weight::by_rows(weight, vec![columns, rows], values, quantised)?;
                (self.name_of_dequantised(product)?, kept)
            }
            (None, None) => return Err(unsupported(node, "has a weight without a name")),
        };
        self.used.extend([weight, scale]);
        self.used.extend(zero_point.map(|(name, _)| name));
        self.insert_weight(name, kept)
    }

    /// The name of a weight that is dequantised before its product: after the bias that is added, or without one after the
    /// value of the product.
    fn name_of_dequantised(&self, product: &'g Node<'g>) -> Result<String, ConversionError> {
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        match (self.behind(product).bias, product.outputs.first().filter(|name| is_plain(name))) {
            (None, Some(value)) => Ok(format!("{value}.weight")),
            (bias, _) => self.name_of(product, bias),
        }
    }

    /// A convolution with a float weight without a name.
    fn float_conv(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let Some((weight, tensor)) = self.initialiser(node.inputs.get(1)) else {
            return Ok(());
        };
        if is_module_path(weight) || !tensor.is_float() {
            return Ok(());
        }
        let bias = self.initialiser(node.inputs.get(2)).map(|(name, _)| name);
        let name = self.name_of(node, bias)?;
        self.used.insert(weight);
        let values = tensor.to_f32();
        self.reserve(&name, values.len(), 1)?;
        self.insert(name, NamedTensor::floats(tensor.shape.clone(), &values))
    }

    /// A product with a float weight without a name.
    fn float_matmul(&mut self, node: &'g Node<'g>) -> Result<(), ConversionError> {
        let Some((weight, tensor)) = self.initialiser(node.inputs.get(1)) else {
            return Ok(());
        };
        if is_module_path(weight) || !tensor.is_float() {
            return Ok(());
        }
        let name = self.name_of(node, self.behind(node).bias)?;
        let [rows, columns] = matrix(weight, tensor)?;
        self.used.insert(weight);
        self.reserve(&name, rows, columns)?;
        self.insert(name, NamedTensor::floats(vec![columns, rows], &transposed(&tensor.to_f32(), columns)))
    }

    /// Initialisers that have their names. One that is named after a value of the graph, with slashes, is a constant that the
    /// exporter has computed, unless a rule has found it to be a weight.
    fn named_initialisers(&mut self) -> Result<(), ConversionError> {
        let graph = self.graph;
        for (name, tensor) in &graph.initialisers {
            if self.used.contains(name) {
                continue;
            }
            if is_module_path(name) {
                let values = tensor.to_f32();
                self.reserve(name, values.len(), 1)?;
                self.insert((*name).to_owned(), NamedTensor::floats(tensor.shape.clone(), &values))?;
            } else if tensor.is_float() && tensor.shape.len() > 1 && !name.starts_with('/') {
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

    /// The bias and the scale that are applied to a product.
    fn behind(&self, product: &'g Node<'g>) -> Behind<'g> {
        let mut found = Behind::default();
        let mut node = product;
        for _ in 0..MAX_STEPS {
            let Some(next) = self.links.after(node) else { break };
            let scale =
                (next.op == "Mul").then(|| next.inputs.iter().find_map(|input| self.scale(input))).flatten();
            let bias = self.bias(next);
            match (scale, bias) {
                (Some(scale), _) if found.scale.is_none() => found.scale = Some(scale),
                (_, Some(bias)) if found.bias.is_none() => found.bias = Some(bias),
                _ if matches!(next.op, "Cast" | "QuantizeLinear" | "DequantizeLinear") => {}
                _ => break,
            }
            node = next;
        }
        found
    }

    /// The name of the bias that a node adds, alone or with what it computes too.
    fn bias(&self, node: &'g Node<'g>) -> Option<&'g str> {
        let inputs = match node.op {
            "Add" => &node.inputs[..],
            "BiasGelu" | "FastGelu" => node.inputs.get(1..)?,
            "SkipLayerNormalization" => node.inputs.get(4..5)?,
            _ => return None,
        };
        let is_bias = |name: &&str| is_module_path(name) && name.ends_with("bias");
        let stored = |mut value: &'g str| {
            for _ in 0..MAX_BIAS_STEPS {
                if let Some((name, _)) = self.initialiser(Some(&value)) {
                    return Some(name);
                }
                let producer = self.links.producers.get(value)?;
                let changes_type =
                    matches!(producer.op, "Cast" | "Floor" | "Round" | "Div" | "Reshape" | "Unsqueeze");
                value = producer.inputs.first().filter(|_| changes_type)?;
            }
            None
        };
        inputs.iter().find_map(|input| stored(input).filter(is_bias))
    }

    /// The weight's name, from the bias added to its product, or else from the node's.
    fn name_of(&self, node: &Node<'_>, bias: Option<&str>) -> Result<String, ConversionError> {
        let stem = bias.filter(|name| is_module_path(name)).and_then(|name| name.strip_suffix("bias"));
        match (stem, path_of(node)) {
            (Some(stem), _) => Ok(format!("{stem}weight")),
            (None, Some(path)) => Ok(format!("{path}.weight")),
            (None, None) => Err(unsupported(node, "is followed by no named bias")),
        }
    }

    fn insert_weight(&mut self, name: String, weight: Weight) -> Result<(), ConversionError> {
        self.reserve(&name, weight.elements(), 1)?;
        let scale_name = format!("{name}_scale");
        let (tensor, scales) = weight.kept(self.kept);
        if let Some(scales) = scales {
            self.insert(scale_name, scales)?;
        }
        self.insert(name, tensor)
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

/// What is applied to a product.
#[derive(Default)]
struct Behind<'g> {
    scale: Option<(&'g str, &'g Tensor<'g>)>,
    bias: Option<&'g str>,
}

/// The path of the module that computes a node: `/encoder/lstm/LSTM` is `encoder.lstm`.
fn path_of(node: &Node<'_>) -> Option<String> {
    let (path, _) = node.name.strip_prefix('/')?.rsplit_once('/')?;
    Some(path.replace('/', ".")).filter(|path| is_module_path(path))
}

/// Rows of the gates input, output, forget and cell, as ONNX has them, as input, forget, cell and output.
fn gates_in_order(values: &[f32]) -> Vec<f32> {
    let gate = |at: usize| &values[at * (values.len() / 4)..][..values.len() / 4];
    [gate(0), gate(2), gate(3), gate(1)].concat()
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

/// Transposes row-major `[rows, columns]` to `[columns, rows]`, in tiles that stay in the first-level cache.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let mut turned = vec![0f32; rows * columns];
    for first_row in (0..rows).step_by(TILE) {
        for first in (0..columns).step_by(TILE) {
            for row in first_row..rows.min(first_row + TILE) {
                for column in first..columns.min(first + TILE) {
                    turned[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn rows_become_columns_at_any_size() {
        for (rows, columns) in [(1, 5), (3, 2), (64, 64), (65, 130), (7, 200)] {
            let values: Vec<f32> = (0..rows * columns).map(|at| at as f32).collect();
            let turned = transposed(&values, columns);
            let place = |at: usize| ((at % rows) * columns + at / rows) as f32;
            assert_eq!(turned, (0..rows * columns).map(place).collect::<Vec<_>>(), "{rows} x {columns}");
        }
        assert!(transposed(&[], 3).is_empty());
    }
}
