//! The server's part of the settings: where it listens, which models it loads, and what the server itself is told.

use izwi_server::ServerConfig;

/// Where the server listens and what it serves.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    /// Address or name to bind.
    pub(crate) host: String,
    /// Port to bind.
    pub(crate) port: u16,
    /// Whether an address that others reach may be bound without a key.
    pub(crate) insecure: bool,
    /// Models beside the default one.
    pub(crate) extra_models: Vec<String>,
    /// The server's own.
    pub(crate) config: ServerConfig,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            insecure: false,
            extra_models: Vec::new(),
            config: ServerConfig::default(),
        }
    }
}
