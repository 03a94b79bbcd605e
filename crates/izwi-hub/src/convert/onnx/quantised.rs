//! Quantised weights, and tensors ready to be written. Knows no graph.

use std::borrow::Cow;

use safetensors::tensor::{Dtype, View};

use crate::convert::error::ConversionError;

/// What becomes of a quantised weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::convert) enum Quantised {
    /// It is multiplied out, to f32.
    Floats,
    /// It stays int8 if its zero points allow, with `{name}_scale`: one value, or one of each row.
    Int8,
}

/// A tensor ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Little-endian values.
    data: Vec<u8>,
}

impl View for NamedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
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
    /// Of f32.
    pub(super) fn floats(shape: Vec<usize>, values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape, data }
    }
}

/// A quantised weight, its zero points subtracted.
pub(super) struct Weight {
    shape: Vec<usize>,
    values: Vec<f32>,
    /// One, or one of each row.
    scales: Vec<f32>,
}

impl Weight {
    /// From values of `shape`, zero points and scales, one or one of each row; `name` is for errors.
    ///
    /// # Errors
    /// There is another number of them.
    pub(super) fn by_rows(
        name: &str,
        shape: Vec<usize>,
        mut values: Vec<f32>,
        (zeros, scales): (Option<Vec<f32>>, Vec<f32>),
    ) -> Result<Self, ConversionError> {
        let zeros = zeros.unwrap_or_else(|| vec![0.0]);
        let rows = shape.first().copied().unwrap_or(0);
        if rows == 0 || values.is_empty() {
            return Err(ConversionError::Unsupported(format!("the weight '{name}' has the shape {shape:?}")));
        }
        if [zeros.len(), scales.len()].into_iter().any(|count| count != 1 && count != rows) {
            return Err(ConversionError::Unsupported(format!(
                "'{name}' has {} zero points and {} scales for {rows} rows",
                zeros.len(),
                scales.len()
            )));
        }
        let width = values.len() / rows;
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            let zero = zeros[row % zeros.len()];
            values.iter_mut().for_each(|value| *value -= zero);
        }
        Ok(Self { shape, values, scales })
    }

    pub(super) fn elements(&self) -> usize {
        self.values.len()
    }

    /// The tensor, and its scales if it stays int8.
    pub(super) fn kept(mut self, kept: Quantised) -> (NamedTensor, Option<NamedTensor>) {
        let is_int8 = |value: &f32| (-128.0..=127.0).contains(value) && value.fract() == 0.0;
        if kept == Quantised::Int8 && self.values.iter().all(is_int8) {
            let data = self.values.iter().map(|value| (*value as i8).cast_unsigned()).collect();
            let scales = NamedTensor::floats(vec![self.scales.len()], &self.scales);
            return (NamedTensor { dtype: Dtype::I8, shape: self.shape, data }, Some(scales));
        }
        let width = self.values.len() / self.shape[0];
        for (row, values) in self.values.chunks_exact_mut(width).enumerate() {
            let scale = self.scales[row % self.scales.len()];
            values.iter_mut().for_each(|value| *value *= scale);
        }
        (NamedTensor::floats(self.shape, &self.values), None)
    }
}
