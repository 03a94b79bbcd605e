//! The right side of a product in the type that it is stored in.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::linear::blocks::{self, Blocks};
use crate::linear::panels::{self, Panels, Rows};
use crate::linear::quant::{Q4, Q8};
use crate::linear::source::WeightSource;
use crate::packed::{Packed, PackedKind, Part, Sizes};

/// The type that a weight is stored in. Activations and sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32 bits.
    F32,
    /// 16 bits, 8 of them the exponent.
    Bf16,
    /// 16 bits, 5 of them the exponent.
    F16,
    /// 8 bits and a scale for every 32 inputs.
    Q8,
    /// 4 bits and a scale for every 32 inputs.
    Q4,
}

/// A matrix `[inputs, outputs]`, packed for its kernel.
#[derive(Debug, Clone)]
pub struct Weights(Layout);

/// The matrix in the layout of its kernel.
#[derive(Debug, Clone)]
enum Layout {
    F32(Panels<f32>),
    F16(Panels<f16>),
    Bf16(Panels<bf16>),
    Q8(Blocks<Q8>),
    Q4(Blocks<Q4>),
}

impl Weights {
    /// Packs a weight `[outputs, inputs]`; [`WeightType::F32`] takes 16 bits where all values are exact in them.
    pub fn pack(weight: WeightSource<'_>, inputs: usize, outputs: usize, weight_type: WeightType) -> Self {
        let weight_type = match weight_type {
            WeightType::F32 if weight.is_bf16() => WeightType::Bf16,
            WeightType::F32 if weight.is_f16() => WeightType::F16,
            given => given,
        };
        Self(match weight_type {
            WeightType::F16 => Layout::F16(Panels::pack_rows(weight, inputs, outputs)),
            WeightType::Bf16 => Layout::Bf16(Panels::pack_rows(weight, inputs, outputs)),
            WeightType::F32 => Layout::F32(Panels::pack_rows(weight, inputs, outputs)),
            WeightType::Q8 => Layout::Q8(Blocks::pack(weight, inputs, outputs)),
            WeightType::Q4 => Layout::Q4(Blocks::pack(weight, inputs, outputs)),
        })
    }

    /// `y = x W (+ bias)`: `x` `[rows, inputs]`, `bias` `[outputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn product(&self, x: Rows<'_>, bias: Option<&[f32]>, y: &mut [f32]) {
        // SAFETY: of the same layout, and a product writes numbers only.
        self.write_product(x, bias, unsafe { &mut *(std::ptr::from_mut(y) as *mut [MaybeUninit<f32>]) });
    }

    /// As [`Self::product`], to a new `[rows, outputs]`.
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn product_to_vec(&self, x: Rows<'_>, bias: Option<&[f32]>) -> Vec<f32> {
        let len = x.count * self.sizes()[2];
        let mut y = Vec::with_capacity(len);
        self.write_product(x, bias, &mut y.spare_capacity_mut()[..len]);
        // SAFETY: a product writes all of its output.
        unsafe { y.set_len(len) };
        y
    }

    fn write_product(&self, x: Rows<'_>, bias: Option<&[f32]>, y: &mut [MaybeUninit<f32>]) {
        match &self.0 {
            Layout::F32(panels) => panels::product(x, panels, bias, y),
            Layout::F16(panels) => panels::product(x, panels, bias, y),
            Layout::Bf16(panels) => panels::product(x, panels, bias, y),
            Layout::Q8(blocks) => blocks::product(x, blocks, bias, y),
            Layout::Q4(blocks) => blocks::product(x, blocks, bias, y),
        }
    }

    /// Appends column `output` as f32, one value per input.
    pub fn push_column(&self, output: usize, to: &mut Vec<f32>) {
        match &self.0 {
            Layout::F32(panels) => to.extend(panels.column(output)),
            Layout::F16(panels) => to.extend(panels.column(output)),
            Layout::Bf16(panels) => to.extend(panels.column(output)),
            Layout::Q8(blocks) => to.extend(blocks.column(output)),
            Layout::Q4(blocks) => to.extend(blocks.column(output)),
        }
    }

    /// Bytes of the packed weight.
    pub fn bytes(&self) -> usize {
        self.data().len()
    }
}

impl Packed for Weights {
    fn kind(&self) -> PackedKind {
        match &self.0 {
            Layout::F32(_) => PackedKind::F32,
            Layout::F16(_) => PackedKind::F16,
            Layout::Bf16(_) => PackedKind::Bf16,
            Layout::Q8(_) => PackedKind::Q8,
            Layout::Q4(_) => PackedKind::Q4,
        }
    }

    fn sizes(&self) -> Sizes {
        let (inputs, outputs) = match &self.0 {
            Layout::F32(panels) => panels.sizes(),
            Layout::F16(panels) => panels.sizes(),
            Layout::Bf16(panels) => panels.sizes(),
            Layout::Q8(blocks) => blocks.sizes(),
            Layout::Q4(blocks) => blocks.sizes(),
        };
        [1, inputs, outputs]
    }

    fn data(&self) -> &[u8] {
        match &self.0 {
            Layout::F32(panels) => panels.data(),
            Layout::F16(panels) => panels.data(),
            Layout::Bf16(panels) => panels.data(),
            Layout::Q8(blocks) => blocks.data(),
            Layout::Q4(blocks) => blocks.data(),
        }
    }

    fn unpack(kind: PackedKind, [taps, inputs, outputs]: Sizes, data: Part) -> Option<Self> {
        if taps != 1 {
            return None;
        }
        let layout = match kind {
            PackedKind::F32 => Panels::unpack(data, inputs, outputs).map(Layout::F32),
            PackedKind::F16 => Panels::unpack(data, inputs, outputs).map(Layout::F16),
            PackedKind::Bf16 => Panels::unpack(data, inputs, outputs).map(Layout::Bf16),
            PackedKind::Q8 => Blocks::unpack(data, inputs, outputs).map(Layout::Q8),
            PackedKind::Q4 => Blocks::unpack(data, inputs, outputs).map(Layout::Q4),
            PackedKind::Conv | PackedKind::ConvBf16 | PackedKind::ConvQ8 => None,
        };
        layout.map(Self)
    }
}
