//! The settings of the server: address, models, and limits.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use izwi_core::engine::MemoryBudget;
use izwi_core::engine::config::DEFAULT_ASR_MODEL;
use izwi_server::{RegistryConfig, RestartPolicy, ServerConfig};

use crate::machine;

/// The value of `asr_model` for a server without an ASR model, and of `wyoming` for one without that port.
const NO_MODEL: &str = "none";

/// Settings of the server.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    /// Address or name to bind.
    pub(crate) host: String,
    /// Port to bind.
    pub(crate) port: u16,
    /// Whether an address that other machines can reach may be bound without a key.
    pub(crate) insecure: bool,
    /// Where the Wyoming protocol is served, if it is.
    pub(crate) wyoming: WyomingAddress,
    /// Whether that may be an address that other machines can reach.
    pub(crate) wyoming_open: bool,
    /// Whether the port is announced by multicast DNS.
    pub(crate) wyoming_zeroconf: bool,
    /// Default ASR model, or `none`.
    pub(crate) asr_model: String,
    /// Models to install and offer in addition to the default ones.
    pub(crate) models: Vec<String>,
    /// Whether transcripts tell saved speakers by their names.
    pub(crate) saved_speakers: bool,
    /// Time after which an unused model is unloaded, in seconds; 0 for never.
    pub(crate) model_ttl_s: u64,
    /// As `model_ttl_s`, of the default models.
    pub(crate) default_model_ttl_s: u64,
    /// Time without a connection after which a server on a passed socket ends, in seconds; 0 for never.
    pub(crate) exit_when_idle_s: u64,
    /// Time that a request waits for its model, in seconds.
    pub(crate) load_timeout_s: u64,
    /// Memory limit of all loaded models, in MiB; 0 for no limit.
    pub(crate) memory_budget_mib: u64,
    /// Limits and security of the server.
    pub(crate) config: ServerConfig,
}

/// A host and a port, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WyomingAddress(pub(crate) Option<(String, u16)>);

impl FromStr for WyomingAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == NO_MODEL {
            return Ok(Self(None));
        }
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match parts.filter(|(host, _)| !host.is_empty()) {
            Some((host, port)) => Ok(Self(Some((host.to_owned(), port)))),
            None => Err(format!("'{text}' is not an address with a port like 127.0.0.1:10200, or none")),
        }
    }
}

impl Display for WyomingAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((host, port)) => write!(f, "{host}:{port}"),
            None => f.write_str(NO_MODEL),
        }
    }
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            insecure: false,
            wyoming: WyomingAddress::default(),
            wyoming_open: false,
            wyoming_zeroconf: false,
            asr_model: DEFAULT_ASR_MODEL.to_owned(),
            models: Vec::new(),
            saved_speakers: false,
            model_ttl_s: 600,
            default_model_ttl_s: 0,
            exit_when_idle_s: 900,
            load_timeout_s: 30,
            memory_budget_mib: machine::default_memory_budget_mib(),
            config: ServerConfig::default(),
        }
    }
}

impl ServerSettings {
    /// The default ASR model, if there is one.
    pub(crate) fn default_asr_model(&self) -> Option<&str> {
        Some(self.asr_model.as_str()).filter(|name| *name != NO_MODEL)
    }

    /// The time without a connection after which a server ends whose socket the service manager keeps. A port that the
    /// server binds itself could not start it again.
    pub(crate) fn exit_when_idle(&self) -> Option<Duration> {
        Some(self.exit_when_idle_s)
            .filter(|idle| *idle > 0 && self.wyoming.0.is_none())
            .map(Duration::from_secs)
    }

    /// Settings of the registry, with the default TTS model.
    pub(crate) fn registry(&self, default_tts: String) -> RegistryConfig {
        let seconds = Duration::from_secs;
        RegistryConfig {
            default_tts,
            default_asr: self.default_asr_model().map(str::to_owned),
            load_timeout: seconds(self.load_timeout_s),
            ttl: Some(self.model_ttl_s).filter(|ttl| *ttl > 0).map(seconds),
            default_ttl: Some(self.default_model_ttl_s).filter(|ttl| *ttl > 0).map(seconds),
            memory: MemoryBudget::new(Some(self.memory_budget_mib << 20).filter(|bytes| *bytes > 0)),
            process_memory_bytes: machine::memory_bytes().map(|(total, _)| total),
            restart: RestartPolicy::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wyoming_address_has_a_host_and_a_port() {
        for text in ["127.0.0.1:10200", "[::1]:10200", "localhost:0", "none"] {
            assert_eq!(text.parse::<WyomingAddress>().unwrap().to_string(), text);
        }
        for text in ["10200", "127.0.0.1", ":10200", "host:port", "host:65536"] {
            assert!(text.parse::<WyomingAddress>().unwrap_err().contains(text));
        }
        assert_eq!("".parse(), Ok(WyomingAddress(None)));
    }
}
