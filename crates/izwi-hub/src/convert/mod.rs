//! Converts fetched files to safetensors. A converter is a folder here, with a variant of [`Conversion`].
//!
//! Knows no source, no manifest and no model architecture.

mod ctranslate2;
mod error;
mod nemo;
mod onnx;
mod ort;
mod output;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use error::ConversionError;
use onnx::Quantised;

/// A converter, by its name in manifests and in records of installations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Conversion {
    /// The weights of an ONNX graph, with the names of the module it was exported from.
    Onnx,
    /// As [`Self::Onnx`]; a quantised weight stays int8, alongside its scales.
    #[serde(rename = "onnx-int8")]
    OnnxInt8,
    /// The weights of a CTranslate2 speech model, with the names of the transformers library.
    Ctranslate2,
    /// The weights of a model in the format of ONNX Runtime, as [`Self::Onnx`].
    Ort,
    /// An archive of the NeMo toolkit: its weights, and beside them its settings and its tokenizer.
    Nemo,
}

impl Conversion {
    /// Converts the file `source` to the safetensors file `target`. Equal input gives equal output. Returns the files that it
    /// wrote beside it.
    ///
    /// # Errors
    /// The source is malformed, a conversion rule is missing, or a file operation failed.
    pub(crate) fn run(self, source: &Path, target: &Path) -> Result<Vec<PathBuf>, ConversionError> {
        match self {
            Self::Onnx => onnx::convert(source, target, Quantised::Floats)?,
            Self::OnnxInt8 => onnx::convert(source, target, Quantised::Int8)?,
            Self::Ort => ort::convert(source, target)?,
            Self::Ctranslate2 => ctranslate2::convert(source, target)?,
            Self::Nemo => return nemo::convert(source, target),
        }
        Ok(Vec::new())
    }
}
