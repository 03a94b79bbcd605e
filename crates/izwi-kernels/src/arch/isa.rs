//! The operations that kernels are written in: 16 lanes of f32, and 16 sums of products of bytes.
//!
//! Every implementation adds in the same order, so that results in f32 differ only by the rounding of a fused
//! multiply-add, and sums of bytes not at all. Knows no kernel and no processor.

use half::{bf16, f16};

use crate::packed::Plain;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Operations on 16 lanes of f32.
///
/// Safety of every function: the processor has the instruction set; pointers are valid for 16 elements.
pub trait Isa: Copy {
    /// 16 lanes.
    type V: Copy;
    /// Whether 28 vectors fit the registers; if not, 6 sums, their weights and a value do.
    const WIDE: bool;
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn load_f16(from: *const f16) -> Self::V;
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a_low * b_low + a_high * b_high + c`, where a lane of `a` and `b` holds two bf16.
    unsafe fn dot_bf16_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` times two to the integer in the low mantissa bits of `n`.
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V;
    /// The sum of all lanes.
    unsafe fn sum(v: Self::V) -> f32;
}

/// The first `count` elements, the rest `fill`.
///
/// # Safety
/// As [`Isa`], but only `count <= 16` elements need be valid.
#[inline(always)]
pub(crate) unsafe fn load_part<I: Isa>(from: *const f32, count: usize, fill: f32) -> I::V {
    if count >= LANES {
        return I::load(from);
    }
    let mut lanes = [fill; LANES];
    std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
    I::load(lanes.as_ptr())
}

/// Stores the first `count` lanes.
///
/// # Safety
/// As [`load_part`].
#[inline(always)]
pub(crate) unsafe fn store_part<I: Isa>(to: *mut f32, v: I::V, count: usize) {
    if count >= LANES {
        return I::store(to, v);
    }
    let mut lanes = [0f32; LANES];
    I::store(lanes.as_mut_ptr(), v);
    std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
}

/// Reads one element type as f32.
pub trait Element: Plain + Default {
    /// 16 elements.
    ///
    /// # Safety
    /// As [`Isa`].
    unsafe fn load<I: Isa>(from: *const Self) -> I::V;
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<I: Isa>(from: *const Self) -> I::V {
        I::load(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(from: *const Self) -> I::V {
        I::load_f16(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(from: *const Self) -> I::V {
        I::load_bf16(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// Inputs of a column that one vector of bytes holds.
pub(crate) const DEPTH: usize = 4;
/// Bytes of a vector: `[16 columns][4 inputs]`.
pub(crate) const LINE: usize = LANES * DEPTH;

/// Sixteen sums of products of weights and activations.
///
/// A weight is stored as an unsigned byte, `OFFSET` more than its value; values are within ±127, and so are activations.
///
/// Safety of every function: the processor has the instruction set; pointers are valid for what is read.
pub(crate) trait Int8Isa: Isa {
    /// [`LINE`] bytes.
    type B: Copy;
    /// 16 sums.
    type S: Copy;
    /// Rows of a register tile.
    const ROWS: usize;
    /// Bytes in memory of [`DEPTH`] activations: see [`Self::keep`].
    const KEPT: usize = DEPTH;
    /// Products of one [`Self::multiply`].
    const PRODUCTS: usize = LINE;
    /// Whether sums and totals of a tile fill more than the registers: then totals stay in memory.
    const FEW_REGISTERS: bool = false;
    /// Whether two rows are faster at once, with 8 inputs: see [`Self::dot_rows`].
    const TWO: bool = false;
    unsafe fn bytes(from: *const u8) -> Self::B;
    /// The low half of each byte.
    unsafe fn low(bytes: Self::B) -> Self::B;
    /// The high half of each byte.
    unsafe fn high(bytes: Self::B) -> Self::B;
    /// Writes [`DEPTH`] activations to the [`Self::KEPT`] bytes from which [`Self::dot`] reads them.
    #[inline(always)]
    unsafe fn keep(to: *mut i8, x: [i8; DEPTH]) {
        to.cast::<[i8; DEPTH]>().write_unaligned(x);
    }
    /// Empty sums; `correction` is `-OFFSET` times the sum of the activations to come.
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S;
    /// Adds the products of each column's weights with the activations at the same place of `x`: the instructions of
    /// [`Self::dot`] without what prepares their operands. Sums of two products may be saturated at 16 bits.
    unsafe fn multiply(sums: Self::S, weights: Self::B, x: Self::B) -> Self::S;
    /// Adds the products of each column's weights with the same 4 activations, as they are kept.
    unsafe fn dot<const OFFSET: u8>(sums: Self::S, weights: Self::B, x: *const i8) -> Self::S;
    unsafe fn floats(sums: Self::S) -> Self::V;
    /// As [`Self::start`] for two rows, whose sums may lie in any order.
    #[inline(always)]
    unsafe fn start_two<const OFFSET: u8>(corrections: [i32; 2]) -> [Self::S; 2] {
        [Self::start::<OFFSET>(corrections[0]), Self::start::<OFFSET>(corrections[1])]
    }
    /// As [`Self::dot`] of two neighbouring lines with 8 activations each of all rows, `x.1` apart: the first two are
    /// one pair, and so on, and the last of an odd number stands alone.
    #[inline(always)]
    unsafe fn dot_rows<const OFFSET: u8, const R: usize>(
        sums: &mut [Self::S; R],
        weights: [Self::B; 2],
        x: (*const i8, usize),
    ) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let x = x.0.add(row * x.1);
            *sum =
                Self::dot::<OFFSET>(Self::dot::<OFFSET>(*sum, weights[0], x), weights[1], x.add(Self::KEPT));
        }
    }
    /// As [`Self::floats`] for the sums of a pair of [`Self::dot_rows`].
    #[inline(always)]
    unsafe fn floats_two(sums: [Self::S; 2]) -> [Self::V; 2] {
        [Self::floats(sums[0]), Self::floats(sums[1])]
    }
}

/// Sixteen scales as f32.
///
/// # Safety
/// As [`Isa`].
#[inline(always)]
pub(crate) unsafe fn scales<I: Isa>(from: *const u8) -> I::V {
    I::load_f16(from.cast::<f16>())
}
