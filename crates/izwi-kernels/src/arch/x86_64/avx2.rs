//! AVX2: 16 lanes in two registers.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::lanes;
use crate::arch::isa::{DEPTH, Int8Isa, Isa};
use crate::arch::level::{Level, Run};

/// AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2Level;

// example: level
// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for Avx2Level {
    type F32 = Avx2;
    type Int8 = Avx2;

    fn is_supported() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}
// end of example

/// 16 lanes in two registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2;

/// The sum of 8 lanes.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn sum256(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline(always)]
unsafe fn bf16_256(from: *const bf16) -> __m256 {
    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

#[inline(always)]
unsafe fn scale256(a: __m256, n: __m256) -> __m256 {
    let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n))
}

#[inline(always)]
unsafe fn low256(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)))
}

#[inline(always)]
unsafe fn high256(pairs: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_srli_epi32::<16>(_mm256_castps_si256(pairs))))
}

#[inline(always)]
unsafe fn dot_bf16_pairs256(a: __m256, b: __m256, c: __m256) -> __m256 {
    _mm256_fmadd_ps(low256(a), low256(b), _mm256_fmadd_ps(high256(a), high256(b), c))
}

impl Isa for Avx2 {
    type V = [__m256; 2];
    const WIDE: bool = false;
    lanes! {
        splat(value: f32) [_mm256_set1_ps(value); 2];
        load(from: *const f32) [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))];
        load_f16(from: *const f16) [
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
        ];
        load_bf16(from: *const bf16) [bf16_256(from), bf16_256(from.add(8))];
        add(a: Self::V, b: Self::V) [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
        sub(a: Self::V, b: Self::V) [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])];
        mul(a: Self::V, b: Self::V) [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        div(a: Self::V, b: Self::V) [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])];
        min(a: Self::V, b: Self::V) [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])];
        max(a: Self::V, b: Self::V) [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])];
        fma(a: Self::V, b: Self::V, c: Self::V)
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])];
        scale(a: Self::V, n: Self::V) [scale256(a[0], n[0]), scale256(a[1], n[1])];
    }
    #[inline(always)]
    unsafe fn dot_bf16_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        [dot_bf16_pairs256(a[0], b[0], c[0]), dot_bf16_pairs256(a[1], b[1], c[1])]
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        _mm256_storeu_ps(to, v[0]);
        _mm256_storeu_ps(to.add(8), v[1]);
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        sum256(_mm256_add_ps(v[0], v[1]))
    }
}

/// Adds to each sum the products of its four bytes, those of `weights` without sign; pairs are added at 16 bits.
#[inline(always)]
unsafe fn multiply256(sums: __m256i, weights: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(weights, x);
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Adds to each sum the products of its four bytes with the activations of even and of odd inputs.
#[inline(always)]
unsafe fn dot256(sums: __m256i, weights: __m256i, even: __m256i, odd: __m256i) -> __m256i {
    let products = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)), even);
    let sums = _mm256_add_epi32(sums, products);
    _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_srli_epi16::<8>(weights), odd))
}

impl Int8Isa for Avx2 {
    type B = [__m256i; 2];
    type S = [__m256i; 2];
    const ROWS: usize = 4;
    const FEW_REGISTERS: bool = true;
    /// At 16 bits, those of even inputs before those of odd ones.
    const KEPT: usize = 8;
    #[inline(always)]
    unsafe fn keep(to: *mut i8, x: [i8; DEPTH]) {
        let x = [i16::from(x[0]), i16::from(x[2]), i16::from(x[1]), i16::from(x[3])];
        to.cast::<[i16; DEPTH]>().write_unaligned(x);
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::B {
        [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn low(bytes: Self::B) -> Self::B {
        let mask = _mm256_set1_epi8(15);
        [_mm256_and_si256(bytes[0], mask), _mm256_and_si256(bytes[1], mask)]
    }
    #[inline(always)]
    unsafe fn high(bytes: Self::B) -> Self::B {
        Self::low([_mm256_srli_epi16::<4>(bytes[0]), _mm256_srli_epi16::<4>(bytes[1])])
    }
    #[inline(always)]
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S {
        [_mm256_set1_epi32(correction); 2]
    }
    #[inline(always)]
    unsafe fn multiply(sums: Self::S, weights: Self::B, x: Self::B) -> Self::S {
        [multiply256(sums[0], weights[0], x[0]), multiply256(sums[1], weights[1], x[1])]
    }
    /// As products of 16 bits: those of two kept bytes do not fit 16 bits, to which the instruction on bytes adds them.
    #[inline(always)]
    unsafe fn dot<const OFFSET: u8>(sums: Self::S, weights: Self::B, x: *const i8) -> Self::S {
        let x = x.cast::<i32>();
        let even = _mm256_set1_epi32(x.read_unaligned());
        let odd = _mm256_set1_epi32(x.add(1).read_unaligned());
        [dot256(sums[0], weights[0], even, odd), dot256(sums[1], weights[1], even, odd)]
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::S) -> Self::V {
        [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])]
    }
}
