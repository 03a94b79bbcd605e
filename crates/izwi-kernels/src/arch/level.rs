//! What a level of vector instructions consists of.

use super::isa::{Int8Isa, Isa};

/// A set of vector instructions that processors have together.
///
/// # Safety
/// [`Level::is_supported`] is false where the processor lacks an instruction that [`Level::enter`], [`Level::F32`] or
/// [`Level::Int8`] need.
pub(super) unsafe trait Level {
    /// Vectors of kernels in f32.
    type F32: Isa;
    /// Vectors of kernels on bytes.
    type Int8: Int8Isa;

    /// Whether this processor has the instructions.
    fn is_supported() -> bool;

    /// Whether products of pairs of bf16 are faster than products of f32 on this processor.
    fn has_fast_bf16_dot() -> bool {
        false
    }

    /// Whether products of bytes are several times faster than products of f32 on this processor.
    fn has_fast_int8_dot() -> bool {
        false
    }

    /// Runs the job, compiled for the instructions.
    ///
    /// # Safety
    /// The level is supported.
    unsafe fn enter(job: impl Run);
}

/// A job that can be compiled for every level.
pub(super) trait Run {
    /// The work; `#[inline(always)]`, so that it is compiled for the instructions of its caller.
    ///
    /// # Safety
    /// The level is supported.
    unsafe fn run<L: Level>(self);
}
