//! Sixteen f32 lanes on whatever the processor has. Every instruction set adds in the same order, so results differ
//! between them only by the rounding of a fused multiply-add.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::packed::Plain;

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub(crate) mod int8;

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Operations on 16 lanes.
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
    unsafe fn dot_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
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
pub unsafe fn load_part<I: Isa>(from: *const f32, count: usize, fill: f32) -> I::V {
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
pub unsafe fn store_part<I: Isa>(to: *mut f32, v: I::V, count: usize) {
    if count >= LANES {
        return I::store(to, v);
    }
    let mut lanes = [0f32; LANES];
    I::store(lanes.as_mut_ptr(), v);
    std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
}

/// The cache nearest to the processor, for [`prefetch`].
pub const FIRST_LEVEL: i32 = 3;
/// The cache behind it.
pub const SECOND_LEVEL: i32 = 2;

/// Asks for the line at `from`, which may lie anywhere, to be in the cache of this level.
#[inline(always)]
pub fn prefetch<const LEVEL: i32>(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<LEVEL>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
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

/// Something to compute with whichever instruction set is there. Whoever makes one vouches for the pointers in it.
pub trait Kernel {
    /// The work; `#[inline(always)]`, so that it is compiled for the instruction set of its caller.
    ///
    /// # Safety
    /// As [`Isa`].
    unsafe fn run<I: Isa>(self);
}

/// Runs a job with the widest instruction set of this processor.
pub fn dispatch(job: impl Kernel) {
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
        Some(crate::tests::Forced::Neon | crate::tests::Forced::Bytes) => {
            // SAFETY: these targets have NEON.
            return unsafe { aarch64::neon::with_neon(job) };
        }
        _ => {}
    }
    #[cfg(target_arch = "aarch64")]
    {
        if std::arch::is_aarch64_feature_detected!("bf16") {
            // SAFETY: the feature was just detected.
            return unsafe { aarch64::neon::with_brain(job) };
        }
        if std::arch::is_aarch64_feature_detected!("neon") {
            // SAFETY: the feature was just detected.
            return unsafe { aarch64::neon::with_neon(job) };
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if avx2 && has_pairs() {
            // SAFETY: the features were just detected.
            return unsafe { x86::with_avx512_bf16(job) };
        }
        if avx2 && is_x86_feature_detected!("avx512f") {
            // SAFETY: the features were just detected.
            return unsafe { x86::with_avx512(job) };
        }
        if avx2 {
            // SAFETY: the features were just detected.
            return unsafe { x86::with_avx2(job) };
        }
    }
    // SAFETY: needs no instruction beyond the target's own.
    unsafe { job.run::<Portable>() }
}

/// Whether products of pairs of bf16 are faster here than those of f32. AMD's processors make twice as many; Intel's
/// have the instruction too, but make two thirds as many as of f32. Elsewhere than on x86-64 it was never measured:
/// Apple's keep to f32, others that have it are taken to profit.
pub fn has_fast_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    return has_pairs() && x86::is_amd();
    #[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]
    return std::arch::is_aarch64_feature_detected!("bf16");
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", not(target_vendor = "apple")))))]
    false
}

/// Whether there is an instruction for [`Isa::dot_pairs`].
#[cfg(target_arch = "x86_64")]
fn has_pairs() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// Plain arrays: what the compiler makes of them for the target, and the twin that the others are tested against.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Isa for Portable {
    type V = [f32; LANES];
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        from.cast::<Self::V>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self::V {
        let mut v = [0f32; LANES];
        from.cast::<[f16; LANES]>().read_unaligned().convert_to_f32_slice(&mut v);
        v
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self::V {
        let bits = from.cast::<[u16; LANES]>().read_unaligned();
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        to.cast::<Self::V>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Without the instruction `mul_add` is a library call.
        let fused = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
        std::array::from_fn(|lane| {
            if fused { a[lane].mul_add(b[lane], c[lane]) } else { a[lane] * b[lane] + c[lane] }
        })
    }
    #[inline(always)]
    unsafe fn dot_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let low = |pair: f32| f32::from_bits(pair.to_bits() << 16);
        let high = |pair: f32| f32::from_bits(pair.to_bits() & 0xffff_0000);
        std::array::from_fn(|lane| {
            let sum = c[lane] + high(a[lane]) * high(b[lane]);
            sum + low(a[lane]) * low(b[lane])
        })
    }
    #[inline(always)]
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V {
        zip(a, n, |a, n| f32::from_bits(a.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|lane| v[lane] + v[lane + 8]);
        let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    use std::arch::x86_64::*;

    /// Whether AMD made the processor.
    pub(crate) fn is_amd() -> bool {
        let maker = __cpuid(0);
        [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }

    use half::{bf16, f16};

    use super::{Isa, Kernel};

    /// # Safety
    /// The processor has these features.
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub unsafe fn with_avx512(job: impl Kernel) {
        job.run::<Avx512<false>>();
    }

    /// # Safety
    /// The processor has these features.
    #[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
    pub unsafe fn with_avx512_bf16(job: impl Kernel) {
        job.run::<Avx512<true>>();
    }

    /// # Safety
    /// The processor has these features.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn with_avx2(job: impl Kernel) {
        job.run::<Avx2>();
    }

    /// Whether it has products of bf16.
    #[derive(Debug, Clone, Copy)]
    pub struct Avx512<const BF16: bool>;

    /// `$name(arguments) -> V` as the given expression.
    macro_rules! lanes {
        ($($name:ident($($arg:ident: $type:ty),*) $body:expr;)*) => {$(
            #[inline(always)]
            unsafe fn $name($($arg: $type),*) -> Self::V { $body }
        )*};
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
        unsafe fn dot_pairs(a: __m512, b: __m512, c: __m512) -> __m512 {
            if BF16 {
                let pairs = |v| std::mem::transmute::<__m512, __m512bh>(v);
                return _mm512_dpbf16_ps(c, pairs(a), pairs(b));
            }
            let low = |pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(pairs)));
            let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let high = |pairs| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), mask));
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

    #[derive(Debug, Clone, Copy)]
    pub struct Avx2;

    #[inline(always)]
    unsafe fn sum256(v: __m256) -> f32 {
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
    unsafe fn pairs256(a: __m256, b: __m256, c: __m256) -> __m256 {
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
        unsafe fn dot_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            [pairs256(a[0], b[0], c[0]), pairs256(a[1], b[1], c[1])]
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
}
