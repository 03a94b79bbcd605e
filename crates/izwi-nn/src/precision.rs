//! What a chosen [`Precision`] means for a device and for the kernels of this machine. Knows no tensor.

use candle_core::Device;
use izwi_kernels::has_fast_bf16_dot;
use izwi_kernels::linear::WeightType;
use izwi_types::Precision;

/// The type that the CPU kernels store a large weight in.
pub(crate) fn weight_type(precision: Precision) -> WeightType {
    match precision.on(true) {
        Precision::F32 => WeightType::F32,
        Precision::Bf16 => WeightType::Bf16,
        Precision::F16 => WeightType::F16,
        Precision::Auto | Precision::Q8 => WeightType::Q8,
        Precision::Q4 => WeightType::Q4,
    }
}

/// The precision of a codec beside large weights of `precision`: [`Precision::Bf16`] if those are rounded too and the
/// processor multiplies pairs of bf16 faster than f32, else [`Precision::F32`].
#[must_use]
pub fn codec_precision(precision: Precision, device: &Device) -> Precision {
    let is_cpu = device.is_cpu();
    match precision.on(is_cpu) {
        Precision::Q8 | Precision::Q4 | Precision::Bf16 if is_cpu && has_fast_bf16_dot() => Precision::Bf16,
        _ => Precision::F32,
    }
}

/// The precision of large weights on `device`: [`Precision::Auto`] resolved.
#[must_use]
pub fn weight_precision(precision: Precision, device: &Device) -> Precision {
    precision.on(device.is_cpu() || device.is_metal())
}
