//! Dot products of bytes with NEON: by small matrices, four at a time, or by widening.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{DOTPROD, I8MM, Neon, four};
use crate::arch::isa::Int8Isa;

/// An instruction that adds products of bytes, for which the compiler has no name yet.
macro_rules! instruction {
    ($(#[$doc:meta])* $feature:literal $name:ident($weights:ty) $text:literal) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name(mut sum: int32x4_t, weights: $weights, x: int8x16_t) -> int32x4_t {
            // SAFETY: changes nothing but the register, and the feature is one of this function's.
            unsafe {
                asm!(
                    $text,
                    sum = inout(vreg) sum,
                    weights = in(vreg) weights,
                    x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}

instruction! {
    /// Adds to each sum the products of its four bytes.
    "neon,dotprod" sdot(int8x16_t) "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b"
}
instruction! {
    /// As [`sdot`], weights without sign.
    "neon,i8mm" usdot(uint8x16_t) "usdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b"
}
instruction! {
    /// Adds to `[2 columns][2 rows]` the products of 8 inputs of 2 columns, without sign, with those of 2 rows.
    "neon,i8mm" usmmla(uint8x16_t) "usmmla {sum:v}.4s, {weights:v}.16b, {x:v}.16b"
}

/// As [`sdot`]. Pairs are added at 16 bits: two products of at most 128 * 127 fit.
#[inline(always)]
unsafe fn widening(sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
    vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(weights, x)))
}

/// What is multiplied where weights have a sign: kept bytes of 8 bits without their offset, those of 4 as they are.
#[inline(always)]
unsafe fn signed<const OFFSET: u8>(weights: uint8x16_t) -> int8x16_t {
    let weights = if OFFSET == 128 { veorq_u8(weights, vdupq_n_u8(128)) } else { weights };
    vreinterpretq_s8_u8(weights)
}

#[inline(always)]
unsafe fn first_columns(first: uint8x16_t, second: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(second)))
}

#[inline(always)]
unsafe fn last_columns(first: uint8x16_t, second: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(second)))
}

/// The same four bytes in each lane.
#[inline(always)]
unsafe fn repeated(x: *const i32) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(x.read_unaligned()))
}

#[inline(always)]
unsafe fn high_nibbles(bytes: uint8x16_t) -> uint8x16_t {
    vshrq_n_u8::<4>(bytes)
}

#[inline(always)]
unsafe fn low_nibbles(bytes: uint8x16_t) -> uint8x16_t {
    vandq_u8(bytes, vdupq_n_u8(15))
}

/// With matrices the sums of two rows are `[8 pairs of columns][2 columns][2 rows]`.
impl<const EXTENSION: u8> Int8Isa for Neon<EXTENSION> {
    type B = [uint8x16_t; 4];
    type S = [int32x4_t; 4];
    const ROWS: usize = if EXTENSION == I8MM { 6 } else { 4 };
    const PRODUCTS: usize = if EXTENSION == I8MM { 128 } else { 64 };
    const TWO: bool = EXTENSION == I8MM;
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::B {
        [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))]
    }
    #[inline(always)]
    unsafe fn low(bytes: Self::B) -> Self::B {
        four!(low_nibbles(bytes))
    }
    #[inline(always)]
    unsafe fn high(bytes: Self::B) -> Self::B {
        four!(high_nibbles(bytes))
    }
    /// Where [`signed`] takes the offset off nothing is to be corrected.
    #[inline(always)]
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S {
        let kept = EXTENSION == I8MM || OFFSET != 128;
        [vdupq_n_s32(if kept { correction } else { 0 }); 4]
    }
    #[inline(always)]
    unsafe fn multiply(sums: Self::S, weights: Self::B, x: Self::B) -> Self::S {
        let (x, signed) = (four!(vreinterpretq_s8_u8(x)), four!(vreinterpretq_s8_u8(weights)));
        match EXTENSION {
            I8MM => four!(usmmla(sums, weights, x)),
            DOTPROD => four!(sdot(sums, signed, x)),
            _ => four!(widening(sums, signed, x)),
        }
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: u8>(sums: Self::S, weights: Self::B, x: *const i8) -> Self::S {
        let x = [repeated(x.cast()); 4];
        if EXTENSION == I8MM {
            return four!(usdot(sums, weights, x));
        }
        let weights = [
            signed::<OFFSET>(weights[0]),
            signed::<OFFSET>(weights[1]),
            signed::<OFFSET>(weights[2]),
            signed::<OFFSET>(weights[3]),
        ];
        if EXTENSION == DOTPROD { four!(sdot(sums, weights, x)) } else { four!(widening(sums, weights, x)) }
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::S) -> Self::V {
        four!(vcvtq_f32_s32(sums))
    }
    #[inline(always)]
    unsafe fn start_two<const OFFSET: u8>(corrections: [i32; 2]) -> [Self::S; 2] {
        let both = vld1_s32(corrections.as_ptr());
        [[vcombine_s32(both, both); 4]; 2]
    }
    /// Four columns after four columns: what is made of their weights is in registers for all rows.
    #[inline(always)]
    unsafe fn dot_rows<const OFFSET: u8, const R: usize>(
        sums: &mut [Self::S; R],
        weights: [Self::B; 2],
        (x, stride): (*const i8, usize),
    ) {
        for four in 0..4 {
            let lines = [weights[0][four], weights[1][four]];
            let columns = [first_columns(lines[0], lines[1]), last_columns(lines[0], lines[1])];
            for pair in 0..R / 2 {
                let x = x.add(2 * pair * stride);
                let x = vcombine_s8(vld1_s8(x), vld1_s8(x.add(stride)));
                let (row, at) = (2 * pair + four / 2, four % 2 * 2);
                sums[row][at] = usmmla(sums[row][at], columns[0], x);
                sums[row][at + 1] = usmmla(sums[row][at + 1], columns[1], x);
            }
            if !R.is_multiple_of(2) {
                let x = x.add((R - 1) * stride).cast::<i32>();
                let sum = usdot(sums[R - 1][four], lines[0], repeated(x));
                sums[R - 1][four] = usdot(sum, lines[1], repeated(x.add(1)));
            }
        }
    }
    #[inline(always)]
    unsafe fn floats_two([low, high]: [Self::S; 2]) -> [Self::V; 2] {
        let first = [
            vuzp1q_s32(low[0], low[1]),
            vuzp1q_s32(low[2], low[3]),
            vuzp1q_s32(high[0], high[1]),
            vuzp1q_s32(high[2], high[3]),
        ];
        let second = [
            vuzp2q_s32(low[0], low[1]),
            vuzp2q_s32(low[2], low[3]),
            vuzp2q_s32(high[0], high[1]),
            vuzp2q_s32(high[2], high[3]),
        ];
        [four!(vcvtq_f32_s32(first)), four!(vcvtq_f32_s32(second))]
    }
}
