//! A model that other servers run, and where its key comes from.

use anyhow::Result;
use izwi_remote::RemoteConfig;

use super::key_source::KeySource;
use super::origin::Origin;
use crate::failure;

/// A model that other servers run.
#[derive(Debug, Clone)]
pub(crate) struct RemoteModel {
    /// Everything but the key.
    pub(crate) config: RemoteConfig,
    pub(super) key: KeySource,
    /// The line of its table.
    pub(crate) origin: Origin,
}

impl RemoteModel {
    /// The configuration with its key.
    ///
    /// # Errors
    /// The variable is not set, or the file cannot be read.
    pub(crate) fn with_key(&self) -> Result<RemoteConfig> {
        let api_key = self.key.read(&self.origin)?;
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
