//! Layers over tensors, neural codecs, checkpoints, the KV pool and devices. Kernels are chosen here.
//!
//! Knows no model family, no request and no runtime.
#![forbid(unsafe_code)]

pub mod activation;
pub mod attention;
pub mod checkpoint;
pub mod codec;
pub mod conv;
pub mod convnext;
pub mod decoder_stack;
pub mod device;
pub mod embedding;
pub mod encoder;
mod error;
pub mod frame_draws;
pub mod frame_steps;
pub mod group_conv;
pub mod kv_pool;
pub mod linear;
pub mod norm;
pub mod packed;
pub mod plane_conv;
pub mod precision;
pub mod relative_attention;
pub mod rms_norm;
pub mod rope;
pub mod row_conv;
pub mod row_linear;
pub mod sampling;
pub mod short_conv;
pub mod slices;
mod stored;
mod weight_cache;
pub mod window_attention;

pub use error::Error;
