//! One remote model: its facts, and how a request finds a server that answers.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::executor::ExecutorProfile;
use izwi_core::engine::remote::{self, RemoteOutput};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineError, RemoteError, RemoteModel, Task, UpstreamStatus, Voice, metrics,
};
use izwi_types::{Input, InputError, ModelInfo, SamplingParams};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use serde::Deserialize;

use crate::answer::{self, Fault};
use crate::config::{self, ConfigError, RemoteConfig, Secret};
use crate::shared::{INPUT_RATE_HZ, Shared, join};
use crate::speech;
use crate::transcription;
use crate::upstreams::{Attempt, Outcome, Upstreams};

/// The pause before a server is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a server is asked again: a client that should wait longer is told to.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long the question for the voices may take.
const VOICES_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_VOICES_BYTES: usize = 1 << 20;
/// Range of `speed` of OpenAI's API.
const SPEED: (f32, f32) = (0.25, 4.0);

/// A client of the servers that run one model. Clones share the connections.
#[derive(Debug, Clone)]
pub struct RemoteClient {
    pub(crate) shared: Arc<Shared>,
}

impl RemoteClient {
    /// A client, which has asked nothing yet.
    ///
    /// # Errors
    /// A value of the configuration cannot be used, or there are no certificates for https.
    pub fn new(config: RemoteConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let info = info(&config, &config.voices);
        Ok(Self { shared: Arc::new(Shared::new(config, info)?) })
    }

    /// The same with the voices that a server lists, where the configuration names none. A server that does not answer
    /// lists none.
    pub async fn with_listed_voices(self) -> Self {
        let config = &self.shared.config;
        if config.task != Task::Tts || !config.voices.is_empty() {
            return self;
        }
        for url in self.shared.upstreams.urls() {
            let Some(voices) = self.shared.listed_voices(url).await.filter(|voices| !voices.is_empty())
            else {
                continue;
            };
            let info = info(config, &voices);
            let shared = Shared {
                config: config.clone(),
                profile: Arc::new(remote::profile(&config.name, info)),
                upstreams: Arc::clone(&self.shared.upstreams),
                http: self.shared.http.clone(),
            };
            return Self { shared: Arc::new(shared) };
        }
        tracing::warn!(model = config.name, "no server of the remote model lists voices; set its voices");
        self
    }
}

impl RemoteClient {
    /// The engine of this model, with the limits of `base`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `base` is invalid.
    pub fn into_engine(self, base: EngineCoreConfig) -> Result<Engine, EngineError> {
        let (model, limit) = (self.shared.config.name.clone(), self.shared.config.max_concurrent);
        let config = EngineCoreConfig { model, max_running_requests: limit, ..base };
        Engine::with_remote(config, Arc::new(self))
    }
}

impl RemoteModel for RemoteClient {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.shared.profile)
    }

    fn check(&self, input: &Input) -> Result<(), InputError> {
        match input {
            Input::Speak(input) => speech::check(&self.shared.config, input),
            Input::Listen(input) => transcription::check(&self.shared.config, input),
            Input::Converse(_) => {
                Err(InputError::other_task("is remote and holds no conversations", "model"))
            }
        }
    }

    fn start(&self, input: Arc<Input>) -> BoxFuture<'static, Result<RemoteOutput, RemoteError>> {
        let shared = Arc::clone(&self.shared);
        async move { shared.answer(&input).await }.boxed()
    }

    fn upstreams(&self) -> Vec<UpstreamStatus> {
        self.shared.upstreams.statuses()
    }
}

impl Shared {
    /// The servers of a checked configuration, none of which was asked.
    pub(crate) fn new(config: RemoteConfig, info: ModelInfo) -> Result<Self, ConfigError> {
        let urls: Vec<Url> =
            config.base_urls.iter().map(|url| config::parse(url)).collect::<Result<_, _>>()?;
        let http = http_client(&config, &urls)?;
        let profile = Arc::new(remote::profile(&config.name, info));
        let upstreams = Upstreams::new(&config.name, urls, config.breaker_failures, config.breaker_pause);
        Ok(Self { config, profile, upstreams: Arc::new(upstreams), http })
    }

