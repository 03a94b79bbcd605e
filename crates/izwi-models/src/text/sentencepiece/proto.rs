//! Messages in the wire format of protocol buffers: <https://protobuf.dev/programming-guides/encoding>. Knows no schema.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Integer(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message, in order, up to the first fault.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("ends inside a field")?;
        self.rest = rest;
        Ok(taken)
    }

    fn integer(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("has a number of too many bytes".to_owned())
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), String> {
        let tag = self.integer()?;
        let value = match tag & 7 {
            0 => Value::Integer(self.integer()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let count = usize::try_from(self.integer()?).unwrap_or(usize::MAX);
                Value::Bytes(self.take(count)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            kind => return Err(format!("has a field of type {kind}, which is unknown")),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}
