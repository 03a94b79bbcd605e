//! CPU kernels, and the only place with `unsafe`: vectors of 16 lanes, chosen at run time, with a portable twin.
//!
//! Slices in, slices out; knows no tensor and no layer.
#![allow(unsafe_code, reason = "vector instructions and disjoint writes of parallel tasks")]
#![allow(unsafe_op_in_unsafe_fn, reason = "the whole body of a kernel is under the contract of `Isa`")]

pub mod attend;
mod blocks;
pub mod conv;
pub mod depthwise;
mod dots;
pub mod elementwise;
mod grades;
pub mod isa;
pub mod memory;
pub mod minimal;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dots;
pub mod paged;
pub mod pair;
pub mod panels;
pub mod plane;
pub mod precision;
pub mod relative;
pub mod short_conv;
pub mod snake;
pub mod source;
pub mod spectrum;
pub mod threads;
pub mod weights;
pub mod windowed;

#[cfg(test)]
mod tests;
