//! The state that all handlers share: configuration, models, limits of open requests, and whether the server drains.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use izwi_audio::vad::VadModel;
use izwi_core::engine::{MemoryBudget, Task};
use izwi_hub::{LexiconStore, VoiceStore};
use izwi_types::{TextNote, TextNotes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::{AccessRules, ApiKey, ClientSecrets, KeyThrottle, Tickets};
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::ignored::IgnoredLog;
use crate::jobs::Jobs;
use crate::metrics::Recorder;
use crate::pulls::Pulls;
use crate::record;
use crate::registry::{Lease, Registry};

/// Handle to the shared state. Clones address the same server.
#[derive(Debug, Clone)]
pub struct AppState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ServerConfig,
    access: AccessRules,
    api_key: Option<ApiKey>,
    key_throttle: KeyThrottle,
    tickets: Tickets,
    client_secrets: ClientSecrets,
    registry: Registry,
    recorder: Recorder,
    requests: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    detached: Arc<Semaphore>,
    /// Number of sessions, with and without a connection.
    running_sessions: watch::Sender<usize>,
    ignored_log: IgnoredLog,
    voices: Option<VoiceStore>,
    pulls: Pulls,
    jobs: Arc<Jobs>,
    vad: OnceLock<VadModel>,
    draining: watch::Sender<bool>,
    started_at: Instant,
    started_unix_s: u64,
}

