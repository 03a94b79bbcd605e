//! The server under test.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use izwi_core::engine::executor::build_native;
use izwi_core::engine::executor::simulated::{Script, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_dialects::Wyoming;
use izwi_hub::VoiceStore;
use izwi_server::{Listeners, Recorder, Registry, RegistryConfig, ServerConfig, Slot, TcpService, serve};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::recording::Form;
use crate::session::Session;
use crate::{eventually, guarded};

/// Settings of a test server. Admission is off: it compares measured durations with deadlines, and a busy machine must not
/// fail a test. Its own tests, and those that turn it on, use a simulated clock or a gate.
#[derive(Debug)]
pub struct Setup {
    /// The simulated model.
    pub model: SimulatedModel,
    /// The engine's settings.
    pub engine: EngineCoreConfig,
    /// The server's settings.
    pub server: ServerConfig,
    /// Folder of saved voices.
    voices: Option<TempDir>,
}

impl Setup {
    /// A TTS model with one unit per sentence and a hundred samples per character. `name` labels its metrics.
    pub fn units(name: &str) -> Self {
        Self::with(
            name,
            SimulatedModel { autoregressive: false, samples_per_token: 100, ..Default::default() },
        )
    }

    /// An autoregressive TTS model, 80 ms per token.
    pub fn tokens(name: &str) -> Self {
        Self::with(name, SimulatedModel::default())
    }

    /// An autoregressive TTS model that speaks text as it arrives, 80 ms for each byte of a text.
    pub fn reader(name: &str) -> Self {
        Self::with(name, SimulatedModel { appends_text: true, ..Default::default() })
    }

    /// An ASR model: one segment of one word per started second. It is the default ASR model of a server whose default
    /// TTS model failed to load.
    pub fn listener(name: &str) -> Self {
        let model = SimulatedModel { transcribes: true, sample_rate: 16_000, ..Default::default() };
        Self::with(name, model)
    }

    /// An ASR model without figures, which writes these words of each second in turn.
    pub fn listener_of(name: &str, says: &'static [&'static str]) -> Self {
        let model = SimulatedModel { transcribes: true, sample_rate: 16_000, says, ..Default::default() };
        Self::with(name, model)
    }

    /// A chat and TTS model, autoregressive, 80 ms per frame.
    pub fn converser(name: &str) -> Self {
        Self::with(name, SimulatedModel { chats: true, ..Default::default() })
    }

    fn with(name: &str, model: SimulatedModel) -> Self {
        let engine = EngineCoreConfig {
            model: name.to_owned(),
            num_threads: 2,
            admission: false,
            ..Default::default()
        };
        Self { model, engine, server: ServerConfig::default(), voices: None }
    }

    /// A TTS model with one unit per sentence that clones voices, on a server that saves voices. Its output depends on
    /// every request option.
    pub fn cloner(name: &str) -> Result<Self> {
        let setup = Self::units(name);
        let model = SimulatedModel { clones_voices: true, ..setup.model };
        let voices = tempfile::tempdir()?;
        let server = ServerConfig { voices: Some(VoiceStore::at(voices.path())), ..setup.server };
        Ok(Self { model, server, voices: Some(voices), ..setup })
    }

    /// Sets the script that runs before each step.
    #[must_use]
    pub fn script(mut self, script: Script) -> Self {
        self.model.script = Some(script);
        self
    }

    /// Changes the server's settings.
    #[must_use]
    pub fn server(mut self, change: impl FnOnce(&mut ServerConfig)) -> Self {
        change(&mut self.server);
        self
    }

    /// Changes the engine's settings.
    #[must_use]
    pub fn engine(mut self, change: impl FnOnce(&mut EngineCoreConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Starts the server and waits until its engine is warm.
    pub async fn start(self) -> Result<TestServer> {
        let model = self.engine.model.clone();
        let (listens, memory) = (self.model.transcribes, self.engine.memory.clone());
        let executor = SimulatedExecutor::new(&self.engine, self.model);
        let recorder = Recorder::install()?;
        let engine = Engine::with_executor(self.engine, Box::new(executor))?;
        engine.ready().await?;
        let registry_config = if listens {
            RegistryConfig { default_asr: Some(model.clone()), ..RegistryConfig::new("no-speaker") }
        } else {
            RegistryConfig::new(&model)
        };
        let registry_config = RegistryConfig { memory, ..registry_config };
        let registry = Registry::new(registry_config);
        if listens {
            registry.set("no-speaker", Slot::Failed("this test has none".to_owned()));
        }
        registry.set(&model, Slot::Ready(engine.clone()));
        let server = TestServer::listen(self.server, registry, recorder).await?;
        Ok(TestServer { engine: Some(engine), folder: self.voices, ..server })
    }
}

/// A server on its own port.
#[derive(Debug)]
pub struct TestServer {
    /// Its address.
    pub address: SocketAddr,
    /// Its address of the Wyoming protocol.
    pub wyoming: SocketAddr,
    /// Its models.
    pub registry: Registry,
    engine: Option<Engine>,
    /// Its files: saved voices and model weights.
    folder: Option<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), izwi_server::ServeError>>,
}

impl TestServer {
    /// Starts a server over any registry.
    pub async fn listen(config: ServerConfig, registry: Registry, recorder: Recorder) -> Result<Self> {
        provide_tls();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let events = TcpListener::bind("127.0.0.1:0").await?;
        let wyoming = events.local_addr()?;
        let service: Arc<dyn TcpService> = Arc::new(Wyoming { zeroconf: false });
        let services = vec![(events, service)];
        let listeners = Listeners { http: listener, dialects: izwi_dialects::all(), services };
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            // Dropping the sender at the end of a test stops the server.
            let _ = stopped.await;
        };
        let running = tokio::spawn(serve(listeners, config, registry.clone(), recorder, shutdown));
        Ok(Self { address, wyoming, registry, engine: None, folder: None, stop: Some(stop), running })
    }

    /// Starts a server over the real executor and waits until its engine is warm. `files`, a model folder, is copied into
    /// the model store of the test. Admission is off, as in [`Setup`].
    pub async fn with_weights(engine: EngineCoreConfig, files: &Path) -> Result<Self> {
        Self::with_replicas(engine, files, 1).await
    }

    /// As [`Self::with_weights`], with several replicas of the model that do not share a device.
    pub async fn with_replicas(engine: EngineCoreConfig, files: &Path, count: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let models = folder.path().join("models");
        copy(files, &models.join(&engine.model))?;
        let recorder = Recorder::install()?;
        let config = EngineCoreConfig {
            home: Some(folder.path().to_path_buf()),
            models_dir: Some(models),
            num_threads: 2,
            admission: false,
            ..engine
        };
        let model = config.model.clone();
        let engine = match count {
            1 => Engine::new(config)?,
            _ => {
                let replica = |_| anyhow::Ok((build_native(&config)?, DeviceArbiter::new()));
                let replicas = (0..count).map(replica).collect::<Result<_>>()?;
                Engine::with_replicas(config, replicas)?
            }
        };
        engine.ready().await?;
        let registry = Registry::new(RegistryConfig::new(&model));
        registry.set(&model, Slot::Ready(engine.clone()));
        let voices = Some(VoiceStore::at(folder.path()));
        let server = ServerConfig { voices, ..ServerConfig::default() };
        let server = Self::listen(server, registry, recorder).await?;
        Ok(Self { engine: Some(engine), folder: Some(folder), ..server })
    }

    /// The engine behind it.
    pub fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().context("this server has no engine")
    }

    /// The folder of saved voices.
    pub fn voices(&self) -> Result<&Path> {
        Ok(self.folder.as_ref().context("this server saves no voices")?.path())
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Posts a JSON body to `/v1/audio/speech`.
    pub async fn speech(&self, body: &Value) -> Result<reqwest::Response> {
        self.post("/v1/audio/speech", body).await
    }

    /// Posts a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<reqwest::Response> {
        let request = reqwest::Client::new().post(self.url(path)).json(body);
        Ok(guarded(request.send()).await??)
    }

    /// Posts a form.
    pub async fn post_form(&self, path: &str, form: Form) -> Result<reqwest::Response> {
        let request = reqwest::Client::new().post(self.url(path));
        let request = request.header("content-type", Form::content_type()).body(form.finish());
        Ok(guarded(request.send()).await??)
    }

    /// Sends DELETE.
    pub async fn delete(&self, path: &str) -> Result<reqwest::Response> {
        Ok(guarded(reqwest::Client::new().delete(self.url(path)).send()).await??)
    }

    /// Fetches a path.
    pub async fn get(&self, path: &str) -> Result<reqwest::Response> {
        Ok(guarded(reqwest::get(self.url(path))).await??)
    }

    /// Fetches a page as text.
    pub async fn page(&self, path: &str) -> Result<String> {
        Ok(self.get(path).await?.text().await?)
    }

    /// Sum of a metric's series that carry all of `labels`, each as `name="value"`; 0 where there is none.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let page = self.page("/metrics").await?;
        let belongs = |line: &&str| {
            let series = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']));
            series.is_some_and(|rest| labels.iter().all(|label| rest.contains(label)))
        };
        Ok(page.lines().filter(belongs).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Opens a session on the WebSocket.
    pub async fn session(&self) -> Result<Session> {
        Session::open(&format!("ws://{}/v1/audio/speech/stream", self.address)).await
    }

    /// Opens a conversation on the WebSocket.
    pub async fn chat(&self) -> Result<Session> {
        Session::open(&format!("ws://{}/v1/audio/chat/stream", self.address)).await
    }

    /// Starts the shutdown of the server.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended.
    pub async fn ended(self) -> Result<()> {
        let Self { running, stop, .. } = self;
        drop(stop);
        Ok(guarded(running).await???)
    }

    /// Waits until the engine is idle and checks that all blocks are free.
    pub async fn assert_balanced(&self) -> Result<()> {
        let engine = self.engine()?;
        eventually("the engine to be idle", || async {
            let status = engine.status();
            Ok(status.running + status.pending == 0 && status.kv.used_blocks == 0)
        })
        .await
        .with_context(|| format!("{:?}", engine.status()))?;
        let books = engine.check_invariants().await?;
        anyhow::ensure!(books.is_ok(), "{books:?}");
        anyhow::ensure!(engine.kv_cache_stats().sequences == 0, "a block table is left");
        Ok(())
    }

    /// Waits until no session is open.
    pub async fn assert_no_sessions(&self) -> Result<()> {
        eventually("the sessions to end", || async {
            let health: Value = self.get("/health").await?.json().await?;
            Ok(health["sessions_open"] == 0)
        })
        .await
    }
}

/// Gives the HTTP clients of this process the TLS that remote models have: without one, none can be built.
pub fn provide_tls() {
    // The first provider of the process stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let name = entry?.file_name();
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() { copy(&from, &to)? } else { std::fs::copy(&from, &to).map(drop)? }
    }
    Ok(())
}
