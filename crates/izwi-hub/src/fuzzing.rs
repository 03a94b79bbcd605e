//! What fuzz targets call of the private readers of files that are pulled. No part of the interface.

use std::path::Path;

use crate::convert::Conversion;
use crate::{ConversionError, SourceError, sources};

/// Converts an ONNX file to safetensors.
///
/// # Errors
/// As for a pull.
pub fn convert_onnx(source: &Path, target: &Path) -> Result<(), ConversionError> {
    Conversion::Onnx.run(source, target).map(drop)
}

/// Converts a CTranslate2 file to safetensors.
///
/// # Errors
/// As for a pull.
pub fn convert_ctranslate2(source: &Path, target: &Path) -> Result<(), ConversionError> {
    Conversion::Ctranslate2.run(source, target).map(drop)
}

/// Unpacks the member `lark/a` of at most 4096 bytes of a package, a wheel or else an npm package, below `folder`.
///
/// # Errors
/// As for a pull.
pub fn unpack(package: &Path, is_wheel: bool, folder: &Path) -> Result<(), SourceError> {
    sources::unpack_one(package, is_wheel, "lark/a", folder)
}