impl AppState {
    /// State of a server that is bound to `bound`; `None` if the address is unknown.
    pub fn new(
        config: ServerConfig,
        registry: Registry,
        recorder: Recorder,
        bound: Option<std::net::SocketAddr>,
    ) -> Self {
        if let Some(store) = config.store.clone() {
            registry.watch(store);
        }
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let inner = Inner {
            access: AccessRules::new(&config, bound),
            api_key: config.api_key.as_deref().map(ApiKey::new),
            key_throttle: KeyThrottle::default(),
            tickets: Tickets::default(),
            client_secrets: ClientSecrets::default(),
            requests: Arc::new(Semaphore::new(config.max_requests)),
            sessions: Arc::new(Semaphore::new(config.max_sessions)),
            detached: Arc::new(Semaphore::new(config.max_sessions)),
            running_sessions: watch::Sender::new(0),
            ignored_log: IgnoredLog::default(),
            voices: config.voices.clone(),
            pulls: Pulls::new(config.store.clone()),
            jobs: Arc::new(Jobs::new(&config)),
            vad: OnceLock::new(),
            config,
            registry,
            recorder,
            draining: watch::Sender::new(false),
            started_at: Instant::now(),
            started_unix_s: unix.as_secs(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The configuration of the server.
    pub fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    pub(crate) fn access(&self) -> &AccessRules {
        &self.inner.access
    }

    /// The key that requests must carry, if one is set.
    pub(crate) fn api_key(&self) -> Option<&ApiKey> {
        self.inner.api_key.as_ref()
    }

    pub(crate) fn key_throttle(&self) -> &KeyThrottle {
        &self.inner.key_throttle
    }

    /// The tickets for WebSockets.
    pub(crate) fn tickets(&self) -> &Tickets {
        &self.inner.tickets
    }

    /// The short-lived keys for browsers.
    pub fn client_secrets(&self) -> &ClientSecrets {
        &self.inner.client_secrets
    }

    /// The models.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Leases the engine of a model with `task`, loaded if necessary; of the default model without an id. Fails at once when
    /// the server drains.
    pub async fn lease(&self, model: Option<&str>, task: Task) -> Result<Lease, ApiError> {
        let lease = self.unless_draining(self.registry().lease(model, task)).await?;
        record::uses_model(&lease.profile().model);
        Ok(lease)
    }

    /// As [`Self::lease`], without loading the model.
    pub(crate) async fn lease_loaded(&self, model: Option<&str>, task: Task) -> Result<Lease, ApiError> {
        self.unless_draining(self.registry().lease_loaded(model, task)).await
    }

    /// Loads a model and waits until it takes requests. Fails at once when the server drains.
    pub(crate) async fn load(&self, model: &str) -> Result<(), ApiError> {
        self.unless_draining(self.registry().load_now(model)).await
    }

    /// Looks for models that were installed while the server runs.
    pub(crate) async fn discover_models(&self) {
        let registry = self.registry().clone();
        // A look that fails finds nothing.
        let _ = tokio::task::spawn_blocking(move || registry.discover()).await;
    }

    async fn unless_draining<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut draining = self.draining();
        tokio::select! {
            biased;
            done = work => done,
            // The sender lives as long as this state.
            _ = draining.wait_for(|draining| *draining) => Err(ApiError::Draining),
        }
    }

    /// The saved voices, if a folder is configured.
    pub fn voices(&self) -> Option<&VoiceStore> {
        self.inner.voices.as_ref()
    }

    /// The saved lexicons, if a folder is configured.
    pub(crate) fn lexicons(&self) -> Option<&LexiconStore> {
        self.config().lexicons.as_ref()
    }

    /// The model store, and the pulls from it.
    pub(crate) fn pulls(&self) -> &Pulls {
        &self.inner.pulls
    }

    /// The jobs.
    pub(crate) fn jobs(&self) -> &Arc<Jobs> {
        &self.inner.jobs
    }

    /// A model that speaks a language, if the store knows one. Reads the disk.
    pub(crate) fn speaker_of(&self, language: &str) -> Option<String> {
        let store = self.pulls().store().ok()?;
        store.speaker_of(language).map(|(name, _)| name.to_owned())
    }

    /// What a user is told of a text that `model` says otherwise than it is written. Reads the disk.
    pub fn notes_on_text(&self, model: &str, notes: &TextNotes) -> Vec<TextNote> {
        let remedy = |language: &str| match self.pulls().store() {
            Ok(store) => store.speaker_hint(language),
            Err(_) => "choose a model that does".to_owned(),
        };
        notes.sentences(model, remedy)
    }

    /// The detector of speech in live audio. Its weights may be pulled while the server runs.
    pub fn vad(&self) -> VadModel {
        if let Some(vad) = self.inner.vad.get() {
            return vad.clone();
        }
        let opened =
            self.inner.config.vad_weights.as_deref().map_or_else(|| Ok(VadModel::default()), VadModel::open);
        let vad = opened.unwrap_or_else(|error| {
            tracing::warn!(%error, "speech is detected without weights");
            VadModel::default()
        });
        if vad.is_small() { vad } else { self.inner.vad.get_or_init(|| vad).clone() }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.inner.recorder
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.inner.started_at.elapsed()
    }

    /// Seconds since 1970, from the time of the start.
    pub fn unix_s(&self) -> u64 {
        self.started_unix_s() + self.uptime().as_secs()
    }

    pub(crate) fn started_unix_s(&self) -> u64 {
        self.inner.started_unix_s
    }

    /// Open requests to `/v1/*`.
    pub(crate) fn requests_open(&self) -> usize {
        self.inner.config.max_requests - self.inner.requests.available_permits()
    }

    /// Open WebSocket sessions.
    pub(crate) fn sessions_open(&self) -> usize {
        self.inner.config.max_sessions - self.inner.sessions.available_permits()
    }

    /// The ignored fields that were logged.
    pub fn ignored_log(&self) -> &IgnoredLog {
        &self.inner.ignored_log
    }

    /// A permit for one more request.
    pub(crate) fn admit_request(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.inner.config.max_requests;
        Arc::clone(&self.inner.requests)
            .try_acquire_owned()
            .map_err(|_| ApiError::overloaded(format!("{limit} requests are open already; try again later")))
    }

    /// A permit for one more session.
    pub fn admit_session(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.inner.config.max_sessions;
        Arc::clone(&self.inner.sessions)
            .try_acquire_owned()
            .map_err(|_| ApiError::overloaded(format!("{limit} sessions are open already; try again later")))
    }

    /// A permit for one more session without a connection; `None` beyond the limit of sessions.
    pub(crate) fn admit_detached(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.inner.detached).try_acquire_owned().ok()
    }

    /// Counts a session, with or without a connection, until it is dropped.
    pub(crate) fn count_session(&self) -> RunningSession {
        self.inner.running_sessions.send_modify(|count| *count += 1);
        RunningSession(self.clone())
    }

    /// The memory that models and recordings share.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        self.inner.registry.memory()
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.inner.draining.borrow()
    }

    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.inner.draining.subscribe()
    }

    /// Turns readiness red and refuses new requests.
    pub(crate) fn begin_drain(&self) {
        self.inner.draining.send_replace(true);
    }

    /// Waits until the engines have finished their requests, and every HTTP request and session has ended.
    pub(crate) async fn drained(&self) {
        let engines = self.inner.registry.engines();
        // An engine that has ended already is drained.
        let engines =
            futures::future::join_all(engines.iter().map(|engine| async { engine.drain().await.ok() }));
        let all = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
        let requests = self.inner.requests.acquire_many(all(self.inner.config.max_requests));
        let mut running = self.inner.running_sessions.subscribe();
        // The semaphores are never closed and the sender lives as long as this state, so that none of it can fail.
        let sessions = async {
            // Clients come back to the sessions meanwhile: their connections must find permits.
            drop(running.wait_for(|count| *count == 0).await);
            drop(self.inner.sessions.acquire_many(all(self.inner.config.max_sessions)).await);
        };
        let _ = tokio::join!(engines, async { drop(requests.await) }, sessions);
    }
}

/// A session that runs.
#[derive(Debug)]
pub(crate) struct RunningSession(AppState);

impl Drop for RunningSession {
    fn drop(&mut self) {
        self.0.inner.running_sessions.send_modify(|count| *count -= 1);
    }
}
