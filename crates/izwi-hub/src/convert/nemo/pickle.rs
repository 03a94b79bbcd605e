//! Reads what PyTorch pickles of named tensors. Runs nothing: names of functions are compared with those known, and every
//! length is checked before it is used. Knows no tensor's bytes.
//! <https://github.com/python/cpython/blob/3.12/Lib/pickletools.py>

use std::collections::HashMap;
use std::rc::Rc;

use safetensors::tensor::Dtype;

use crate::convert::error::{ConversionError, malformed};

type Read<T> = Result<T, ConversionError>;

/// The most values of a tuple: dimensions, or arguments.
const MAX_TUPLE: usize = 16;

/// Where a tensor's values are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    pub(super) kind: Dtype,
    /// Name of the storage's member.
    pub(super) storage: Rc<str>,
    /// Its first value within the storage.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Value {
    Number(i64),
    Text(Rc<str>),
    OrderedDict,
    RebuildTensor,
    Kind(Dtype),
    Storage(Dtype, Rc<str>),
    Tensor(Rc<Place>),
    /// Values without values of their own.
    Tuple(Rc<[Value]>),
    /// A dictionary, by its index.
    Dict(usize),
    Mark,
    /// What is of no use.
    Other,
}

/// The machine.
#[derive(Default)]
struct Machine {
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
    /// The named tensors of each dictionary.
    dicts: Vec<Vec<(Rc<str>, Rc<Place>)>>,
}

/// The tensors of a pickled dictionary, in order.
pub(super) fn tensors(bytes: &[u8]) -> Read<Vec<(Rc<str>, Rc<Place>)>> {
    let mut machine = Machine::default();
    let mut rest = Bytes(bytes);
    while machine.step(&mut rest)? {}
    match machine.stack.pop() {
        Some(Value::Dict(index)) => Ok(machine.dicts.swap_remove(index)),
        _ => Err(malformed("the weights are no dictionary".to_owned())),
    }
}

impl Machine {
    /// Runs the next instruction; `false` after the last.
    fn step(&mut self, rest: &mut Bytes<'_>) -> Read<bool> {
        match rest.byte()? {
            b'.' => return Ok(false),
            0x80 => match rest.byte()? {
                2 | 3 => {}
                version => return Err(unsupported(format!("protocol {version}"))),
            },
            b'(' => self.stack.push(Value::Mark),
            b'N' | 0x88 | 0x89 => self.stack.push(Value::Other),
            b'G' => {
                rest.take(8)?;
                self.stack.push(Value::Other);
            }
            b'K' => self.stack.push(Value::Number(rest.unsigned(1)?.into())),
            b'M' => self.stack.push(Value::Number(rest.unsigned(2)?.into())),
            b'J' => self.stack.push(Value::Number(i64::from(rest.unsigned(4)?.cast_signed()))),
            0x8a => {
                let long = usize::from(rest.byte()?);
                let number = rest.long(long)?;
                self.stack.push(Value::Number(number));
            }
            b'X' => {
                let length = rest.unsigned(4)? as usize;
                let text = str::from_utf8(rest.take(length)?);
                self.stack
                    .push(Value::Text(text.map_err(|_| malformed("a text is no UTF-8".to_owned()))?.into()));
            }
            b'c' => {
                let name = global(rest.line()?, rest.line()?)?;
                self.stack.push(name);
            }
            b'q' => self.memoise(u32::from(rest.byte()?))?,
            b'r' => self.memoise(rest.unsigned(4)?)?,
            b'h' => self.recall(u32::from(rest.byte()?))?,
            b'j' => self.recall(rest.unsigned(4)?)?,
            b')' => self.tuple(0)?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let count = self.marked()?.len();
                self.tuple(count)?;
                // The mark below the tuple.
                let tuple = self.pop()?;
                self.pop()?;
                self.stack.push(tuple);
            }
            b'}' => self.dictionary(),
            b'Q' => self.storage()?,
            b'R' => self.reduce()?,
            b'b' => drop(self.pop()?),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.marked()?.to_vec();
                self.stack.truncate(self.stack.len() - items.len() - 1);
                self.set(&items)?;
            }
            code => return Err(unsupported(format!("instruction {code:#04x}"))),
        }
        Ok(true)
    }

    fn pop(&mut self) -> Read<Value> {
        self.stack.pop().ok_or_else(empty)
    }

    fn memoise(&mut self, key: u32) -> Read<()> {
        let value = self.stack.last().cloned().ok_or_else(empty)?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Read<()> {
        let known = self.memo.get(&key).cloned();
        self.stack.push(known.ok_or_else(|| malformed(format!("value {key} is used before it is kept")))?);
        Ok(())
    }

    /// The values above the last mark.
    fn marked(&self) -> Read<&[Value]> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark)).ok_or_else(empty)?;
        Ok(&self.stack[mark + 1..])
    }

    fn tuple(&mut self, count: usize) -> Read<()> {
        let start = self.stack.len().checked_sub(count).ok_or_else(empty)?;
        if count > MAX_TUPLE {
            return Err(malformed(format!("a tuple has {count} values")));
        }
        // Sizes are tuples of numbers within one of arguments; nothing is deeper.
        let is_flat = |value: &Value| !matches!(value, Value::Tuple(_));
        let is_shallow = |value: &Value| match value {
            Value::Tuple(inner) => inner.iter().all(is_flat),
            _ => true,
        };
        if !self.stack[start..].iter().all(is_shallow) {
            return Err(malformed("tuples are nested".to_owned()));
        }
        let values: Rc<[Value]> = self.stack.drain(start..).collect();
        self.stack.push(Value::Tuple(values));
        Ok(())
    }

    fn dictionary(&mut self) {
        self.stack.push(Value::Dict(self.dicts.len()));
        self.dicts.push(Vec::new());
    }

    /// A storage, by the tuple that names it.
    fn storage(&mut self) -> Read<()> {
        let Value::Tuple(named) = self.pop()? else {
            return Err(malformed("a storage has no name".to_owned()));
        };
        let [_, Value::Kind(kind), Value::Text(name), ..] = &named[..] else {
            return Err(malformed("a storage has no name".to_owned()));
        };
        self.stack.push(Value::Storage(*kind, Rc::clone(name)));
        Ok(())
    }

    /// What a known function makes of its arguments.
    fn reduce(&mut self) -> Read<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (function, arguments) {
            (Value::OrderedDict, Value::Tuple(none)) if none.is_empty() => self.dictionary(),
            (Value::RebuildTensor, Value::Tuple(arguments)) => {
                let place = rebuild(&arguments)?;
                self.stack.push(Value::Tensor(Rc::new(place)));
            }
            _ => return Err(malformed("a function has other arguments than those of a tensor".to_owned())),
        }
        Ok(())
    }

    /// Puts keys and values into the dictionary below them; only named tensors are kept.
    fn set(&mut self, items: &[Value]) -> Read<()> {
        let Some(Value::Dict(index)) = self.stack.last() else {
            return Err(malformed("an item belongs to no dictionary".to_owned()));
        };
        for pair in items.chunks(2) {
            if let [Value::Text(name), Value::Tensor(place)] = pair {
                self.dicts[*index].push((Rc::clone(name), Rc::clone(place)));
            }
        }
        Ok(())
    }
}

