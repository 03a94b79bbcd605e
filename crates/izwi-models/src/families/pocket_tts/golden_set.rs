//! The golden set of this family, made by `scripts/golden/pocket_tts.py`.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::Tensor;

use super::super::golden_set::GoldenSet;
pub(super) use super::super::golden_set::{
    TOLERANCE, assert_same, by_rows, compare, device, ids, is_bit_exact, values,
};
use super::PocketTts;
use super::config::Config;
use crate::families::LoadOptions;
use izwi_types::Precision;

const SET: GoldenSet = GoldenSet { name: "pocket_tts", variable: "IZWI_GOLDEN_POCKET_TTS" };

/// The set: `$IZWI_GOLDEN_POCKET_TTS`, or the repository's own.
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

/// The variants of the set: its folders with a checkpoint.
pub(super) fn variants() -> Vec<String> {
    let folders = std::fs::read_dir(root()).unwrap().flatten();
    let folders = folders.filter(|folder| folder.path().join("model.safetensors").exists());
    let mut names: Vec<String> = folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(!names.is_empty(), "{} holds no checkpoint", root().display());
    names
}

/// Golden files of a variant whose tensors are those of a generation: `(file, name of the case)`.
pub(super) fn cases(variant: &str) -> Vec<String> {
    let files = std::fs::read_dir(root().join("goldens")).unwrap().flatten();
    let names = files.filter_map(|file| {
        let name = file.file_name().into_string().unwrap();
        let name = name.strip_suffix(".safetensors")?.to_owned();
        let is_case = name.strip_prefix(variant)?.starts_with('.') && tensors(&name).contains_key("noise");
        is_case.then_some(name)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(!names.is_empty(), "no case of {variant}");
    names
}

/// The checkpoint of a variant.
pub(super) fn model(variant: &str, precision: Precision) -> PocketTts {
    model_with(variant, precision, |_| ())
}

/// The checkpoint of a variant, its configuration changed.
pub(super) fn model_with(variant: &str, precision: Precision, change: impl Fn(&mut Config)) -> PocketTts {
    let folder = root().join(variant);
    let mut config = Config::load(&folder).unwrap();
    change(&mut config);
    PocketTts::load(&folder, config, &LoadOptions::new(device(), precision)).unwrap()
}
