//! Reads the protobuf wire format. Knows no schema; checks every length against the available bytes.
//! <https://protobuf.dev/programming-guides/encoding/>

use crate::convert::error::{ConversionError, malformed};

/// One field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// A message, read field by field.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// The next field's number and value; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, ConversionError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => Value::Fixed64(fixed(&mut self.0)?),
            2 => {
                let length = varint(&mut self.0)?;
                Value::Bytes(take(&mut self.0, length)?)
            }
            5 => Value::Fixed32(fixed(&mut self.0)?),
            other => return Err(malformed(format!("wire type {other}"))),
        };
        Ok(Some((key >> 3, value)))
    }
}

impl<'a> Value<'a> {
    pub(super) fn bytes(self) -> Result<&'a [u8], ConversionError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(malformed(format!("{other:?} instead of bytes"))),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, ConversionError> {
        std::str::from_utf8(self.bytes()?).map_err(|error| malformed(error.to_string()))
    }

    /// Appends the integers of a repeated field, packed or not.
    pub(super) fn varints(self, to: &mut Vec<u64>) -> Result<(), ConversionError> {
        match self {
            Self::Varint(value) => to.push(value),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    to.push(varint(&mut packed)?);
                }
            }
            other => return Err(malformed(format!("{other:?} instead of integers"))),
        }
        Ok(())
    }

    /// Appends the floats of a repeated field, packed or not.
    pub(super) fn floats(self, to: &mut Vec<f32>) -> Result<(), ConversionError> {
        match self {
            Self::Fixed32(bytes) => to.push(f32::from_le_bytes(bytes)),
            Self::Bytes(packed) => {
                let (values, []) = packed.as_chunks() else {
                    return Err(malformed(format!("{} bytes of packed floats", packed.len())));
                };
                to.extend(values.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            other => return Err(malformed(format!("{other:?} instead of floats"))),
        }
        Ok(())
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ConversionError> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or_else(|| malformed("it ends inside a number".into()))?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(malformed("a number of more than 64 bits".into()))
}

fn fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], ConversionError> {
    let (value, rest) =
        bytes.split_first_chunk().ok_or_else(|| malformed("it ends inside a number".into()))?;
    *bytes = rest;
    Ok(*value)
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], ConversionError> {
    let split = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
    let (taken, rest) = split
        .ok_or_else(|| malformed(format!("a field of {length} bytes where {} are left", bytes.len())))?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type() {
        let message = [8, 0x96, 1, 17, 1, 0, 0, 0, 0, 0, 0, 0, 26, 2, 7, 8, 37, 0, 0, 128, 63];
        let mut fields = Fields::of(&message);
        assert_eq!(fields.next().unwrap(), Some((1, Value::Varint(150))));
        assert_eq!(fields.next().unwrap(), Some((2, Value::Fixed64([1, 0, 0, 0, 0, 0, 0, 0]))));
        assert_eq!(fields.next().unwrap(), Some((3, Value::Bytes(&[7, 8]))));
        assert_eq!(fields.next().unwrap(), Some((4, Value::Fixed32(1.0_f32.to_le_bytes()))));
        assert_eq!(fields.next().unwrap(), None);
    }

    #[test]
    fn truncated_messages_are_refused() {
        for message in [&[8][..], &[8, 0x80], &[18, 5, 1], &[9, 0], &[13, 0, 0], &[11], &[8; 1], &[0xff; 12]]
        {
            assert!(Fields::of(message).next().is_err(), "{message:?}");
        }
        assert!(Value::Bytes(&[0, 0, 0]).floats(&mut Vec::new()).is_err());
    }
}
