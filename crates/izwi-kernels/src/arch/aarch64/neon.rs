//! 16 lanes of f32 in four NEON registers, and dot products of bf16 pairs.

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use crate::arch::isa::Isa;

/// NEON and no more.
pub(crate) const PLAIN: u8 = 0;
/// With products of bf16 pairs (`bf16`).
pub(crate) const BF16: u8 = 1;
/// With dot products of bytes (`dotprod`).
pub(crate) const DOTPROD: u8 = 2;
/// With products of small matrices of bytes (`i8mm`).
pub(crate) const I8MM: u8 = 3;

/// NEON with one extension.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<const EXTENSION: u8>;

/// An instruction for each of the four registers.
macro_rules! four {
    ($name:ident($($arg:expr),*)) => {
        [$name($($arg[0]),*), $name($($arg[1]),*), $name($($arg[2]),*), $name($($arg[3]),*)]
    };
}
pub(crate) use four;

/// Adds the products of the bf16 of each lane. Products and their sum are rounded to odd, tiny numbers are zero.
///
/// The compiler has no name for the instruction yet.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfdot(mut sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: changes nothing but the register, and the feature is one of this function's.
    unsafe {
        asm!(
            "bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

#[inline(always)]
unsafe fn low(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(pairs)))
}

#[inline(always)]
unsafe fn high(pairs: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xffff_0000)))
}

#[inline(always)]
unsafe fn pairs(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    vfmaq_f32(vfmaq_f32(c, high(a), high(b)), low(a), low(b))
}

#[inline(always)]
unsafe fn scale(a: float32x4_t, n: float32x4_t) -> float32x4_t {
    let n = vshlq_n_s32::<23>(vreinterpretq_s32_f32(n));
    vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), n))
}

/// `b` where one of them is no number: the instructions of this name answer otherwise.
#[inline(always)]
unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

/// As [`min`].
#[inline(always)]
unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// Eight f16 as two vectors of f32.
#[inline(always)]
unsafe fn f16s(from: *const f16) -> [float32x4_t; 2] {
    let eight = vreinterpretq_f16_u16(vld1q_u16(from.cast()));
    [vcvt_f32_f16(vget_low_f16(eight)), vcvt_high_f32_f16(eight)]
}

/// Four bf16 in the low halves as f32.
#[inline(always)]
unsafe fn widened(bits: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(bits))
}

/// Eight bf16 as two vectors of f32.
#[inline(always)]
unsafe fn bf16s(from: *const bf16) -> [float32x4_t; 2] {
    let eight = vld1q_u16(from.cast());
    [widened(vmovl_u16(vget_low_u16(eight))), widened(vmovl_high_u16(eight))]
}

impl<const EXTENSION: u8> Isa for Neon<EXTENSION> {
    type V = [float32x4_t; 4];
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [vdupq_n_f32(value); 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self::V {
        let ([a, b], [c, d]) = (f16s(from), f16s(from.add(8)));
        [a, b, c, d]
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self::V {
        let ([a, b], [c, d]) = (bf16s(from), bf16s(from.add(8)));
        [a, b, c, d]
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        vst1q_f32(to, v[0]);
        vst1q_f32(to.add(4), v[1]);
        vst1q_f32(to.add(8), v[2]);
        vst1q_f32(to.add(12), v[3]);
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        four!(vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        four!(vsubq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        four!(vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        four!(vdivq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        four!(min(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        four!(max(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        four!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    unsafe fn dot_bf16_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        if EXTENSION == BF16 { four!(bfdot(c, a, b)) } else { four!(pairs(a, b, c)) }
    }
    #[inline(always)]
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V {
        four!(scale(a, n))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
        let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
    }
}
