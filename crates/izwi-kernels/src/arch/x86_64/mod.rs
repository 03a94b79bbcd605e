//! The levels of x86-64.

mod avx2;
mod avx512;
mod avx_vnni;

use std::arch::x86_64::__cpuid;

pub(super) use avx_vnni::AvxVnniLevel;
pub(super) use avx2::Avx2Level;
pub(super) use avx512::{Avx512Bf16Level, Avx512Level, Avx512VnniLevel};

/// `$name(arguments) -> V` as the given expression.
macro_rules! lanes {
    ($($name:ident($($arg:ident: $type:ty),*) $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) -> Self::V { $body }
    )*};
}
use lanes;

/// Whether AMD made the processor.
fn is_amd() -> bool {
    let vendor = __cpuid(0);
    let name = [*b"Auth", *b"enti", *b"cAMD"];
    [vendor.ebx.to_le_bytes(), vendor.edx.to_le_bytes(), vendor.ecx.to_le_bytes()] == name
}
