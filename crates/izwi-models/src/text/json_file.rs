//! Reading the small JSON files of a checkpoint folder.

use std::path::Path;

use serde::de::DeserializeOwned;

use izwi_nn::Error;

/// Parses a JSON file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))
}
