//! Matrix products with a packed weight on the right, in f32, f16, bf16 or a few bits.

pub(crate) mod blocks;
pub(crate) mod panels;
mod quant;
mod rows;
mod source;
mod weights;

pub use panels::Rows;
pub use rows::{ROW_BLOCK, quantise_row_q4, quantise_row_q8};
pub use source::WeightSource;
pub use weights::{WeightType, Weights};
