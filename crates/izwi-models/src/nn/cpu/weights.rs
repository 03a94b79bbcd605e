//! The right side of a product in whichever form it is kept.

use half::{bf16, f16};

use super::super::precision::Precision;
use super::blocks::{self, Blocks};
use super::grades::{Eight, Four};
use super::panels::{self, Panels, Rows};
use super::source::Source;

/// A matrix `[inputs, outputs]`.
#[derive(Debug, Clone)]
pub(crate) enum Weights {
    Single(Panels<f32>),
    Half(Panels<f16>),
    Brain(Panels<bf16>),
    Eight(Blocks<Eight>),
    Four(Blocks<Four>),
}

impl Weights {
    /// Packs a weight `[outputs, inputs]`; at [`Precision::F32`] in 16 bits where that loses nothing.
    pub(crate) fn pack(weight: Source<'_>, inputs: usize, outputs: usize, precision: Precision) -> Self {
        let precision = match precision.on(true) {
            Precision::F32 if weight.is_brain() => Precision::Bf16,
            Precision::F32 if weight.is_half() => Precision::F16,
            chosen => chosen,
        };
        match precision {
            Precision::F16 => Self::Half(Panels::pack_rows(weight, inputs, outputs)),
            Precision::Bf16 => Self::Brain(Panels::pack_rows(weight, inputs, outputs)),
            Precision::F32 => Self::Single(Panels::pack_rows(weight, inputs, outputs)),
            Precision::Auto | Precision::Q8 => Self::Eight(Blocks::pack(weight, inputs, outputs)),
            Precision::Q4 => Self::Four(Blocks::pack(weight, inputs, outputs)),
        }
    }

    /// `y[rows, outputs] = x W (+ bias)`.
    pub(crate) fn product(&self, x: Rows<'_>, bias: Option<&[f32]>, y: &mut [f32]) {
        match self {
            Self::Single(panels) => panels::product(x, panels, bias, y),
            Self::Half(panels) => panels::product(x, panels, bias, y),
            Self::Brain(panels) => panels::product(x, panels, bias, y),
            Self::Eight(blocks) => blocks::product(x, blocks, bias, y),
            Self::Four(blocks) => blocks::product(x, blocks, bias, y),
        }
    }

    /// Appends column `output` as f32, one value per input.
    pub(crate) fn push_column(&self, output: usize, to: &mut Vec<f32>) {
        match self {
            Self::Single(panels) => to.extend(panels.column(output)),
            Self::Half(panels) => to.extend(panels.column(output)),
            Self::Brain(panels) => to.extend(panels.column(output)),
            Self::Eight(blocks) => to.extend(blocks.column(output)),
            Self::Four(blocks) => to.extend(blocks.column(output)),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Single(panels) => panels.bytes(),
            Self::Half(panels) => panels.bytes(),
            Self::Brain(panels) => panels.bytes(),
            Self::Eight(blocks) => blocks.bytes(),
            Self::Four(blocks) => blocks.bytes(),
        }
    }
}
