//! AVX2 with dot products of bytes: 16 lanes in two registers.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx2::{Avx2, Avx2Level};
use super::lanes;
use crate::arch::isa::{Int8Isa, Isa};
use crate::arch::level::{Level, Run};

/// AVX2 with dot products of bytes (`avx-vnni`), as processors without AVX-512 have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AvxVnniLevel;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for AvxVnniLevel {
    type F32 = Avx2;
    type Int8 = AvxVnni;

    fn is_supported() -> bool {
        is_x86_feature_detected!("avxvnni") && Avx2Level::is_supported()
    }

    fn has_fast_int8_dot() -> bool {
        true
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// As [`Avx2`], for bytes with `avx-vnni`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AvxVnni;

/// The operations on f32 of [`Avx2`].
impl Isa for AvxVnni {
    type V = [__m256; 2];
    const WIDE: bool = false;
    lanes! {
        splat(value: f32) Avx2::splat(value);
        load(from: *const f32) Avx2::load(from);
        load_f16(from: *const f16) Avx2::load_f16(from);
        load_bf16(from: *const bf16) Avx2::load_bf16(from);
        add(a: Self::V, b: Self::V) Avx2::add(a, b);
        sub(a: Self::V, b: Self::V) Avx2::sub(a, b);
        mul(a: Self::V, b: Self::V) Avx2::mul(a, b);
        div(a: Self::V, b: Self::V) Avx2::div(a, b);
        min(a: Self::V, b: Self::V) Avx2::min(a, b);
        max(a: Self::V, b: Self::V) Avx2::max(a, b);
        fma(a: Self::V, b: Self::V, c: Self::V) Avx2::fma(a, b, c);
        dot_bf16_pairs(a: Self::V, b: Self::V, c: Self::V) Avx2::dot_bf16_pairs(a, b, c);
        scale(a: Self::V, n: Self::V) Avx2::scale(a, n);
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        Avx2::store(to, v);
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        Avx2::sum(v)
    }
}

impl Int8Isa for AvxVnni {
    type B = [__m256i; 2];
    type S = [__m256i; 2];
    const ROWS: usize = 4;
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::B {
        Avx2::bytes(from)
    }
    #[inline(always)]
    unsafe fn low(bytes: Self::B) -> Self::B {
        Avx2::low(bytes)
    }
    #[inline(always)]
    unsafe fn high(bytes: Self::B) -> Self::B {
        Avx2::high(bytes)
    }
    #[inline(always)]
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S {
        [_mm256_set1_epi32(correction); 2]
    }
    #[inline(always)]
    unsafe fn multiply(sums: Self::S, weights: Self::B, x: Self::B) -> Self::S {
        [
            _mm256_dpbusd_avx_epi32(sums[0], weights[0], x[0]),
            _mm256_dpbusd_avx_epi32(sums[1], weights[1], x[1]),
        ]
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: u8>(sums: Self::S, weights: Self::B, x: *const i8) -> Self::S {
        Self::multiply(sums, weights, [_mm256_set1_epi32(x.cast::<i32>().read_unaligned()); 2])
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::S) -> Self::V {
        Avx2::floats(sums)
    }
}
