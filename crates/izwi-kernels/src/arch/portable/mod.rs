//! Vectors as plain arrays: the compiler vectorises them for the target, and tests compare the other levels with them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::{DEPTH, Int8Isa, Isa, LANES, LINE};
use super::level::{Level, Run};

/// Plain arrays of 16 values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

// SAFETY: needs no instruction beyond those of the target.
unsafe impl Level for Portable {
    type F32 = Self;
    type Int8 = Self;

    fn is_supported() -> bool {
        true
    }

    #[inline(always)]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

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
    unsafe fn dot_bf16_pairs(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
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
    unsafe fn multiply(mut sums: Self::S, weights: Self::B, x: Self::B) -> Self::S {
        for (at, (weight, x)) in weights.into_iter().zip(x).enumerate() {
            sums[at / DEPTH] += i32::from(weight) * i32::from(x.cast_signed());
        }
        sums
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
