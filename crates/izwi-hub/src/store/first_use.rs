//! The hashes of files that were trusted at their first pull: a file next to the models, which outlives them.
//!
//! A manifest names these files without a hash. The first pull records the hash that the hub stated; later pulls refuse
//! another one, also after the model was removed. Reaches no source.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::io_error::IoError;

/// Hashes by path inside the model's folder.
pub(super) type Hashes = BTreeMap<String, String>;

/// The record of one model.
#[derive(Debug)]
pub(super) struct FirstUse {
    path: PathBuf,
    /// By [`crate::Source::id`].
    sources: BTreeMap<String, Hashes>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    sources: BTreeMap<String, Hashes>,
}

impl FirstUse {
    /// Reads the record of the model `name` in `folder`; empty without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(super) fn open(folder: &Path, name: &str) -> Result<Self, IoError> {
        let path = folder.join(format!("{name}.json"));
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, sources: BTreeMap::new() });
            }
            Err(error) => return Err(IoError::at("read", &path)(error)),
        };
        let content: Content = serde_json::from_slice(&text).map_err(|error| {
            let reason = format!("it is damaged ({error}); remove it to trust the hub again");
            IoError::at("read", &path)(io::Error::new(io::ErrorKind::InvalidData, reason))
        })?;
        Ok(Self { path, sources: content.sources })
    }

    /// The hashes recorded for a source.
    pub(super) fn of(&self, source: &str) -> Hashes {
        self.sources.get(source).cloned().unwrap_or_default()
    }

    /// Adds the hashes of a pull and writes the file, which changes completely or not at all.
    pub(super) fn record(&mut self, source: &str, hashes: Hashes) -> Result<(), IoError> {
        if hashes.is_empty() {
            return Ok(());
        }
        self.sources.entry(source.to_owned()).or_default().extend(hashes);
        let at = |error: serde_json::Error| IoError::at("write", &self.path)(error.into());
        let text = serde_json::to_vec_pretty(&Content { sources: self.sources.clone() }).map_err(at)?;
        files::replace(&self.path, &text)
    }
}
