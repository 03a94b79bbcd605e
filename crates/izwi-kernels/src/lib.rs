//! CPU kernels: slices in, slices out. The only crate with `unsafe` code.
//!
//! Knows no tensor, no layer and no model.
#![allow(unsafe_code, reason = "vector instructions and disjoint writes of parallel tasks")]
#![allow(
    clippy::manual_map,
    clippy::manual_unwrap_or,
    clippy::needless_range_loop,
    reason = "kernels have loops over indices: closures and adaptors may be compiled as functions of their own"
)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the whole body of a kernel is under the contract of `Isa`")]

mod arch;
pub mod attention;
pub mod conv;
pub mod elementwise;
pub mod linear;
pub mod measure;
pub mod packed;
pub mod quantised_rows;
pub mod spectrum;
pub mod speeds;
pub mod threads;

pub use arch::{Element, has_fast_bf16_dot, has_fast_int8_dot};

#[cfg(test)]
mod tests;
