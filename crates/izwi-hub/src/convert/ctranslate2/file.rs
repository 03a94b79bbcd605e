//! Reads the container: variables and aliases. Knows no naming rule. Checks every length against the available bytes
//! before it allocates.
//! <https://github.com/OpenNMT/CTranslate2/blob/master/python/ctranslate2/specs/model_spec.py>

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::{Dtype, View};

use crate::convert::error::{ConversionError, malformed};

/// Earlier versions have another layout.
const VERSION: u32 = 6;

/// The contents of a file.
#[derive(Debug)]
pub(super) struct File<'a> {
    pub(super) variables: BTreeMap<&'a str, Variable<'a>>,
    /// Other names of variables: (name, variable).
    pub(super) aliases: BTreeMap<&'a str, &'a str>,
}

/// One variable. Its length fits its shape.
#[derive(Debug, Clone)]
pub(super) struct Variable<'a> {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    /// Little-endian values in row-major order.
    pub(super) data: &'a [u8],
}

/// Data type of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    I8,
    I16,
    I32,
    F16,
    BF16,
}

impl<'a> File<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ConversionError> {
        let mut rest = Reader(bytes);
        let version = rest.u32()?;
        if version != VERSION {
            let reason = format!("the file has version {version}, only {VERSION} is read");
            return Err(ConversionError::Unsupported(reason));
        }
        let _specification = rest.text()?;
        let _revision = rest.u32()?;
        let mut variables = BTreeMap::new();
        for _ in 0..rest.u32()? {
            let name = rest.text()?;
            let variable = rest.variable(name)?;
            if variables.insert(name, variable).is_some() {
                return Err(malformed(format!("two variables are named '{name}'")));
            }
        }
        let mut aliases = BTreeMap::new();
        for _ in 0..rest.u32()? {
            let alias = rest.text()?;
            let variable = rest.text()?;
            if variables.contains_key(alias) || aliases.insert(alias, variable).is_some() {
                return Err(malformed(format!("the name '{alias}' is given twice")));
            }
        }
        match rest.0.len() {
            0 => Ok(Self { variables, aliases }),
            left => Err(malformed(format!("{left} bytes follow its end"))),
        }
    }
}

impl View for Variable<'_> {
    fn dtype(&self) -> Dtype {
        match self.kind {
            Kind::F32 => Dtype::F32,
            Kind::I8 => Dtype::I8,
            Kind::I16 => Dtype::I16,
            Kind::I32 => Dtype::I32,
            Kind::F16 => Dtype::F16,
            Kind::BF16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        [Self::F32, Self::I8, Self::I16, Self::I32, Self::F16, Self::BF16].get(usize::from(code)).copied()
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "float32",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        })
    }
}

/// The unread bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ConversionError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| malformed(format!("a field of {length} bytes where {} are left", self.0.len())))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ConversionError> {
        let (array, rest) =
            self.0.split_first_chunk().ok_or_else(|| malformed("it ends inside a number".into()))?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, ConversionError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, ConversionError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A length of four bytes.
    fn length(&mut self) -> Result<usize, ConversionError> {
        usize::try_from(self.u32()?).map_err(|error| malformed(error.to_string()))
    }

    /// A text; its length counts the zero byte at its end.
    fn text(&mut self) -> Result<&'a str, ConversionError> {
        let length = u16::from_le_bytes(self.array()?);
        let bytes = self.take(usize::from(length))?;
        let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        std::str::from_utf8(text).map_err(|error| malformed(error.to_string()))
    }

    fn variable(&mut self, name: &str) -> Result<Variable<'a>, ConversionError> {
        let rank = self.u8()?;
        let shape = (0..rank).map(|_| self.length()).collect::<Result<Vec<_>, _>>()?;
        let code = self.u8()?;
        let kind = Kind::from_code(code)
            .ok_or_else(|| ConversionError::Unsupported(format!("'{name}' has data type {code}")))?;
        let length = self.length()?;
        let expected = shape.iter().try_fold(kind.bytes(), |bytes, dim| bytes.checked_mul(*dim));
        if expected != Some(length) {
            return Err(malformed(format!("'{name}' has {length} bytes for {kind} of the shape {shape:?}")));
        }
        Ok(Variable { kind, shape, data: self.take(length)? })
    }
}
