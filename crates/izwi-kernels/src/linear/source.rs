//! A weight as a checkpoint stores it: rows in one of three floating-point types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A weight `[outputs, inputs]`.
#[derive(Debug, Clone, Copy)]
pub enum WeightSource<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl WeightSource<'_> {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Writes row `output`, of `to.len()` inputs.
    pub(crate) fn row(&self, output: usize, to: &mut [f32]) {
        let part = output * to.len()..(output + 1) * to.len();
        match self {
            Self::F32(values) => to.copy_from_slice(&values[part]),
            Self::F16(values) => values[part].convert_to_f32_slice(to),
            Self::Bf16(values) => {
                to.iter_mut().zip(&values[part]).for_each(|(to, value)| *to = value.to_f32());
            }
        }
    }

    /// Whether every value is exact in f16.
    pub(crate) fn is_f16(&self) -> bool {
        match self {
            Self::F32(values) => {
                values.iter().all(|&value| f16::from_f32(value).to_f32().to_bits() == value.to_bits())
            }
            Self::F16(_) => true,
            Self::Bf16(_) => false,
        }
    }

    /// Whether every value is exact in bf16.
    pub(crate) fn is_bf16(&self) -> bool {
        match self {
            Self::F32(values) => values.iter().all(|value| value.to_bits() & 0xffff == 0),
            Self::F16(_) => false,
            Self::Bf16(_) => true,
        }
    }
}