    /// Asks one server after the other until an answer begins.
    async fn answer(self: &Arc<Self>, input: &Input) -> Result<RemoteOutput, RemoteError> {
        match input {
            Input::Speak(input) => {
                let body = Arc::new(speech::Body::new(self, input));
                let begin = |url| {
                    let (shared, body) = (Arc::clone(self), Arc::clone(&body));
                    async move { speech::begin(&shared, &url, &body).await }
                };
                let (answer, attempt) = self.tried(begin).await?;
                Ok(answer.stream(Arc::clone(self), attempt))
            }
            Input::Listen(input) => {
                let body = Arc::new(transcription::Body::new(self, input).await?);
                let begin = |url| {
                    let (shared, body) = (Arc::clone(self), Arc::clone(&body));
                    async move { transcription::begin(&shared, &url, &body).await }
                };
                let (output, attempt) = self.tried(begin).await?;
                attempt.end(Outcome::Answered);
                Ok(output)
            }
            Input::Converse(_) => Err(RemoteError::Refused("a conversation is not supported".to_owned())),
        }
    }

    /// What `begin` gets of a server, and the request there; asks one server after the other.
    pub(crate) async fn tried<T, F>(
        self: &Arc<Self>,
        begin: impl Fn(Url) -> F,
    ) -> Result<(T, Attempt), RemoteError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let (mut tried, mut pause) = (Vec::new(), FIRST_PAUSE);
        let mut last = None;
        for retry in 0..=self.config.retries {
            if retry > 0 {
                metrics::count_upstream_retry(&self.config.name);
            }
            let attempt = match self.upstreams.pick(&tried) {
                Ok(attempt) => attempt,
                Err(wait) => return Err(last.unwrap_or_else(|| self.resting(wait))),
            };
            let (index, url) = (attempt.index, attempt.url().clone());
            let (model, limit) = (&self.config.name, self.config.first_byte_timeout);
            let begun = tokio::time::timeout(limit, begin(url.clone())).await.unwrap_or_else(|_| {
                Err(Fault::failed(model, format!("sent nothing for {} s", limit.as_secs())))
            });
            let fault = match begun {
                Ok(answer) => return Ok((answer, attempt)),
                Err(fault) => fault,
            };
            attempt.end(fault.outcome);
            tracing::warn!(model, upstream = %url, reason = fault.reason, "a server gives no answer");
            let Some(asked_pause) = fault.retry else { return Err(fault.error) };
            last = Some(fault.error);
            tried.push(index);
            if !self.upstreams.has_other(&tried) {
                // All that may be asked were: the next round comes after a pause.
                tried.clear();
                let pause_now = asked_pause.max(pause);
                if pause_now > MAX_PAUSE || retry == self.config.retries {
                    break;
                }
                tokio::time::sleep(pause_now).await;
                pause *= 2;
            }
        }
        Err(last.unwrap_or_else(|| self.resting(FIRST_PAUSE)))
    }

    /// No server is asked for a while.
    fn resting(&self, wait: Duration) -> RemoteError {
        let (model, seconds) = (&self.config.name, wait.as_secs_f64().ceil().max(1.0));
        let message =
            format!("the servers of model '{model}' failed; they are asked again in {seconds:.0} s");
        RemoteError::Unavailable { message, retry_after: wait.max(Duration::from_secs(1)) }
    }

    async fn listed_voices(&self, base: &Url) -> Option<Vec<String>> {
        let mut url = join(base, "audio/voices");
        url.query_pairs_mut().append_pair("model", &self.config.model);
        let request = self.keyed(self.http.get(url)).timeout(VOICES_TIMEOUT);
        let response = request.send().await.ok().filter(|response| response.status().is_success())?;
        let body = answer::read_some(response, MAX_VOICES_BYTES).await.ok()?;
        let listed: ListedVoices = serde_json::from_slice(&body).ok()?;
        let name = |voice| match voice {
            ListedVoice::Name(name) | ListedVoice::Object { id: name } => name,
        };
        Some(listed.voices.into_iter().map(name).collect())
    }
}

