//! AVX-512: 16 lanes in one register.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx2::{Avx2, sum256};
use super::{is_amd, lanes};
use crate::arch::isa::{Int8Isa, Isa};
use crate::arch::level::{Level, Run};

/// AVX-512 without dot products of bytes, for which it takes the instructions of AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Level;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for Avx512Level {
    type F32 = Avx512<false>;
    type Int8 = Avx2;

    fn is_supported() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("avx512f")
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// AVX-512 with dot products of bytes (`vnni`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512VnniLevel;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for Avx512VnniLevel {
    type F32 = Avx512<false>;
    type Int8 = Avx512<false>;

    fn is_supported() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
    }

    fn has_fast_int8_dot() -> bool {
        true
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vnni")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// AVX-512 with dot products of bytes and of bf16 pairs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Bf16Level;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for Avx512Bf16Level {
    type F32 = Avx512<true>;
    type Int8 = Avx512<false>;

    fn is_supported() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bf16")
    }

    /// AMD processors multiply pairs of bf16 twice as fast as f32. Intel processors have the instruction too, at two thirds of
    /// the speed of f32.
    fn has_fast_bf16_dot() -> bool {
        is_amd()
    }

    fn has_fast_int8_dot() -> bool {
        true
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vnni,avx512bf16")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// 16 lanes in one register; `BF16`: with the instruction for [`Isa::dot_bf16_pairs`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>;

#[inline(always)]
unsafe fn bf16_pairs(v: __m512) -> __m512bh {
    std::mem::transmute::<__m512, __m512bh>(v)
}

#[inline(always)]
unsafe fn low(pairs: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(pairs)))
}

#[inline(always)]
unsafe fn high(pairs: __m512) -> __m512 {
    let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), mask))
}

impl<const BF16: bool> Isa for Avx512<BF16> {
    type V = __m512;
    const WIDE: bool = true;
    lanes! {
        splat(value: f32) _mm512_set1_ps(value);
        load(from: *const f32) _mm512_loadu_ps(from);
        load_f16(from: *const f16) _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        load_bf16(from: *const bf16) _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))));
        add(a: __m512, b: __m512) _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) _mm512_div_ps(a, b);
        min(a: __m512, b: __m512) _mm512_min_ps(a, b);
        max(a: __m512, b: __m512) _mm512_max_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) _mm512_fmadd_ps(a, b, c);
        scale(a: __m512, n: __m512) _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(a), _mm512_slli_epi32::<23>(_mm512_castps_si512(n))));
    }
    #[inline(always)]
    unsafe fn dot_bf16_pairs(a: __m512, b: __m512, c: __m512) -> __m512 {
        if BF16 {
            return _mm512_dpbf16_ps(c, bf16_pairs(a), bf16_pairs(b));
        }
        _mm512_fmadd_ps(low(a), low(b), _mm512_fmadd_ps(high(a), high(b), c))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        _mm512_storeu_ps(to, v);
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
        sum256(_mm256_add_ps(_mm512_castps512_ps256(v), high))
    }
}

/// Needs VNNI: a level without it has the integers of [`Avx2`].
impl Int8Isa for Avx512<false> {
    type B = __m512i;
    type S = __m512i;
    const ROWS: usize = 8;
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn low(bytes: __m512i) -> __m512i {
        _mm512_and_si512(bytes, _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn high(bytes: __m512i) -> __m512i {
        _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn start<const OFFSET: u8>(correction: i32) -> __m512i {
        _mm512_set1_epi32(correction)
    }
    #[inline(always)]
    unsafe fn multiply(sums: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(sums, weights, x)
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: u8>(sums: __m512i, weights: __m512i, x: *const i8) -> __m512i {
        Self::multiply(sums, weights, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    unsafe fn floats(sums: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(sums)
    }
}
