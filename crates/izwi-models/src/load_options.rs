//! How a checkpoint is loaded, and which types its weights get on its device.
//!
//! Families ask here and never test the device themselves.

use candle_core::Device;
use izwi_kernels::precision::Precision;
use izwi_nn::checkpoint::Checkpoint;

/// How a checkpoint is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Device of its tensors.
    pub device: Device,
    /// Type of large weights, as configured. Families with small weights ignore it.
    pub precision: Precision,
    /// Whether packed large weights are cached in a file beside the checkpoint, so that the next load is faster.
    pub weight_cache: bool,
}

impl LoadOptions {
    /// Options without a weight cache.
    #[must_use]
    pub fn new(device: Device, precision: Precision) -> Self {
        Self { device, precision, weight_cache: false }
    }

    /// Type of the large weights on the device.
    pub(crate) fn weight_type(&self) -> Precision {
        self.precision.on(self.device.is_cpu())
    }

    /// Type of the codec's weights on the device.
    pub(crate) fn codec_weight_type(&self) -> Precision {
        self.precision.of_codec(self.device.is_cpu())
    }

    /// The same options with the type of the codec's weights as the configured one.
    pub(crate) fn for_codec(&self) -> Self {
        Self { precision: self.codec_weight_type(), ..self.clone() }
    }

    /// The checkpoint with a cache of its packed weights of this type, where a weight cache is configured.
    pub(crate) fn cached(&self, from: Checkpoint, weight_type: Precision) -> Checkpoint {
        if self.weight_cache { from.with_cache(weight_type) } else { from }
    }
}
