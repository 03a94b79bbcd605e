//! The golden set of this family, made by `scripts/golden/lfm2_audio.py`.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::Tensor;

use super::super::golden_set::GoldenSet;
pub(super) use super::super::golden_set::{
    TOLERANCE, assert_same, by_rows, codes, compare, device, ids, is_bit_exact, values,
};

const SET: GoldenSet = GoldenSet { name: "lfm2_audio", variable: "IZWI_GOLDEN_LFM2_AUDIO" };

/// The set: `$IZWI_GOLDEN_LFM2_AUDIO`, or the repository's own.
pub(super) fn root() -> PathBuf {
    SET.root()
}

/// The tensors of one golden file, on the CPU.
pub(super) fn tensors(name: &str) -> HashMap<String, Tensor> {
    SET.tensors(name)
}

/// A JSON file next to the tensors.
pub(super) fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    SET.json(name)
}
