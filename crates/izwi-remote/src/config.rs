//! Configuration of a remote model, its defaults and its checks.

use std::time::Duration;

use izwi_core::engine::Task;
use izwi_types::excerpt;
use reqwest::Url;

/// Sample rates of streamed audio, in Hz.
const RATES_HZ: std::ops::RangeInclusive<u32> = 8_000..=48_000;
/// The most servers of one model.
const MAX_SERVERS: usize = 64;

/// A key that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A model that other servers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Its name here.
    pub name: String,
    /// What it does: speech synthesis or transcription.
    pub task: Task,
    /// The servers, each with the path before `/audio/speech`: `http://gpu:8091/v1`.
    pub base_urls: Vec<String>,
    /// The key that the servers require, if any.
    pub api_key: Option<Secret>,
    /// Its name at the servers.
    pub model: String,
    /// Names of its voices, the default first. If empty, the servers are asked.
    pub voices: Vec<String>,
    /// Codes of the languages that it transcribes or speaks; empty if they are not known.
    pub languages: Vec<String>,
    /// Rate of the audio that the servers send, in Hz.
    pub sample_rate_hz: u32,
    /// The most requests open at once; further ones are refused.
    pub max_concurrent: usize,
    /// Whether the servers take fields that OpenAI's API lacks: `stream`, `language`, `seed`, `max_tokens`, sampling
    /// parameters.
    pub extensions: bool,
    /// Whether transcripts are asked for with times (`verbose_json`), or as text alone.
    pub timestamps: bool,
    /// How often a request is tried again before the first byte.
    pub retries: usize,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long the first byte of an answer may take.
    pub first_byte_timeout: Duration,
    /// How long an answer may pause, or be slower than a tenth of its tempo.
    pub idle_timeout: Duration,
    /// Failures in a row after which a server is not asked for `breaker_pause`.
    pub breaker_failures: u32,
    /// How long a server that failed is not asked.
    pub breaker_pause: Duration,
}

/// A remote model is configured wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ConfigError {
    /// The key of the configuration.
    pub field: &'static str,
    /// The value and the remedy.
    pub message: String,
}

impl RemoteConfig {
    /// A model with every setting at its default.
    pub fn new(
        name: impl Into<String>,
        task: Task,
        base_urls: Vec<String>,
        model: impl Into<String>,
    ) -> Self {
        // A server answers a transcription when it is done.
        let first_byte_s = if task == Task::Asr { 600 } else { 60 };
        Self {
            name: name.into(),
            task,
            base_urls,
            api_key: None,
            model: model.into(),
            voices: Vec::new(),
            languages: Vec::new(),
            sample_rate_hz: 24_000,
            max_concurrent: 32,
            extensions: true,
            timestamps: true,
            retries: 2,
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(first_byte_s),
            idle_timeout: Duration::from_secs(30),
            breaker_failures: 5,
            breaker_pause: Duration::from_secs(10),
        }
    }

    /// Checks each value.
    ///
    /// # Errors
    /// The first value that cannot be used, with the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.task == Task::Chat {
            let message = "chat is not supported for remote models; use tts or asr, or a pipeline";
            return Err(ConfigError { field: "task", message: message.to_owned() });
        }
        self.check_servers()
    }

    /// As [`Self::check`], of servers that do any task.
    pub(crate) fn check_servers(&self) -> Result<(), ConfigError> {
        let refuse = |field, message: String| Err(ConfigError { field, message });
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_plain) {
            let name = excerpt(&self.name);
            return refuse(
                "name",
                format!("'{name}' is not a name of up to 64 letters, digits, '-', '_' and '.'"),
            );
        }
        if self.model.trim().is_empty() {
            return refuse("model", "is empty; set the name of the model at the server".to_owned());
        }
        if self.base_urls.is_empty() || self.base_urls.len() > MAX_SERVERS {
            let count = self.base_urls.len();
            return refuse("base_url", format!("has {count} servers; set 1 to {MAX_SERVERS}"));
        }
        for url in &self.base_urls {
            parse(url)?;
        }
        if !RATES_HZ.contains(&self.sample_rate_hz) {
            let (low, high) = RATES_HZ.into_inner();
            return refuse("sample_rate", format!("{} is not within {low} to {high}", self.sample_rate_hz));
        }
        if self.max_concurrent == 0 || self.breaker_failures == 0 {
            let field = if self.max_concurrent == 0 { "max_concurrent" } else { "breaker_failures" };
            return refuse(field, "0 must be at least 1".to_owned());
        }
        if let Some(key) = &self.api_key
            && (key.reveal().is_empty() || !key.reveal().bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let message = "is empty or has other characters than visible ASCII; set the key of the server";
            return refuse("api_key", message.to_owned());
        }
        Ok(())
    }
}

/// Parses a base URL.
pub(crate) fn parse(text: &str) -> Result<Url, ConfigError> {
    let refuse = |message: String| ConfigError { field: "base_url", message };
    let example = "write one like http://gpu:8091/v1";
    // A password in it must not reach a log.
    let shown = excerpt(text.rsplit('@').next().unwrap_or_default());
    let url =
        Url::parse(text).map_err(|error| refuse(format!("'{shown}' is no URL ({error}); {example}")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refuse(format!("'{shown}' is not of the form http:// or https://; {example}")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse(format!("'{shown}' holds a user or password; set api_key instead")));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse(format!("'{shown}' has a query or a fragment; {example}")));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> RemoteConfig {
        RemoteConfig::new("far", Task::Tts, vec![url.to_owned()], "m")
    }

    #[test]
    fn each_fault_names_its_field() {
        let good = config("https://gpu.example:8091/v1");
        assert_eq!(good.check(), Ok(()));
        let cases = [
            (RemoteConfig { name: "a b".to_owned(), ..good.clone() }, "name"),
            (RemoteConfig { task: Task::Chat, ..good.clone() }, "task"),
            (RemoteConfig { model: " ".to_owned(), ..good.clone() }, "model"),
            (RemoteConfig { base_urls: vec![], ..good.clone() }, "base_url"),
            (config("gpu:8091"), "base_url"),
            (config("ftp://gpu/v1"), "base_url"),
            (config("http://gpu/v1?key=1"), "base_url"),
            (RemoteConfig { sample_rate_hz: 1, ..good.clone() }, "sample_rate"),
            (RemoteConfig { max_concurrent: 0, ..good.clone() }, "max_concurrent"),
            (RemoteConfig { breaker_failures: 0, ..good.clone() }, "breaker_failures"),
            (RemoteConfig { api_key: Some(Secret::new("a\nb")), ..good.clone() }, "api_key"),
        ];
        for (config, field) in cases {
            assert_eq!(config.check().unwrap_err().field, field, "{config:?}");
        }
    }

    #[test]
    fn neither_a_key_nor_a_password_is_shown() {
        let error = config("https://user:hunter2@gpu/v1").check().unwrap_err().to_string();
        assert!(error.contains("api_key") && !error.contains("hunter2"), "{error}");
        let with_key = RemoteConfig { api_key: Some(Secret::new("hunter2")), ..config("http://gpu/v1") };
        assert!(!format!("{with_key:?}").contains("hunter2"));
    }
}
