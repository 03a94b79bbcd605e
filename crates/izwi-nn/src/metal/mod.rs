//! Fused kernels for Metal: sources in the Metal shading language, their pipelines, and passes that encode them.
//!
//! A layer opens a [`Pass`] and encodes its kernels into it; candle's operations come before or after the pass. Knows no
//! layer and no model.

mod attention;
mod conv;
mod counters;
mod cross_attention;
mod embedding;
mod encoder_attention;
#[cfg(test)]
mod encoder_tests;
mod library;
mod linear;
mod pass;
pub(crate) mod relative;
mod sampling;
mod stream_slots;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod weights;
pub(crate) mod window;

use candle_core::{Storage, Tensor};

pub(crate) use attention::{Heads, MAX_TAPS, StepTable, TableSpan};
pub(crate) use conv::{
    ConvArgs, ConvWeights, Depthwise, DepthwiseForm, Edge, Epilogue, NO_STATE, SequenceTable, conv,
    depthwise_2d,
};
pub use counters::KernelCosts;
pub(crate) use cross_attention::takes_window;
pub(crate) use embedding::{Entries, MAX_TABLES};
pub(crate) use encoder_attention::{HeadShape, MAX_HEAD_DIM};
pub(crate) use linear::{Fused, Norm};
pub(crate) use pass::{Pass, metal_device};
pub(crate) use sampling::{DrawTable, Lookup, RowDraw};
pub(crate) use stream_slots::{HeldSlots, Slot, StreamSlots};
pub(crate) use weights::MetalWeights;

/// Runs `work` with the storage of a tensor on Metal.
fn with_storage<T>(
    tensor: &Tensor,
    work: impl FnOnce(&candle_core::MetalStorage, &candle_core::Layout) -> candle_core::Result<T>,
) -> candle_core::Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Metal(storage) => work(storage, layout),
        _ => candle_core::bail!("metal: a tensor of {:?} is on another device", tensor.dims()),
    }
}
