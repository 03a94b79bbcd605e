//! Settings of checkpoints: files of bounded length, numbers within limits. Knows no family.

use std::path::Path;

use izwi_nn::Error;
use izwi_types::excerpt;
use serde::de::DeserializeOwned;

/// The longest file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file with `parse`.
///
/// # Errors
/// The file is unreadable, too long, or `parse` fails; the error names it.
pub(super) fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > MAX_BYTES {
        return Err(fault(format!("has {length} bytes; a configuration has at most {MAX_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    parse(&text).map_err(fault)
}

/// The value of a text in JSON or YAML.
///
/// # Errors
/// It is malformed, or has not the fields of `T`.
pub(super) fn parse<T: DeserializeOwned>(text: &str, is_yaml: bool) -> Result<T, String> {
    match is_yaml {
        true => serde_saphyr::from_str(text).map_err(|error| excerpt(&error)),
        false => serde_json::from_str(text).map_err(|error| error.to_string()),
    }
}

/// Refuses sizes of the part `of` that are 0 or above `most`.
///
/// # Errors
/// One is; the error names it.
pub(super) fn within(of: &str, sizes: &[(&str, usize)], most: usize) -> Result<(), String> {
    match sizes.iter().find(|(_, size)| !(1..=most).contains(size)) {
        Some((field, size)) => Err(format!("{of}: {field} is {size}; it must be between 1 and {most}")),
        None => Ok(()),
    }
}
