//! The levels of x86-64.

mod avx2;
mod avx512;
mod avx_vnni;

use std::arch::x86_64::__cpuid;

pub(super) use avx_vnni::AvxVnniLevel;
pub(super) use avx2::Avx2Level;
pub(super) use avx512::{Avx512Bf16Level, Avx512Level, Avx512VnniLevel};

use super::level::Level;

/// `$name(arguments) -> V` as the given expression.
macro_rules! lanes {
    ($($name:ident($($arg:ident: $type:ty),*) $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) -> Self::V { $body }
    )*};
}
use lanes;

/// See [`super::has_fast_bf16_dot`]: AMD processors multiply pairs of bf16 twice as fast as f32. Intel processors have
/// the instruction too, at two thirds of the speed of f32.
pub(super) fn has_fast_bf16_dot() -> bool {
    let vendor = __cpuid(0);
    let vendor = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    Avx512Bf16Level::is_supported() && vendor.as_flattened() == b"AuthenticAMD"
}

/// See [`super::has_fast_int8_dot`]: one instruction instead of four.
pub(super) fn has_fast_int8_dot() -> bool {
    Avx512VnniLevel::is_supported() || AvxVnniLevel::is_supported()
}
