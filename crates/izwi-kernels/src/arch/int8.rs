//! Dot products of bytes, 16 columns of 4 inputs at a time. Integers are exact: every instruction set has the same bits.

use half::f16;

#[cfg(target_arch = "aarch64")]
use super::aarch64::int8 as neon;
use crate::arch::{Isa, LANES, Portable};

/// Inputs of a column that one vector of bytes holds.
pub const DEPTH: usize = 4;
/// Bytes of a vector: `[16 columns][4 inputs]`.
pub const LINE: usize = LANES * DEPTH;

/// Sixteen sums of products of weights and activations.
///
/// A weight is kept as an unsigned byte, `OFFSET` more than its value; values are within ±127, and so are activations.
/// Safety of every function: the processor has the instruction set; pointers are valid for what is read.
pub trait Int8Isa: Isa {
    /// [`LINE`] bytes.
    type B: Copy;
    /// 16 sums.
    type S: Copy;
    /// Rows of a register tile.
    const ROWS: usize;
    /// Whether two rows are faster at once, with 8 inputs: see [`Self::dot_rows`].
    const TWO: bool = false;
    unsafe fn bytes(from: *const u8) -> Self::B;
    /// The low half of each byte.
    unsafe fn low(bytes: Self::B) -> Self::B;
    /// The high half of each byte.
    unsafe fn high(bytes: Self::B) -> Self::B;
    /// Empty sums; `correction` is `-OFFSET` times the sum of the activations to come.
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S;
    /// Adds the products of each column's weights with the same 4 activations.
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
            *sum = Self::dot::<OFFSET>(Self::dot::<OFFSET>(*sum, weights[0], x), weights[1], x.add(DEPTH));
        }
    }
    /// As [`Self::floats`] for the sums of a pair of [`Self::dot_rows`].
    #[inline(always)]
    unsafe fn floats_two(sums: [Self::S; 2]) -> [Self::V; 2] {
        [Self::floats(sums[0]), Self::floats(sums[1])]
    }
}

/// Something to compute with [`Int8Isa`]; as [`super::isa::Kernel`].
pub trait Int8Kernel {
    /// The work; `#[inline(always)]`, so that it is compiled for the instruction set of its caller.
    ///
    /// # Safety
    /// As [`Int8Isa`].
    unsafe fn run<D: Int8Isa>(self);
}

/// Runs a job with the best instruction set of this processor.
pub fn dispatch(job: impl Int8Kernel) {
    #[cfg(test)]
    match crate::tests::FORCED.get() {
        // SAFETY: needs no instruction beyond the target's own.
        Some(crate::tests::Forced::Portable) => return unsafe { job.run::<Portable>() },
        #[cfg(target_arch = "x86_64")]
        Some(crate::tests::Forced::Avx2) if is_x86_feature_detected!("avx2") => {
            // SAFETY: processors with AVX2 have the two others.
            return unsafe { x86::with_avx2(job) };
        }
        #[cfg(target_arch = "aarch64")]
        Some(crate::tests::Forced::Bytes) if std::arch::is_aarch64_feature_detected!("dotprod") => {
            // SAFETY: the feature was just detected.
            return unsafe { neon::with_bytes(job) };
        }
        #[cfg(target_arch = "aarch64")]
        Some(crate::tests::Forced::Neon | crate::tests::Forced::Bytes) => {
            // SAFETY: these targets have NEON.
            return unsafe { neon::with_neon(job) };
        }
        _ => {}
    }
    #[cfg(target_arch = "aarch64")]
    {
        if std::arch::is_aarch64_feature_detected!("i8mm") {
            // SAFETY: the feature was just detected.
            return unsafe { neon::with_matrices(job) };
        }
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            // SAFETY: the feature was just detected.
            return unsafe { neon::with_bytes(job) };
        }
        if std::arch::is_aarch64_feature_detected!("neon") {
            // SAFETY: the feature was just detected.
            return unsafe { neon::with_neon(job) };
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let vnni = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        if avx2 && vnni {
            // SAFETY: the features were just detected.
            return unsafe { x86::with_vnni(job) };
        }
        if avx2 {
            // SAFETY: the features were just detected.
            return unsafe { x86::with_avx2(job) };
        }
    }
    // SAFETY: needs no instruction beyond the target's own.
    unsafe { job.run::<Portable>() }
}

