//! Fused kernels for Metal: sources in the Metal shading language, their pipelines, and passes that encode them; and the
//! devices that run them.
//!
//! A layer opens a [`Pass`] and encodes its kernels into it; candle's operations come before or after the pass. Knows no
//! layer and no model. Without the feature `metal` everything is there, but no device: a [`Pass`] cannot be opened, and
//! layers need no `cfg`.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "metal"), allow(dead_code, reason = "nothing is encoded"))]

mod attention;
mod conv;
mod counters;
mod cross_attention;
#[cfg(feature = "metal")]
mod driver;
#[cfg(not(feature = "metal"))]
#[path = "no_driver.rs"]
mod driver;
mod embedding;
pub mod emulated;
mod encoder_attention;
mod instance_norm;
mod kernel;
#[cfg(feature = "metal")]
mod library;
mod linear;
pub mod lstm;
mod pass;
pub mod relative;
mod sampling;
#[cfg(feature = "metal")]
mod scratch;
mod stream_slots;
mod weights;
pub mod window;

use candle_core::{DType, Device, MetalDevice, Result};

pub use attention::{Heads, MAX_TAPS, StepTable, TableSpan};
pub use conv::{
    Activation, ConvArgs, ConvEpilogue, ConvWeights, Depthwise, DepthwiseForm, Edge, NO_STATE, SequenceTable,
    conv, depthwise_2d,
};
pub use counters::KernelCosts;
pub use cross_attention::takes_window;
pub use driver::{OwnBuffers, allocated_bytes, check, fault, finish, gpu, prepare, with_autorelease_pool};
pub use embedding::{Entries, MAX_TABLES};
pub use encoder_attention::{HeadShape, MAX_HEAD_DIM};
pub use instance_norm::{NormActivation, instance_norm};
pub use linear::{Epilogue, Fused, Norm};
pub use pass::Pass;
pub use sampling::{DrawTable, Lookup, RowDraw};
pub use stream_slots::{HeldSlots, Slot, StreamSlots};
pub use weights::MetalWeights;

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name, e.g. `Apple M4`.
    pub name: String,
    /// Name of the architecture, e.g. `applegpu_g16g`.
    pub architecture: String,
    /// Bytes that it may hold without a loss of speed, as the system recommends.
    pub working_set_bytes: usize,
}

/// Whether this build has Metal.
pub const IS_BUILT_IN: bool = cfg!(feature = "metal");

/// The Metal device of a [`Device`].
#[inline]
pub fn metal_device(device: &Device) -> Option<&MetalDevice> {
    match device {
        Device::Metal(device) if IS_BUILT_IN => Some(device),
        _ => None,
    }
}

/// Gives the device a little work and waits for it.
///
/// # Errors
/// The device failed.
pub fn beat(device: &MetalDevice) -> Result<()> {
    driver::empty(device, 1, DType::F32)?.to_vec1::<f32>().map(drop)
}