/// `GET /v1/audio/voices`: names (vLLM-Omni), or objects with an id (Izwi).
#[derive(Deserialize)]
struct ListedVoices {
    voices: Vec<ListedVoice>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ListedVoice {
    Name(String),
    Object { id: String },
}

/// Where Ollama and LM Studio serve language models on their machine.
pub const LOCAL_LLMS: [&str; 2] = ["http://127.0.0.1:11434/v1", "http://127.0.0.1:1234/v1"];

/// The models that a server lists to who has this key; `None` if it does not answer.
pub async fn listed_models(base_url: &str, key: Option<&Secret>) -> Option<Vec<String>> {
    let config = RemoteConfig::new("listed", Task::Chat, vec![base_url.to_owned()], "any");
    let url = config::parse(base_url).ok()?;
    let http = http_client(&config, std::slice::from_ref(&url)).ok()?;
    let request = http.get(join(&url, "models")).timeout(VOICES_TIMEOUT);
    let request = match key {
        Some(key) => request.bearer_auth(key.reveal()),
        None => request,
    };
    let body = answer::read_some(request.send().await.ok()?, MAX_VOICES_BYTES).await.ok()?;
    let listed: ListedModels = serde_json::from_slice(&body).ok()?;
    Some(listed.data.into_iter().map(|model| model.id).collect())
}

/// `GET /v1/models`.
#[derive(Deserialize)]
struct ListedModels {
    data: Vec<ListedModel>,
}

#[derive(Deserialize)]
struct ListedModel {
    id: String,
}

/// A client of servers of this network that speak HTTP without TLS.
///
/// # Errors
/// The system gives it no resources.
pub fn plain_client() -> Result<Client, reqwest::Error> {
    builder().tls_certs_only(std::iter::empty()).no_proxy().build()
}

fn builder() -> ClientBuilder {
    // The first provider of the process stays; any works.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A key and a text go to the named servers alone.
    Client::builder().user_agent(concat!("izwi/", env!("CARGO_PKG_VERSION"))).redirect(Policy::none())
}

fn http_client(config: &RemoteConfig, urls: &[Url]) -> Result<Client, ConfigError> {
    let mut builder = builder().connect_timeout(config.connect_timeout);
    if urls.iter().all(|url| url.scheme() == "http") {
        // No certificates of the system are needed.
        builder = builder.tls_certs_only(std::iter::empty());
    }
    if urls.iter().all(is_loopback) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        let message =
            format!("https cannot be used ({error}); install the system's CA certificates, or use http");
        ConfigError { field: "base_url", message }
    })
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// What is known of a model without asking for it.
fn info(config: &RemoteConfig, voices: &[String]) -> ModelInfo {
    let speaks = config.task == Task::Tts;
    let voice = |id: &String| Voice {
        id: id.clone(),
        language: String::new(),
        gender: None,
        description: "voice of a remote model".to_owned(),
    };
    ModelInfo {
        sample_rate_hz: if speaks { config.sample_rate_hz } else { INPUT_RATE_HZ },
        input_sample_rate_hz: INPUT_RATE_HZ,
        tasks: vec![config.task],
        voices: voices.iter().map(voice).collect(),
        speed_range: speaks.then_some(SPEED),
        takes_instructions: speaks,
        takes_keywords: false,
        writes_figures: true,
        detects_language: false,
        takes_prompt: !speaks,
        languages: config.languages.clone(),
        translates: false,
        clones_voices: false,
        appends_text: false,
        chunks_ms: Vec::new(),
        live_windows: false,
        times_words: false,
        takes_phonemes: false,
        aligns_text: false,
        calls_tools: false,
        transcriber: None,
        sampling: SamplingParams::GREEDY,
        weight_bytes: 0,
        state_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_below_the_base_url() {
        for base in ["http://gpu:8091/v1", "http://gpu:8091/v1/"] {
            let url = join(&Url::parse(base).unwrap(), "audio/speech");
            assert_eq!(url.as_str(), "http://gpu:8091/v1/audio/speech");
        }
    }

    #[test]
    fn loopback_needs_no_proxy() {
        for (url, expected) in [
            ("http://127.0.0.1:1/v1", true),
            ("http://[::1]:1/v1", true),
            ("http://localhost/v1", true),
            ("http://gpu/v1", false),
            ("https://10.0.0.1/v1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn an_https_client_is_built_where_the_system_has_certificates() {
        let config = RemoteConfig::new("far", Task::Tts, vec!["https://gpu/v1".to_owned()], "m");
        match RemoteClient::new(config) {
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains("CA certificates"), "{error}"),
        }
    }
}
