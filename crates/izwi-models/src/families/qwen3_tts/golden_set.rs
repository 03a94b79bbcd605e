//! The golden set: tiny checkpoints in the official layout, with tensors dumped from the official implementation.
//!
//! `IZWI_GOLDEN_QWEN3_TTS` names another set, `IZWI_TEST_DEVICE` another device (`cpu`, `metal`, `cuda`). Made by
//! `scripts/golden/qwen3_tts.py`.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

/// Of the largest value, and of 1 where all are smaller.
pub(super) const TOLERANCE: f32 = 1e-4;

/// The set's folder.
pub(super) fn root() -> PathBuf {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/qwen3_tts");
    std::env::var_os("IZWI_GOLDEN_QWEN3_TTS").map_or_else(own, PathBuf::from)
}

/// Where to compute.
pub(super) fn device() -> Device {
    match std::env::var("IZWI_TEST_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::Cpu,
        Ok("metal") => Device::new_metal(0).unwrap(),
        Ok("cuda") => Device::new_cuda(0).unwrap(),
        Ok(other) => panic!("IZWI_TEST_DEVICE is {other}; use cpu, metal or cuda"),
    }
}

/// The tensors of one case.
pub(super) fn tensors(case: &str) -> HashMap<String, Tensor> {
    let path = root().join("goldens").join(format!("{case}.safetensors"));
    candle_core::safetensors::load(&path, &Device::Cpu)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON file beside the tensors.
pub(super) fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = root().join("goldens").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All values as f32.
pub(super) fn floats(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// All values as ids.
pub(super) fn ids(tensor: &Tensor) -> Vec<u32> {
    let tensor = tensor.flatten_all().unwrap().to_dtype(DType::I64).unwrap();
    tensor.to_vec1::<i64>().unwrap().into_iter().map(|id| id as u32).collect()
}

/// Holds `ours` against `theirs`, whose shape may have axes of 1 in front.
pub(super) fn compare(name: &str, ours: &Tensor, theirs: &Tensor, tolerance: f32) {
    compare_values(name, &floats(ours), &floats(theirs), tolerance);
}

/// As [`compare`], for values.
pub(super) fn compare_values(name: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let scale = theirs.iter().fold(1f32, |largest, value| largest.max(value.abs()));
    let off = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, |worst, off| {
        // A NaN is the worst of all.
        if off.is_nan() { f32::INFINITY } else { worst.max(off) }
    });
    assert!(off <= tolerance * scale, "{name}: off by {off} of {scale}");
}
