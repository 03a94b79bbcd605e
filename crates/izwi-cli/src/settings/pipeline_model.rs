//! A pipeline of the configuration, and where the key of its language model comes from.

use anyhow::Result;
use izwi_remote::{PipelineConfig, Secret};

use super::key_source::KeySource;
use super::origin::Origin;

/// A pipeline.
#[derive(Debug, Clone)]
pub(crate) struct PipelineModel {
    /// Everything but the key.
    pub(crate) config: PipelineConfig,
    pub(super) key: KeySource,
    /// The line of its table.
    pub(crate) origin: Origin,
}

impl PipelineModel {
    /// A pipeline without a key.
    pub(crate) fn new(config: PipelineConfig, origin: Origin) -> Self {
        Self { config, key: KeySource::None, origin }
    }

    /// The pipeline with this key of its language model.
    pub(crate) fn keyed(self, key: Option<Secret>) -> Self {
        Self { key: key.map_or(KeySource::None, KeySource::Text), ..self }
    }

    /// The configuration with its key.
    ///
    /// # Errors
    /// The variable of the key is not set, or its file cannot be read.
    pub(crate) fn with_key(&self) -> Result<PipelineConfig> {
        let mut config = self.config.clone();
        config.llm.api_key = self.key.read(&self.origin)?;
        Ok(config)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.config.llm.name
    }

    /// Where the text of a conversation goes, for people.
    pub(crate) fn place(&self) -> String {
        let llm = &self.config.llm;
        let reach = if self.config.leaves_machine() { "text leaves this machine" } else { "on this machine" };
        format!("{} at {}, {reach}", llm.model, llm.base_urls.join(", "))
    }
}
