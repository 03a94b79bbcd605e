//! A model that other servers run, and where its key comes from. A key outside the file is read when the model is used.

use std::path::{Path, PathBuf};

use anyhow::Result;
use izwi_remote::{RemoteConfig, Secret};

use super::origin::Origin;
use crate::{failure, input};

const MAX_KEY_BYTES: u64 = 4 << 10;

/// A model that other servers run.
#[derive(Debug, Clone)]
pub(crate) struct RemoteModel {
    /// Everything but the key.
    pub(crate) config: RemoteConfig,
    pub(super) key: KeySource,
    /// The line of its table.
    pub(crate) origin: Origin,
}

/// Where the key of the servers comes from.
#[derive(Debug, Clone, Default)]
pub(super) enum KeySource {
    #[default]
    None,
    Text(Secret),
    Variable(String),
    File(PathBuf),
}

impl RemoteModel {
    /// The configuration with its key.
    ///
    /// # Errors
    /// The variable is not set, or the file cannot be read.
    pub(crate) fn with_key(&self) -> Result<RemoteConfig> {
        let api_key = match &self.key {
            KeySource::None => None,
            KeySource::Text(key) => Some(key.clone()),
            KeySource::Variable(name) => match std::env::var(name) {
                Ok(key) => Some(Secret::new(key.trim())),
                Err(_) => {
                    let message = format!("{}: api_key_env: the variable {name} is not set", self.origin);
                    return Err(failure::with_help(
                        message,
                        "set it to the key of the server, or use api_key_file",
                    ));
                }
            },
            KeySource::File(path) => Some(read_key(path).map_err(|reason| {
                let message = format!("{}: api_key_file: {}: {reason}", self.origin, path.display());
                failure::with_help(message, "write the key of the server alone into this file")
            })?),
        };
        let config = RemoteConfig { api_key, ..self.config.clone() };
        config
            .check()
            .map_err(|error| failure::with_help(format!("{}: {error}", self.origin), "see docs/remote.md"))?;
        Ok(config)
    }

    /// Where it runs, for people.
    pub(crate) fn place(&self) -> String {
        self.config.base_urls.join(", ")
    }
}

fn read_key(path: &Path) -> Result<Secret, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let bytes = input::read_bounded(file, MAX_KEY_BYTES).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or_else(|| format!("has more than {MAX_KEY_BYTES} bytes"))?;
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    Ok(Secret::new(text.trim()))
}
