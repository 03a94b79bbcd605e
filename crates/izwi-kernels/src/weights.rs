//! The right side of a product in whichever form it is kept.

use half::{bf16, f16};

use crate::blocks::{self, Blocks};
use crate::grades::{Eight, Four};
use crate::memory::{Kind, Packed, Part, Sizes};
use crate::panels::{self, Panels, Rows};
use crate::precision::Precision;
use crate::source::Source;

/// A matrix `[inputs, outputs]`.
#[derive(Debug, Clone)]
pub enum Weights {
    Single(Panels<f32>),
    Half(Panels<f16>),
    Brain(Panels<bf16>),
    Eight(Blocks<Eight>),
    Four(Blocks<Four>),
}

impl Weights {
    /// Packs a weight `[outputs, inputs]`; at [`Precision::F32`] in 16 bits where that loses nothing.
    pub fn pack(weight: Source<'_>, inputs: usize, outputs: usize, precision: Precision) -> Self {
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
    pub fn product(&self, x: Rows<'_>, bias: Option<&[f32]>, y: &mut [f32]) {
        match self {
            Self::Single(panels) => panels::product(x, panels, bias, y),
            Self::Half(panels) => panels::product(x, panels, bias, y),
            Self::Brain(panels) => panels::product(x, panels, bias, y),
            Self::Eight(blocks) => blocks::product(x, blocks, bias, y),
            Self::Four(blocks) => blocks::product(x, blocks, bias, y),
        }
    }

    /// Appends column `output` as f32, one value per input.
    pub fn push_column(&self, output: usize, to: &mut Vec<f32>) {
        match self {
            Self::Single(panels) => to.extend(panels.column(output)),
            Self::Half(panels) => to.extend(panels.column(output)),
            Self::Brain(panels) => to.extend(panels.column(output)),
            Self::Eight(blocks) => to.extend(blocks.column(output)),
            Self::Four(blocks) => to.extend(blocks.column(output)),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data().len()
    }
}

impl Packed for Weights {
    fn kind(&self) -> Kind {
        match self {
            Self::Single(_) => Kind::Single,
            Self::Half(_) => Kind::Half,
            Self::Brain(_) => Kind::Brain,
            Self::Eight(_) => Kind::Eight,
            Self::Four(_) => Kind::Four,
        }
    }

    fn sizes(&self) -> Sizes {
        let (inputs, outputs) = match self {
            Self::Single(panels) => panels.sizes(),
            Self::Half(panels) => panels.sizes(),
            Self::Brain(panels) => panels.sizes(),
            Self::Eight(blocks) => blocks.sizes(),
            Self::Four(blocks) => blocks.sizes(),
        };
        [1, inputs, outputs]
    }

    fn data(&self) -> &[u8] {
        match self {
            Self::Single(panels) => panels.data(),
            Self::Half(panels) => panels.data(),
            Self::Brain(panels) => panels.data(),
            Self::Eight(blocks) => blocks.data(),
            Self::Four(blocks) => blocks.data(),
        }
    }

    fn unpack(kind: Kind, [taps, inputs, outputs]: Sizes, data: Part) -> Option<Self> {
        if taps != 1 {
            return None;
        }
        match kind {
            Kind::Single => Panels::unpack(data, inputs, outputs).map(Self::Single),
            Kind::Half => Panels::unpack(data, inputs, outputs).map(Self::Half),
            Kind::Brain => Panels::unpack(data, inputs, outputs).map(Self::Brain),
            Kind::Eight => Blocks::unpack(data, inputs, outputs).map(Self::Eight),
            Kind::Four => Blocks::unpack(data, inputs, outputs).map(Self::Four),
            Kind::Conv | Kind::Pairs => None,
        }
    }
}
