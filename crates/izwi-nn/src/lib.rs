//! Layers over tensors, neural codecs, checkpoints, the KV pool and devices. Chooses the kernel for each device.
//!
//! Knows no model family, no request and no runtime.
#![forbid(unsafe_code)]

pub mod attention;
pub mod checkpoint;
pub mod codec;
pub mod decoder_stack;
pub mod device;
mod error;
pub mod kv_pool;
pub mod layers;
#[cfg(test)]
mod on_metal;
pub mod precision;
pub mod sampling;
pub mod self_check;
pub mod slices;
pub mod yielding;

pub use error::Error;
pub use izwi_metal::emulated as emulated_metal;
