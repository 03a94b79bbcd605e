//! Where the key of a server comes from. One outside the file is read when it is used.

use std::path::{Path, PathBuf};

use anyhow::Result;
use izwi_remote::Secret;

use super::origin::Origin;
use crate::{failure, input};

const MAX_KEY_BYTES: u64 = 4 << 10;

/// Where the key of the servers comes from.
#[derive(Debug, Clone, Default)]
pub(crate) enum KeySource {
    #[default]
    None,
    Text(Secret),
    Variable(String),
    File(PathBuf),
}

impl KeySource {
    /// The key, of the table at `origin`.
    ///
    /// # Errors
    /// The variable is not set, or the file cannot be read.
    pub(crate) fn read(&self, origin: &Origin) -> Result<Option<Secret>> {
        Ok(match self {
            Self::None => None,
            Self::Text(key) => Some(key.clone()),
            Self::Variable(name) => match std::env::var(name) {
                Ok(key) => Some(Secret::new(key.trim())),
                Err(_) => {
                    let message = format!("{}: api_key_env: the variable {name} is not set", origin);
                    return Err(failure::with_help(
                        message,
                        "set it to the key of the server, or use api_key_file",
                    ));
                }
            },
            Self::File(path) => Some(read_key(path).map_err(|reason| {
                let message = format!("{}: api_key_file: {}: {reason}", origin, path.display());
                failure::with_help(message, "write the key of the server alone into this file")
            })?),
        })
    }
}

fn read_key(path: &Path) -> Result<Secret, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let bytes = input::read_bounded(file, MAX_KEY_BYTES).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or_else(|| format!("has more than {MAX_KEY_BYTES} bytes"))?;
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    Ok(Secret::new(text.trim()))
}
