//! The server's part of the settings: where it listens, which models it loads, and what the server itself is told.

use izwi_core::engine::config::DEFAULT_ASR_MODEL;
use izwi_server::{RegistryConfig, ServerConfig};

/// The name that stands for no listening model.
const NO_MODEL: &str = "none";

/// Where the server listens and what it serves.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    /// Address or name to bind.
    pub(crate) host: String,
    /// Port to bind.
    pub(crate) port: u16,
    /// Whether an address that others reach may be bound without a key.
    pub(crate) insecure: bool,
    /// Model that listens by default, or `none`.
    pub(crate) asr_model: String,
    /// Models to install and offer beside the default ones.
    pub(crate) models: Vec<String>,
    /// How long an unused model stays loaded, in seconds; 0 for ever.
    pub(crate) model_ttl_s: u64,
    /// How long a request waits for its model, in seconds.
    pub(crate) load_timeout_s: u64,
    /// What loaded models may take together, in MiB; 0 for no limit.
    pub(crate) memory_budget_mib: u64,
    /// The server's own.
    pub(crate) config: ServerConfig,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            insecure: false,
            asr_model: DEFAULT_ASR_MODEL.to_owned(),
            models: Vec::new(),
            model_ttl_s: 600,
            load_timeout_s: 30,
            memory_budget_mib: 0,
            config: ServerConfig::default(),
        }
    }
}

impl ServerSettings {
    /// The model that listens by default, if one is to.
    pub(crate) fn ear(&self) -> Option<&str> {
        Some(self.asr_model.as_str()).filter(|name| *name != NO_MODEL)
    }

    /// Settings of the registry, with the default TTS model.
    pub(crate) fn registry(&self, default_tts: String) -> RegistryConfig {
        let seconds = std::time::Duration::from_secs;
        RegistryConfig {
            default_tts,
            default_asr: self.ear().map(str::to_owned),
            load_timeout: seconds(self.load_timeout_s),
            ttl: Some(self.model_ttl_s).filter(|ttl| *ttl > 0).map(seconds),
            memory_budget_bytes: Some(self.memory_budget_mib << 20).filter(|bytes| *bytes > 0),
        }
    }
}
