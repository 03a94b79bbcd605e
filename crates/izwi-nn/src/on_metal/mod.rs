//! Layers and kernels on the device that `IZWI_TEST_DEVICE` names compared with the CPU: skipped where that is not Metal.

mod attention;
mod embedding;
mod encoder;
mod linear;
mod lstm;
mod sampling;
mod stream;

use candle_core::{Device, Shape, Tensor};

fn device() -> Option<Device> {
    Some(crate::device::of_tests()).filter(Device::is_metal)
}

fn random(shape: impl Into<Shape>) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
}

fn worst(a: &Tensor, b: &Tensor) -> f32 {
    let b = b.to_device(&Device::Cpu).unwrap();
    let off = (a.to_device(&Device::Cpu).unwrap() - b).unwrap().abs().unwrap();
    off.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
}
