//! Layers shared by families. Kernels are chosen here and nowhere else; nothing here names a family.

pub mod activation;
pub mod attention;
pub mod checkpoint;
pub mod conv;
pub mod convnext;
mod cpu;
pub mod decoder_stack;
pub mod embedding;
pub mod encoder;
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
pub mod short_conv;
pub(crate) mod slices;
mod stored;
mod weight_cache;
pub mod window_attention;

pub(crate) use cpu::{pair, spectrum};
