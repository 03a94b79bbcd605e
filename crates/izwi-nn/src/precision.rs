//! What a chosen [`Precision`] means for a device and for the kernels of this machine. Knows no tensor.

use std::sync::Once;

use candle_core::{DType, Device};
use izwi_kernels::linear::WeightType;
use izwi_kernels::{has_fast_bf16_dot, has_fast_int8_dot};
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

/// The precision of a codec alongside large weights of `precision`: [`Precision::Bf16`] if those are rounded too and the
/// processor multiplies pairs of bf16 faster than f32, else [`Precision::F32`].
#[must_use]
pub fn codec_precision(precision: Precision, device: &Device) -> Precision {
    let is_cpu = device.is_cpu();
    match precision.on(is_cpu) {
        Precision::Q8 | Precision::Q4 | Precision::Bf16 if is_cpu && has_fast_bf16_dot() => Precision::Bf16,
        _ => Precision::F32,
    }
}

/// The precision of convolutions over normalised rows alongside large weights of `precision`: [`Precision::Q8`] if those are 8
/// bits or fewer and the processor multiplies bytes several times faster than f32, else that of a codec.
#[must_use]
pub fn normed_conv_precision(precision: Precision, device: &Device) -> Precision {
    let is_cpu = device.is_cpu();
    match precision.on(is_cpu) {
        Precision::Q8 | Precision::Q4 if is_cpu && has_fast_int8_dot() => Precision::Q8,
        _ => codec_precision(precision, device),
    }
}

/// The type of keys and values alongside large weights of `precision`: f32 where those are, else f16.
#[must_use]
pub fn kv_type(precision: Precision) -> DType {
    if precision == Precision::F32 { DType::F32 } else { DType::F16 }
}

/// The type of a large weight on a device without kernels of this crate.
pub(crate) fn device_type(precision: Precision) -> DType {
    match precision.on(false) {
        Precision::F16 => DType::F16,
        Precision::Bf16 | Precision::Q8 | Precision::Q4 => DType::BF16,
        Precision::Auto | Precision::F32 => DType::F32,
    }
}

/// The precision of large weights on `device`: [`Precision::Auto`] resolved, and the next wider type that the device has
/// for one that it lacks, which is logged.
#[must_use]
pub fn weight_precision(precision: Precision, device: &Device) -> Precision {
    static TOLD: Once = Once::new();
    let has_q8 = device.is_cpu() || device.is_metal();
    match precision.on(has_q8) {
        lacking @ (Precision::Q8 | Precision::Q4) if !has_q8 => {
            TOLD.call_once(|| tracing::warn!("this device has no kernels for {lacking}: weights are bf16"));
            Precision::Bf16
        }
        kept => kept,
    }
}