impl Int8Isa for Portable {
    type B = [u8; LINE];
    type S = [i32; LANES];
    const ROWS: usize = 2;
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self::B {
        from.cast::<Self::B>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn low(bytes: Self::B) -> Self::B {
        bytes.map(|byte| byte & 15)
    }
    #[inline(always)]
    unsafe fn high(bytes: Self::B) -> Self::B {
        bytes.map(|byte| byte >> 4)
    }
    #[inline(always)]
    unsafe fn start<const OFFSET: u8>(correction: i32) -> Self::S {
        [correction; LANES]
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: u8>(mut sums: Self::S, weights: Self::B, x: *const i8) -> Self::S {
        let x = x.cast::<[i8; DEPTH]>().read_unaligned();
        for (sum, weights) in sums.iter_mut().zip(weights.as_chunks::<DEPTH>().0) {
            for (&weight, &x) in weights.iter().zip(&x) {
                *sum += i32::from(weight) * i32::from(x);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn floats(sums: Self::S) -> Self::V {
        sums.map(|sum| sum as f32)
    }
}

/// Sixteen scales as f32.
///
/// # Safety
/// As [`Isa`].
#[inline(always)]
pub unsafe fn scales<I: Isa>(from: *const u8) -> I::V {
    I::load_f16(from.cast::<f16>())
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::x86::{Avx2, Avx512};
    use super::{Int8Isa, Int8Kernel};

    /// # Safety
    /// The processor has these features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    pub(crate) unsafe fn with_vnni(job: impl Int8Kernel) {
        job.run::<Avx512<false>>();
    }

    /// # Safety
    /// The processor has these features.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn with_avx2(job: impl Int8Kernel) {
        job.run::<Avx2>();
    }

    /// Needs VNNI besides.
    impl Int8Isa for Avx512<false> {
        type B = __m512i;
        type S = __m512i;
        const ROWS: usize = 6;
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
        unsafe fn dot<const OFFSET: u8>(sums: __m512i, weights: __m512i, x: *const i8) -> __m512i {
            _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
        }
        #[inline(always)]
        unsafe fn floats(sums: __m512i) -> __m512 {
            _mm512_cvtepi32_ps(sums)
        }
    }

    impl Int8Isa for Avx2 {
        type B = [__m256i; 2];
        type S = [__m256i; 2];
        const ROWS: usize = 2;
        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> Self::B {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        #[inline(always)]
        unsafe fn low(bytes: Self::B) -> Self::B {
            bytes.map(|bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(15)))
        }
        #[inline(always)]
        unsafe fn high(bytes: Self::B) -> Self::B {
            bytes.map(|bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)))
        }
        /// The products are those of the values themselves: nothing to correct.
        #[inline(always)]
        unsafe fn start<const OFFSET: u8>(_correction: i32) -> Self::S {
            [_mm256_setzero_si256(); 2]
        }
        /// Pairs are added at 16 bits: two products of at most 127 * 127 fit, which those of kept bytes would not.
        #[inline(always)]
        unsafe fn dot<const OFFSET: u8>(sums: Self::S, weights: Self::B, x: *const i8) -> Self::S {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let (offset, ones) = (_mm256_set1_epi8(OFFSET as i8), _mm256_set1_epi16(1));
            let mut sums = sums;
            for (sum, weights) in sums.iter_mut().zip(weights) {
                let weights = _mm256_sub_epi8(weights, offset);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
            sums
        }
        #[inline(always)]
        unsafe fn floats(sums: Self::S) -> Self::V {
            sums.map(|sums| _mm256_cvtepi32_ps(sums))
        }
    }
}
