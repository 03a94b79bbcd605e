//! A weight as a checkpoint has it: rows of one of three floating-point types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// `[outputs, inputs]`.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    Single(&'a [f32]),
    Half(&'a [f16]),
    Brain(&'a [bf16]),
}

impl Source<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Single(values) => values.len(),
            Self::Half(values) => values.len(),
            Self::Brain(values) => values.len(),
        }
    }

    /// Row `output` of `to.len()` inputs.
    pub fn row(&self, output: usize, to: &mut [f32]) {
        let part = output * to.len()..(output + 1) * to.len();
        match self {
            Self::Single(values) => to.copy_from_slice(&values[part]),
            Self::Half(values) => values[part].convert_to_f32_slice(to),
            Self::Brain(values) => {
                to.iter_mut().zip(&values[part]).for_each(|(to, value)| *to = value.to_f32());
            }
        }
    }

    /// Whether every value is one of f16's.
    pub fn is_half(&self) -> bool {
        match self {
            Self::Single(values) => {
                values.iter().all(|&value| f16::from_f32(value).to_f32().to_bits() == value.to_bits())
            }
            Self::Half(_) => true,
            Self::Brain(_) => false,
        }
    }

    /// Whether every value is one of bf16's.
    pub fn is_brain(&self) -> bool {
        match self {
            Self::Single(values) => values.iter().all(|value| value.to_bits() & 0xffff == 0),
            Self::Half(_) => false,
            Self::Brain(_) => true,
        }
    }
}
