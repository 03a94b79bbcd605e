//! The levels of aarch64: NEON with and without its extensions.

mod int8;
mod neon;

use std::arch::is_aarch64_feature_detected;

use self::neon::{BF16, DOTPROD, I8MM, Neon, PLAIN};
use super::level::{Level, Run};

/// NEON without extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonLevel;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for NeonLevel {
    type F32 = Neon<PLAIN>;
    type Int8 = Neon<PLAIN>;

    fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon")
    }

    #[target_feature(enable = "neon")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// NEON with dot products of bytes (`dotprod`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonDotprodLevel;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for NeonDotprodLevel {
    type F32 = Neon<PLAIN>;
    type Int8 = Neon<DOTPROD>;

    fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")
    }

    fn has_fast_int8_dot() -> bool {
        true
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}

/// NEON with products of small matrices of bytes (`i8mm`) and dot products of bf16 pairs (`bf16`): Armv8.6.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonI8mmLevel;

// SAFETY: `enter` enables the features that `is_supported` detects, and no others.
unsafe impl Level for NeonI8mmLevel {
    type F32 = Neon<BF16>;
    type Int8 = Neon<I8MM>;

    fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("bf16")
            && is_aarch64_feature_detected!("i8mm")
    }

    /// Apple processors multiply f32 as fast; other processors are not measured.
    fn has_fast_bf16_dot() -> bool {
        cfg!(not(target_vendor = "apple"))
    }

    fn has_fast_int8_dot() -> bool {
        true
    }

    #[target_feature(enable = "neon,bf16,i8mm")]
    unsafe fn enter(job: impl Run) {
        job.run::<Self>();
    }
}
