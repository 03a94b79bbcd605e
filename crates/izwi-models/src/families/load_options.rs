//! How a checkpoint is loaded: what every family is given. Knows no family.

use candle_core::Device;
use izwi_audio::vad::VadModel;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::precision::{codec_precision, normed_conv_precision, weight_precision};
use izwi_types::Precision;

/// How a checkpoint is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where its tensors go.
    pub device: Device,
    /// Type of large weights in memory. Families with small weights ignore it.
    pub precision: Precision,
    /// Whether converted weights are cached in a file next to the checkpoint, for faster loads.
    pub weight_cache: bool,
    /// Detects speech in recordings to transcribe.
    pub vad: VadModel,
}

impl LoadOptions {
    /// Options without a weight cache.
    #[must_use]
    pub fn new(device: Device, precision: Precision) -> Self {
        Self { device, precision, weight_cache: false, vad: VadModel::default() }
    }

    /// The same options with the precision of a codec.
    pub(crate) fn of_codec(&self) -> Self {
        Self { precision: self.codec_precision(), ..self.clone() }
    }

    /// The precision of a codec's weights.
    pub(crate) fn codec_precision(&self) -> Precision {
        codec_precision(self.precision, &self.device)
    }

    /// The precision of convolutions over normalised rows.
    pub(crate) fn normed_conv_precision(&self) -> Precision {
        normed_conv_precision(self.precision, &self.device)
    }

    /// The precision of large weights, [`Precision::Auto`] resolved.
    pub(crate) fn weight_precision(&self) -> Precision {
        weight_precision(self.precision, &self.device)
    }

    /// `from` with the cache of weights converted to `precision`, if [`Self::weight_cache`] is set.
    pub(crate) fn cached(&self, from: Checkpoint, precision: Precision) -> Checkpoint {
        if self.weight_cache { from.with_cache(precision) } else { from }
    }
}
