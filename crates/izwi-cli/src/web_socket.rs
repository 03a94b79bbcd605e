//! The server of this process or another one, for the commands that are its clients, and WebSockets to it.
//!
//! Sessions over sound have one implementation, the server's: a command starts it on a port of this machine that only it can use.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use izwi_core::engine::{Engine, EngineCoreConfig, RequestId, Task};
use izwi_hub::Store;
use izwi_remote::{RemoteClient, RemoteConfig, Secret};
use izwi_server::{Listeners, Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use reqwest::{RequestBuilder, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::running_server::RunningServer;
use crate::served::Served;
use crate::settings::Resolved;
use crate::{engine, failure, models};

/// How long a request may wait for a model that is pulled or loaded in this process; its client cancels it before.
const LOAD_TIMEOUT: Duration = Duration::from_secs(86_400);

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A longer answer is none of a server of models.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// The alias of the default model that speaks.
const DEFAULT_MODEL: &str = "tts-1";

/// A model that a server has loaded.
#[derive(Debug, Deserialize)]
struct Loaded {
    id: String,
    sample_rate: Option<u32>,
}

/// Where a server is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// `http://HOST:PORT`.
    url: String,
    key: Option<String>,
}

impl Place {
    /// A server that runs already.
    ///
    /// # Errors
    /// The URL is none of HTTP.
    pub(crate) fn of(url: &str, key: Option<String>) -> Result<Self> {
        let url = url.trim().trim_end_matches('/');
        if !url.starts_with("http://") {
            return Err(failure::usage(
                format!("--server '{url}' is no URL of a server"),
                "give one such as http://127.0.0.1:8080; this client speaks no TLS",
            ));
        }
        Ok(Self { url: url.to_owned(), key })
    }

    /// The server on the configured host and port, if one runs there.
    pub(crate) fn running(resolved: &Resolved) -> Option<Self> {
        let server = &resolved.settings.server;
        let running = RunningServer::at(server).and_then(|server| server.report().map(|_| server.url));
        Self::of(&running.ok()?, server.config.api_key.clone()).ok()
    }

    /// Starts a server of the configured and installed models in this process. They load when they are first used.
    ///
    /// # Errors
    /// As [`Self::serve`], or the settings name a model that does not exist.
    pub(crate) async fn of_models(resolved: &Resolved, may_pull: bool) -> Result<Self> {
        let settings = &resolved.settings;
        let config = engine::config(resolved);
        engine::start_threads(config.num_threads);
        let store = models::open(settings)?;
        let registry_config =
            RegistryConfig { load_timeout: LOAD_TIMEOUT, ..settings.server.registry(config.model.clone()) };
        let served = Served::new(settings, registry_config, config, &store, may_pull)?;
        let config = ServerConfig {
            voices: Some(store.voices().clone()),
            speakers: settings.server.saved_speakers.then(|| store.speakers().clone()),
            vad_weights: Some(store.vad_weights()),
            store: Some(store),
            ..settings.server.config.clone()
        };
        Self::serve(served.into_registry(), config).await
    }

    /// Starts a server of `engine`, and of models of other tasks, in this process.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub(crate) async fn start(
        engine: Engine,
        others: impl IntoIterator<Item = Engine>,
        store: &Store,
    ) -> Result<Self> {
        let model = engine.profile().model.clone();
        let registry_config =
            RegistryConfig { default_asr: Some(model.clone()), ..RegistryConfig::new(model.clone()) };
        let registry = Registry::new(registry_config);
        registry.set(model, Slot::Ready(engine));
        for other in others {
            registry.set(other.profile().model.clone(), Slot::Ready(other));
        }
        let (vad_weights, speakers) = (Some(store.vad_weights()), Some(store.speakers().clone()));
        Self::serve(registry, ServerConfig { vad_weights, speakers, ..ServerConfig::default() }).await
    }

    /// Serves the models of `registry` in this process, on a free port, with a key that nobody else knows. It ends with the
    /// runtime.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) async fn serve(registry: Registry, config: ServerConfig) -> Result<Self> {
        let http = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await;
        let http = http.context("cannot listen on 127.0.0.1")?;
        let url = format!("http://{}", http.local_addr().context("the listener has no address")?);
        let key = RequestId::random().as_str().to_owned();
        let config = ServerConfig { api_key: Some(key.clone()), ..config };
        let recorder = Recorder::install()?;
        let listeners = Listeners { http, dialects: izwi_dialects::all(), services: Vec::new() };
        tokio::spawn(izwi_server::serve(listeners, config, registry, recorder, std::future::pending()));
        Ok(Self { url, key: Some(key) })
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Its key, where it has one.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The answer to a request that is sent with the key.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or answers something else.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let lost = || format!("no answer of the server at {}", self.url);
        let mut answer = request.send().await.with_context(lost)?;
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await.with_context(lost)? {
            body.extend_from_slice(&bytes);
            ensure!(body.len() <= MAX_ANSWER_BYTES, "the server at {} answers too much", self.url);
        }
        if answer.status().is_success() {
            return serde_json::from_slice(&body).with_context(lost);
        }
        let told: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let told = told.as_ref().and_then(|told| told["error"]["message"].as_str()).unwrap_or_default();
        bail!("the server at {} answers {}: {told}", self.url, answer.status())
    }

    /// The engine of a model that speaks at the server, with the limits of `config`: the default one unless `model` names
    /// another. The server loads it first.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the model.
    pub(crate) async fn speaker(&self, model: Option<&str>, config: EngineCoreConfig) -> Result<Engine> {
        let mut url = Url::parse(&self.url("/v1/models")).context("the server has no URL")?;
        if let Ok(mut path) = url.path_segments_mut() {
            path.extend([model.unwrap_or(DEFAULT_MODEL), "load"]);
        }
        let client = izwi_remote::plain_client().context("cannot make a client of HTTP")?;
        let loaded: Loaded = self.answer(client.post(url)).await?;
        let mut remote = RemoteConfig::new(&loaded.id, Task::Tts, vec![self.url("/v1")], &loaded.id);
        remote.api_key = self.key.clone().map(Secret::new);
        remote.sample_rate_hz = loaded.sample_rate.unwrap_or(remote.sample_rate_hz);
        let client = RemoteClient::new(remote).context("the server cannot be used")?;
        Ok(client.with_listed_voices().await.into_engine(config)?)
    }

    /// Opens a WebSocket to `path`.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub(crate) async fn connect(&self, path: &str) -> Result<Socket> {
        let url = format!("{}{path}", self.url.replacen("http", "ws", 1));
        let mut request = url.into_client_request().map_err(|error| self.unreachable(&error))?;
        if let Some(key) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            request.headers_mut().insert("authorization", value.context("the API key is no header value")?);
        }
        let connected = tokio_tungstenite::connect_async(request).await;
        connected.map(|(socket, _)| socket).map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> anyhow::Error {
        failure::with_help(
            format!("no session with the server at {}: {error}", self.url),
            "check that it runs there and IZWI_API_KEY is its key, or leave out --server",
        )
    }
}
