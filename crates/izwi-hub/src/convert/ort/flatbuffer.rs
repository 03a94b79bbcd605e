//! Tables of a FlatBuffer, read by the numbers of their fields. Every place is checked. Knows no schema.
//!
//! Source: <https://flatbuffers.dev/internals/>.

use crate::convert::error::{ConversionError, malformed};

/// Bytes of an offset, and of a number of an offset table.
const OFFSET: usize = 4;
const SHORT: usize = 2;

/// A table inside the bytes of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    data: &'a [u8],
    place: usize,
    /// Where the offsets of its fields are.
    fields: usize,
}

fn bytes<const N: usize>(data: &[u8], place: usize) -> Result<[u8; N], ConversionError> {
    let found = data.get(place..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or_else(|| malformed(format!("an offset leads to byte {place} of {}", data.len())))
}

/// The place that the offset at `place` leads to.
fn follow(data: &[u8], place: usize) -> Result<usize, ConversionError> {
    Ok(place.saturating_add(u32::from_le_bytes(bytes(data, place)?) as usize))
}

impl<'a> Table<'a> {
    /// The root of a file.
    pub(super) fn root(data: &'a [u8]) -> Result<Self, ConversionError> {
        Self::at(data, follow(data, 0)?)
    }

    fn at(data: &'a [u8], place: usize) -> Result<Self, ConversionError> {
        let back = i64::from(i32::from_le_bytes(bytes(data, place)?));
        let fields = i64::try_from(place).ok().and_then(|place| usize::try_from(place - back).ok());
        let fields = fields.ok_or_else(|| malformed(format!("the table at byte {place} has no fields")))?;
        Ok(Self { data, place, fields })
    }

    /// The place of a field; `None` if the table lacks it.
    fn field(&self, number: usize) -> Result<Option<usize>, ConversionError> {
        let at = OFFSET + SHORT * number;
        if at >= usize::from(u16::from_le_bytes(bytes(self.data, self.fields)?)) {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(bytes(self.data, self.fields.saturating_add(at))?);
        Ok((offset > 0).then(|| self.place + usize::from(offset)))
    }

    /// A number; 0 without one.
    pub(super) fn number(&self, field: usize) -> Result<i32, ConversionError> {
        self.field(field)?.map_or(Ok(0), |place| Ok(i32::from_le_bytes(bytes(self.data, place)?)))
    }

    /// A table that must be there.
    pub(super) fn table(&self, field: usize) -> Result<Self, ConversionError> {
        let place = self.field(field)?.ok_or_else(|| malformed(format!("a table has no field {field}")))?;
        Self::at(self.data, follow(self.data, place)?)
    }

    /// The bytes of a vector whose elements have `size` bytes each; none without the vector.
    pub(super) fn vector(&self, field: usize, size: usize) -> Result<&'a [u8], ConversionError> {
        match self.field(field)? {
            Some(place) => vector(self.data, follow(self.data, place)?, size),
            None => Ok(&[]),
        }
    }

    pub(super) fn text(&self, field: usize) -> Result<&'a str, ConversionError> {
        text(self.vector(field, 1)?)
    }

    /// The tables of a vector.
    pub(super) fn tables(&self, field: usize) -> Result<Vec<Self>, ConversionError> {
        self.places(field)?.into_iter().map(|place| Self::at(self.data, place)).collect()
    }

    /// The texts of a vector.
    pub(super) fn texts(&self, field: usize) -> Result<Vec<&'a str>, ConversionError> {
        self.places(field)?.into_iter().map(|place| text(vector(self.data, place, 1)?)).collect()
    }

    /// Where the elements of a vector of offsets are.
    fn places(&self, field: usize) -> Result<Vec<usize>, ConversionError> {
        let Some(place) = self.field(field)? else { return Ok(Vec::new()) };
        let place = follow(self.data, place)?;
        let count = vector(self.data, place, OFFSET)?.len() / OFFSET;
        (1..=count).map(|index| follow(self.data, place + OFFSET * index)).collect()
    }
}

/// The elements of the vector at `place`.
fn vector(data: &[u8], place: usize, size: usize) -> Result<&[u8], ConversionError> {
    let count = u32::from_le_bytes(bytes(data, place)?) as usize;
    let rest = &data[place + OFFSET..];
    rest.get(..count.saturating_mul(size))
        .ok_or_else(|| malformed(format!("the vector at byte {place} is longer than the file")))
}

fn text(bytes: &[u8]) -> Result<&str, ConversionError> {
    std::str::from_utf8(bytes).map_err(|_| malformed("a name is not UTF-8".to_owned()))
}
