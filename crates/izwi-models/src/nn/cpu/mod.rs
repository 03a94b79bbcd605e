//! CPU kernels, and the only place with `unsafe`: vectors of 16 lanes, chosen at run time, with a portable twin.
//!
//! Slices in, slices out; knows no tensor and no layer.
#![allow(unsafe_code, reason = "vector instructions and disjoint writes of parallel tasks")]
#![allow(unsafe_op_in_unsafe_fn, reason = "the whole body of a kernel is under the contract of `Isa`")]

pub(crate) mod attend;
mod blocks;
pub(crate) mod conv;
pub(crate) mod depthwise;
mod dots;
pub(crate) mod elementwise;
mod grades;
pub(crate) mod isa;
pub(crate) mod memory;
pub(crate) mod minimal;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dots;
pub(crate) mod paged;
pub(crate) mod pair;
pub(crate) mod panels;
pub(crate) mod plane;
pub(crate) mod relative;
pub(crate) mod short_conv;
pub(crate) mod snake;
pub(crate) mod source;
pub(crate) mod spectrum;
pub(crate) mod threads;
pub(crate) mod weights;
pub(crate) mod windowed;

#[cfg(test)]
mod tests;
