//! The part of the ONNX schema that has weights: initialisers and the nodes that use them. Knows no naming rule.
//! <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>

use std::collections::BTreeMap;

use super::wire::{Fields, Value};
use crate::convert::error::{ConversionError, malformed};

/// `TensorProto.DataType` of single-precision floats.
const FLOAT: u64 = 1;
const UINT8: u64 = 2;
const INT8: u64 = 3;
const INT32: u64 = 6;
const INT64: u64 = 7;
/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: u64 = 1;

/// A model's main graph.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) initialisers: BTreeMap<&'a str, Tensor<'a>>,
}

/// One operation.
#[derive(Debug, Default)]
pub(super) struct Node<'a> {
    /// May be empty.
    pub(super) name: &'a str,
    pub(super) op: &'a str,
    pub(super) inputs: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
}

/// One initialiser. Its length fits its shape.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub(super) shape: Vec<usize>,
    data: Data<'a>,
}

#[derive(Debug)]
enum Data<'a> {
    /// Little-endian values, as in the file.
    Raw(Kind, &'a [u8]),
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    U8,
    I8,
    I32,
    I64,
}

impl<'a> Graph<'a> {
    /// Reads a `ModelProto`.
    pub(super) fn parse(model: &'a [u8]) -> Result<Self, ConversionError> {
        let mut fields = Fields::of(model);
        let mut graph = None;
        while let Some((number, value)) = fields.next()? {
            if number == 7 {
                graph = Some(value.bytes()?);
            }
        }
        let mut fields = Fields::of(graph.ok_or_else(|| malformed("it holds no graph".into()))?);
        let mut graph = Self { nodes: Vec::new(), initialisers: BTreeMap::new() };
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => graph.nodes.push(Node::parse(value.bytes()?)?),
                5 => {
                    let (name, tensor) = Tensor::parse(value.bytes()?)?;
                    if graph.initialisers.insert(name, tensor).is_some() {
                        return Err(malformed(format!("two initialisers are named '{name}'")));
                    }
                }
                15 => return Err(ConversionError::Unsupported("the graph has sparse initialisers".into())),
                _ => {}
            }
        }
        Ok(graph)
    }
}

impl<'a> Node<'a> {
    fn parse(message: &'a [u8]) -> Result<Self, ConversionError> {
        let mut node = Self::default();
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => node.inputs.push(value.text()?),
                2 => node.outputs.push(value.text()?),
                3 => node.name = value.text()?,
                4 => node.op = value.text()?,
                _ => {}
            }
        }
        Ok(node)
    }
}

/// The fields of a `TensorProto` before they are checked.
#[derive(Default)]
struct RawTensor<'a> {
    name: &'a str,
    dims: Vec<u64>,
    kind: u64,
    external: bool,
    raw: Option<&'a [u8]>,
    floats: Vec<f32>,
    integers: Vec<u64>,
}

impl<'a> Tensor<'a> {
    fn parse(message: &'a [u8]) -> Result<(&'a str, Self), ConversionError> {
        let mut tensor = RawTensor::default();
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (1, value) => value.varints(&mut tensor.dims)?,
                (2, Value::Varint(kind)) => tensor.kind = kind,
                (4, value) => value.floats(&mut tensor.floats)?,
                (5 | 7, value) => value.varints(&mut tensor.integers)?,
                (8, value) => tensor.name = value.text()?,
                (9, value) => tensor.raw = Some(value.bytes()?),
                (14, Value::Varint(location)) => tensor.external = location == EXTERNAL,
                _ => {}
            }
        }
        let name = tensor.name;
        Ok((name, tensor.checked()?))
    }

    /// The values as floats, in row-major order; integers are rounded to the nearest.
    pub(super) fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            Data::Floats(values) => values.clone(),
            Data::Integers(values) => values.iter().map(|value| *value as f32).collect(),
            Data::Raw(kind, bytes) => kind.to_f32(bytes),
        }
    }

    pub(super) fn is_float(&self) -> bool {
        matches!(self.data, Data::Floats(_) | Data::Raw(Kind::F32, _))
    }
}

impl<'a> RawTensor<'a> {
    fn checked(self) -> Result<Tensor<'a>, ConversionError> {
        let name = self.name;
        if self.external {
            return Err(ConversionError::Unsupported(format!("'{name}' is stored outside the file")));
        }
        let kind = match self.kind {
            FLOAT => Kind::F32,
            UINT8 => Kind::U8,
            INT8 => Kind::I8,
            INT32 => Kind::I32,
            INT64 => Kind::I64,
            other => return Err(ConversionError::Unsupported(format!("'{name}' has data type {other}"))),
        };
        let shape: Option<Vec<usize>> = self.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let shape = shape.ok_or_else(|| malformed(format!("'{name}' has the shape {:?}", self.dims)))?;
        let expected = shape.iter().try_fold(1_usize, |count, dim| count.checked_mul(*dim));
        let (data, count) = match (self.raw, kind) {
            (Some(raw), kind) => {
                let whole = raw.len().is_multiple_of(kind.bytes());
                (Data::Raw(kind, raw), whole.then_some(raw.len() / kind.bytes()))
            }
            (None, Kind::F32) => {
                let count = self.floats.len();
                (Data::Floats(self.floats), Some(count))
            }
            // Negative numbers are sign-extended to 64 bits.
            (None, _) => {
                let values: Vec<i64> = self.integers.iter().map(|value| value.cast_signed()).collect();
                let count = values.len();
                (Data::Integers(values), Some(count))
            }
        };
        if expected.is_none() || expected != count {
            return Err(malformed(format!("'{name}' has another number of values than its shape {shape:?}")));
        }
        Ok(Tensor { shape, data })
    }
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    fn to_f32(self, raw: &[u8]) -> Vec<f32> {
        match self {
            Self::U8 => raw.iter().map(|byte| f32::from(*byte)).collect(),
            Self::I8 => raw.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
            Self::F32 => raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Self::I32 => raw.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as f32).collect(),
            Self::I64 => raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as f32).collect(),
        }
    }
}
