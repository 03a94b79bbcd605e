//! Layers with weights and activations, over packed rows `[rows, channels]` f32.
//!
//! Knows no attention over a cache, no codec and no model. Each layer picks its kernel: a fused one on the CPU, candle's
//! operations elsewhere.

pub mod activation;
pub mod conv;
mod conv_next;
mod embedding;
mod encoder_layer;
mod fused_linear;
mod instance_norm;
mod joint_linear;
mod layer_norm;
mod linear;
mod lstm;
mod packed_rows;
mod rms_norm;
mod rope;
mod row_norm;

pub use activation::Epilogue;
pub use conv_next::{ConvNeXtBlock, ConvNeXtConfig};
pub use embedding::{Embedding, sum_embeddings};
pub use encoder_layer::{EncoderConfig, EncoderLayer, EncoderNames, attend};
pub use fused_linear::{Fused, Norm};
pub use instance_norm::{InstanceNorm, NormActivation};
pub use joint_linear::{JointLinear, JointPart, JointRows};
pub use layer_norm::LayerNorm;
pub use linear::{Linear, cat_weights};
pub use lstm::{BiLstm, LstmCell};
pub use packed_rows::{PackedRows, ROW_ALIGN};
pub use rms_norm::RmsNorm;
pub use rope::{Rope, RopeRows, half_split_of_interleaved};
pub use row_norm::RowNorm;