/// A name that is imported.
fn global(module: &str, name: &str) -> Read<Value> {
    let kind = |kind| Ok(Value::Kind(kind));
    match (module, name) {
        ("collections", "OrderedDict") => Ok(Value::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Value::RebuildTensor),
        ("torch", "FloatStorage") => kind(Dtype::F32),
        ("torch", "HalfStorage") => kind(Dtype::F16),
        ("torch", "BFloat16Storage") => kind(Dtype::BF16),
        ("torch", "DoubleStorage") => kind(Dtype::F64),
        ("torch", "LongStorage") => kind(Dtype::I64),
        ("torch", "IntStorage") => kind(Dtype::I32),
        ("torch", "BoolStorage") => kind(Dtype::BOOL),
        _ => {
            let name: String =
                format!("{module}.{name}").chars().filter(|c| !c.is_control()).take(64).collect();
            Err(unsupported(format!("{name}, which makes no tensor")))
        }
    }
}

/// A tensor of storage, offset, sizes and strides.
fn rebuild(arguments: &[Value]) -> Read<Place> {
    let wrong = || malformed("a tensor has no sizes".to_owned());
    let [
        Value::Storage(kind, storage),
        Value::Number(offset),
        Value::Tuple(sizes),
        Value::Tuple(strides),
        ..,
    ] = arguments
    else {
        return Err(wrong());
    };
    let numbers = |values: &[Value]| -> Option<Vec<usize>> {
        let number = |value: &Value| match value {
            Value::Number(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        values.iter().map(number).collect()
    };
    let offset = usize::try_from(*offset).map_err(|_| wrong())?;
    let (shape, strides) = (numbers(sizes).ok_or_else(wrong)?, numbers(strides).ok_or_else(wrong)?);
    let mut expected = 1usize;
    for (&size, &stride) in shape.iter().zip(&strides).rev() {
        if size > 1 && stride != expected {
            return Err(ConversionError::Unsupported("a tensor is not in row-major order".to_owned()));
        }
        expected = expected.checked_mul(size).ok_or_else(wrong)?;
    }
    if shape.len() != strides.len() {
        return Err(wrong());
    }
    Ok(Place { kind: *kind, storage: Rc::clone(storage), offset, shape })
}

fn empty() -> ConversionError {
    malformed("the weights' index takes a value that is not there".to_owned())
}

fn unsupported(what: String) -> ConversionError {
    ConversionError::Unsupported(format!("the weights' index uses {what}"))
}

/// The bytes that are left.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let ends = || malformed("the weights' index ends early".to_owned());
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(ends)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    /// A number of at most 4 bytes.
    fn unsigned(&mut self, count: usize) -> Read<u32> {
        Ok(self.take(count)?.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }

    /// A signed number of `count` bytes.
    fn long(&mut self, count: usize) -> Read<i64> {
        if count > size_of::<i64>() {
            return Err(malformed(format!("a number has {count} bytes")));
        }
        let bytes = self.take(count)?;
        let sign = if bytes.last().is_some_and(|&byte| byte & 0x80 != 0) { -1 } else { 0 };
        Ok(bytes.iter().rev().fold(sign, |number, &byte| number << 8 | i64::from(byte)))
    }

    fn line(&mut self) -> Read<&'a str> {
        let end = self.0.iter().position(|&byte| byte == b'\n').unwrap_or(self.0.len());
        let line = self.take(end)?;
        self.take(1)?;
        str::from_utf8(line).map_err(|_| malformed("a name is no UTF-8".to_owned()))
    }
}
