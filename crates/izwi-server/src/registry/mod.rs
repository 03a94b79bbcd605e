//! The models a server offers, and leases of their engines.
//!
//! A model loads on first use, once for all requests that wait for it. An unused model is unloaded after a while, or when
//! another needs its memory: [`residency`] decides that. A model whose engine failed is loaded again after a pause, as
//! [`supervision`] says. The registry knows engines as handles; the loader makes them.

mod aliases;
mod lease;
mod parts;
mod residency;
mod supervision;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use izwi_core::engine::leases::Engines;
use izwi_core::engine::{Engine, MemoryBudget, Task, metrics};
use izwi_hub::{ModelStatus, Store};
use izwi_types::{excerpt, suggest};
use tokio::sync::watch;

pub use self::aliases::BLENDING;
pub use self::aliases::{ASR_ALIASES, TTS_ALIASES};
pub use self::lease::Lease;
use self::residency::{Decision, Eviction, Residency, Restart};
pub(crate) use self::residency::{Entry, Unready};
pub use self::residency::{Offer, Slot};
pub use self::supervision::RestartPolicy;
use crate::error::ApiError;
use crate::metrics as server_metrics;

/// Loads the model of an id. Called on a blocking thread of the runtime; may take minutes.
pub type Loader = Arc<dyn Fn(&str) -> Result<Engine, String> + Send + Sync>;

/// Settings of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// TTS model of requests that name none. It is loaded at the start and never unloaded.
    pub default_tts: String,
    /// ASR model of requests that name an alias. It is loaded at the start and never unloaded. `None` for none.
    pub default_asr: Option<String>,
    /// How long a request may wait for its model to load.
    pub load_timeout: Duration,
    /// How long an unused model stays loaded; `None` for ever.
    pub ttl: Option<Duration>,
    /// As `ttl`, of the default models.
    pub default_ttl: Option<Duration>,
    /// What all loaded models, and the recordings of requests and sessions, may take; the engines should have the same.
    pub memory: MemoryBudget,
    /// The most memory that the process may take, by the machine or by its cgroup; `None` if unknown. It bounds the
    /// transcriptions at a time.
    pub process_memory_bytes: Option<u64>,
    /// How a model whose engine failed is loaded again.
    pub restart: RestartPolicy,
}

impl RegistryConfig {
    /// Defaults with the TTS model `default_tts` and no ASR model.
    pub fn new(default_tts: impl Into<String>) -> Self {
        Self {
            default_tts: default_tts.into(),
            default_asr: None,
            load_timeout: Duration::from_secs(30),
            ttl: Some(Duration::from_secs(600)),
            default_ttl: None,
            memory: MemoryBudget::default(),
            process_memory_bytes: None,
            restart: RestartPolicy::default(),
        }
    }
}

/// The models by id. Clones address the same registry.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    config: RegistryConfig,
    loader: Option<Loader>,
    residency: watch::Sender<Residency>,
    /// Where models may be installed while the server runs.
    store: OnceLock<Store>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry without a loader: its default models count as loading until they are [`set`](Self::set).
    pub fn new(config: RegistryConfig) -> Self {
        Self::build(config, Vec::new(), None, Slot::Loading)
    }

    /// A registry of the default models and `offers`, which `loader` loads on first use.
    pub fn with_loader(config: RegistryConfig, offers: Vec<Offer>, loader: Loader) -> Self {
        Self::build(config, offers, Some(loader), Slot::Unloaded)
    }

    fn build(config: RegistryConfig, offers: Vec<Offer>, loader: Option<Loader>, first: Slot) -> Self {
        let now = Instant::now();
        let mut residency = Residency::new(&config, loader.is_some());
        for (id, _) in defaults(&config) {
            residency.set(id.to_owned(), first.clone(), now);
        }
        for offer in offers {
            residency.offer(offer, now);
        }
        for (id, _) in defaults(&config) {
            residency.pin(id);
        }
        let (residency, store) = (watch::Sender::new(residency), OnceLock::new());
        let registry = Self { inner: Arc::new(Inner { config, loader, residency, store }) };
        for id in registry.inner.residency.borrow().entries().keys() {
            server_metrics::set_model_loaded(id, false);
        }
        registry
    }

    /// The memory that its models share with recordings.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.inner.config.memory
    }

    /// Leases of its engines for models that are composed of others; they do not keep the registry.
    pub fn engines_for_parts(&self) -> Arc<dyn Engines> {
        Arc::new(parts::Parts(Arc::downgrade(&self.inner)))
    }

    /// Starts to load the default models. Must be called within a tokio runtime.
    pub fn load_defaults(&self) {
        for (id, _) in defaults(&self.inner.config) {
            self.load_default(id);
        }
    }

    fn load_default(&self, id: &str) {
        match self.decide(id, true) {
            // Only the load is wanted, not a lease.
            Decision::Granted(_) => self.release(id),
            Decision::Refused(error @ ApiError::NoRoom { .. }) => {
                tracing::error!(model = id, reason = %error, "default model cannot be loaded");
                self.set(id, Slot::Failed(error.to_string()));
            }
            Decision::Refused(_) | Decision::Warming(_) | Decision::Wait | Decision::Load(_) => {}
        }
    }

    /// Replaces the state of a model.
    pub fn set(&self, id: impl Into<String>, slot: Slot) {
        let id = id.into();
        set_gauges(&id, &slot);
        self.inner.residency.send_modify(|residency| residency.set(id, slot, Instant::now()));
    }

    /// Id of the default TTS model.
    pub fn default_tts(&self) -> &str {
        &self.inner.config.default_tts
    }

    /// Id of the default ASR model.
    pub fn default_asr(&self) -> Option<&str> {
        self.inner.config.default_asr.as_deref()
    }

    /// All models and their states, by id.
    pub fn snapshot(&self) -> BTreeMap<String, Slot> {
        let entries = self.entries();
        entries.into_iter().map(|(id, entry)| (id, entry.slot)).collect()
    }

    /// Adds a model that can be loaded from now on. One that failed to load is tried again by its next request.
    fn offer(&self, offer: Offer) {
        self.inner.residency.send_modify(|residency| residency.offer(offer, Instant::now()));
    }

    /// Loads a model, and waits until it takes requests.
    pub(crate) async fn load_now(&self, id: &str) -> Result<(), ApiError> {
        self.acquire(id, true).await.map(drop)
    }

    /// Unloads a model that nothing uses, and waits until its memory is free. A default model stays unless it may rest.
    pub(crate) async fn unload_now(&self, id: &str) -> Result<(), ApiError> {
        let mut decided = Ok(None);
        self.inner.residency.send_if_modified(|residency| {
            decided = residency.unload(id, Instant::now());
            matches!(decided, Ok(Some(_)))
        });
        if let Some(eviction) = decided? {
            tracing::info!(model = id, "unloading a model on request");
            // In a task of its own: it ends also where the client leaves.
            let _ = tokio::spawn(self.clone().unload(eviction)).await;
        }
        Ok(())
    }

    /// Unloads a model that nothing uses, has `remove` remove its files, which may block, and offers it no longer. Requests for it
    /// wait meanwhile.
    ///
    /// # Errors
    /// It is a default model or in use, or `remove` failed: then it stays.
    pub(crate) async fn withdraw(
        &self,
        id: &str,
        remove: impl FnOnce() -> Result<(), ApiError> + Send + 'static,
    ) -> Result<(), ApiError> {
        self.unload_now(id).await?;
        let mut begun = Ok(());
        self.inner.residency.send_modify(|residency| begun = residency.begin_withdrawal(id, Instant::now()));
        begun?;
        let (registry, id) = (self.clone(), id.to_owned());
        // It ends also where the client leaves.
        let work = tokio::task::spawn_blocking(move || {
            let removed = remove();
            registry.inner.residency.send_modify(|residency| match removed {
                Ok(()) => residency.withdraw(&id),
                Err(_) => residency.finish_unload(&id, Instant::now()),
            });
            removed
        });
        work.await.unwrap_or(Err(ApiError::CutOff))
    }

    /// Unloads models that were not used for the TTL.
    pub fn expire(&self) {
        self.expire_at(Instant::now());
    }

    fn expire_at(&self, now: Instant) {
        let mut evictions = Vec::new();
        self.inner.residency.send_if_modified(|residency| {
            evictions = residency.expire(now);
            !evictions.is_empty()
        });
        for (id, engine) in evictions {
            tracing::info!(model = id, "unloading an unused model");
            tokio::spawn(self.clone().unload((id, engine)));
        }
    }

    /// All models, by id.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        self.inner.residency.borrow().entries().clone()
    }

    /// Engines that are loaded.
    pub(crate) fn engines(&self) -> Vec<Engine> {
        let engine = |entry: &Entry| match &entry.slot {
            Slot::Ready(engine) => Some(engine.clone()),
            _ => None,
        };
        self.inner.residency.borrow().entries().values().filter_map(engine).collect()
    }

    /// Refuses further requests and stops every engine.
    pub(crate) fn close(&self) {
        self.inner.residency.send_modify(Residency::close);
        for engine in self.engines() {
            engine.stop();
        }
    }

    /// Finds models that are installed in `store` later on, by this program or another. The first store stays.
    pub(crate) fn watch(&self, store: Store) {
        let _ = self.inner.store.set(store);
    }

    /// Offers the models that were installed since the last look at the store. Blocks on the disk.
    pub(crate) fn discover(&self) {
        let Some(store) = self.inner.store.get() else { return };
        let known = self.entries();
        for model in store.list().iter().filter(|model| !known.contains_key(&model.manifest.name)) {
            self.offer_if_installed(model);
        }
    }

    /// Offers the model of this name of `store`, if it is installed.
    pub(crate) fn offer_installed(&self, store: &Store, name: &str) {
        if let Ok(model) = store.status(name) {
            self.offer_if_installed(&model);
        }
    }

    fn offer_if_installed(&self, model: &ModelStatus<'_>) {
        if model.installed && !model.manifest.component {
            let (id, tasks) = (model.manifest.name.clone(), model.manifest.tasks.clone());
            self.offer(Offer { id, tasks, bytes: model.bytes });
        }
    }

    /// The model of this id, also if it was installed just now.
    fn model(&self, id: &str) -> Option<(String, Entry)> {
        let known = || self.inner.residency.borrow().entries().get(id).cloned();
        let entry = known().or_else(|| {
            self.offer_installed(self.inner.store.get()?, id);
            known()
        });
        entry.map(|entry| (id.to_owned(), entry))
    }

    /// The model that `id` or an alias names, with its own id.
    pub fn find(&self, id: &str) -> Result<(String, Entry), ApiError> {
        self.find_for(id, None)
    }

    /// As [`Self::find`], with a remedy for a request that needs `task`.
    fn find_for(&self, id: &str, task: Option<Task>) -> Result<(String, Entry), ApiError> {
        let not_found = |hint| Err(ApiError::ModelNotFound { id: excerpt(id), hint });
        if let Some(found) = self.model(id) {
            return Ok(found);
        }
        if self.inner.store.get().is_some_and(|store| store.manifest(id).is_ok()) {
            return not_found(format!("it is not installed; run `izwi pull {id}`"));
        }
        let Some(alias) = aliases::alias(id) else {
            return not_found(self.suggest(id, "models", task));
        };
        let default = match alias.task {
            Task::Asr => self.default_asr(),
            Task::Tts | Task::Chat | Task::Diarize | Task::Turn => Some(self.default_tts()),
        };
        let mut models = alias.models.iter().map(String::as_str).chain(default);
        match models.find_map(|model| self.model(model)) {
            Some(found) => Ok(found),
            None if default.is_none() => not_found("this server has no ASR model; set asr_model".to_owned()),
            None => not_found(self.suggest(id, "models", task)),
        }
    }

    /// Whether a model that is installed has the task.
    pub fn has(&self, task: Task) -> bool {
        self.inner.residency.borrow().entries().values().any(|entry| entry.tasks.contains(&task))
    }

    /// Whether the default model stands for `id`, the name of another one.
    pub fn is_stand_in(&self, id: &str) -> bool {
        aliases::alias(id).filter(|alias| !alias.models.is_empty()).is_some_and(|alias| {
            self.find(id).is_ok_and(|(found, _)| found != id && !alias.models.contains(&found))
        })
    }

    /// The remedy for the name `wanted`: models with `task`. `what` is their plural.
    fn suggest(&self, wanted: &str, what: &str, task: Option<Task>) -> String {
        let residency = self.inner.residency.borrow();
        let does =
            |entry: &Entry| task.is_none_or(|task| entry.tasks.is_empty() || entry.tasks.contains(&task));
        let models = residency.entries().iter().filter(|(_, entry)| does(entry));
        suggest(wanted, what, models.map(|(id, _)| id.as_str()))
    }

    /// Leases the engine of a model with `task`, loaded if necessary; of the default model without an id.
    pub(crate) async fn lease(&self, id: Option<&str>, task: Task) -> Result<Lease, ApiError> {
        self.lease_with(id, task, true).await
    }

    /// As [`Self::lease`], without loading the model.
    pub(crate) async fn lease_loaded(&self, id: Option<&str>, task: Task) -> Result<Lease, ApiError> {
        self.lease_with(id, task, false).await
    }

    async fn lease_with(&self, id: Option<&str>, task: Task, may_load: bool) -> Result<Lease, ApiError> {
        let id = match (id, task) {
            (Some(id), _) => id.to_owned(),
            (None, Task::Tts) => self.default_tts().to_owned(),
            (None, Task::Asr) => self.default_asr().unwrap_or(ASR_ALIASES[0]).to_owned(),
            (None, Task::Chat | Task::Diarize | Task::Turn) => self.first_with(task)?,
        };
        let (id, entry) = self.find_for(&id, Some(task))?;
        if !entry.tasks.is_empty() {
            self.check_task(&id, &entry.tasks, task)?;
        }
        let lease = self.acquire(&id, may_load).await?;
        self.check_task(&id, &lease.profile().info.tasks, task)?;
        Ok(lease)
    }

    fn check_task(&self, id: &str, tasks: &[Task], task: Task) -> Result<(), ApiError> {
        if tasks.contains(&task) {
            return Ok(());
        }
        let (label, remedy) = (task.name(), self.suggest("", "models that do", Some(task)));
        let message = format!("model '{id}' does not support the task {label}; {remedy}");
        Err(ApiError::invalid("model", message))
    }

    /// The model of requests that name none, for a task without a setting: the default TTS model if it has the task, else the
    /// first that has it.
    fn first_with(&self, task: Task) -> Result<String, ApiError> {
        let residency = self.inner.residency.borrow();
        let has_task = |entry: &Entry| entry.tasks.contains(&task);
        let default_tts = residency.entries().get_key_value(self.default_tts());
        let found = default_tts.filter(|(_, entry)| has_task(entry));
        let found = found.or_else(|| residency.entries().iter().find(|(_, entry)| has_task(entry)));
        found.map(|(id, _)| id.clone()).ok_or_else(|| {
            let task = task.name();
            let message =
                format!("no installed model supports the task {task}; install one, see `izwi list`");
            ApiError::invalid("model", message)
        })
    }

    async fn acquire(&self, id: &str, may_load: bool) -> Result<Lease, ApiError> {
        let mut changes = self.inner.residency.subscribe();
        let granted = async {
            loop {
                match self.decide(id, may_load) {
                    Decision::Granted(engine) => return Ok(Lease::new(self.clone(), id.to_owned(), engine)),
                    // Its state now shows whether it became ready or ended.
                    Decision::Warming(engine) => drop(engine.ready().await),
                    // The sender lives as long as this registry.
                    Decision::Wait | Decision::Load(_) => drop(changes.changed().await),
                    Decision::Refused(error) => return Err(error),
                }
            }
        };
        match tokio::time::timeout(self.inner.config.load_timeout, granted).await {
            Ok(lease) => lease,
            Err(_) => Err(ApiError::ModelLoading(id.to_owned())),
        }
    }

    /// Asks for a lease, and starts to load the model if that is the decision.
    fn decide(&self, id: &str, may_load: bool) -> Decision {
        let mut decision = Decision::Wait;
        self.inner.residency.send_if_modified(|residency| {
            decision = residency.acquire(id, may_load, Instant::now());
            matches!(decision, Decision::Load(_))
        });
        if let Decision::Load(evictions) = &mut decision {
            tokio::spawn(self.clone().load(id.to_owned(), std::mem::take(evictions)));
        }
        decision
    }

    fn release(&self, id: &str) {
        self.inner.residency.send_if_modified(|residency| {
            residency.release(id, Instant::now());
            // No task waits for a model to become unused.
            false
        });
    }

    /// Loads a model once the evicted engines have stopped, and records its new state.
    async fn load(self, id: String, evictions: Vec<Eviction>) {
        let Some(loader) = self.inner.loader.clone() else { return };
        for (other, _) in &evictions {
            tracing::info!(model = other, in_favour_of = id, "unloading a model");
        }
        futures::future::join_all(evictions.into_iter().map(|eviction| self.clone().unload(eviction))).await;
        let begun = Instant::now();
        let name = id.clone();
        let loaded = tokio::task::spawn_blocking(move || loader(&name)).await;
        let loaded = match loaded {
            Ok(Ok(engine)) => engine.ready().await.map(|()| engine).map_err(|error| error.to_string()),
            Ok(Err(reason)) => Err(reason),
            Err(panic) => Err(format!("loading ended abnormally: {panic}")),
        };
        match &loaded {
            Ok(engine) => {
                let device = &engine.profile().device;
                tracing::info!(
                    model = id,
                    device,
                    seconds = begun.elapsed().as_secs_f32(),
                    "model is loaded"
                );
                set_gauges(&id, &Slot::Ready(engine.clone()));
            }
            Err(reason) => tracing::error!(model = id, reason, "model failed to load"),
        }
        let (mut unwanted, mut restart, mut has_recovered) = (None, None, false);
        let ended = loaded.as_ref().ok().map(Engine::ended);
        self.inner.residency.send_modify(|residency| {
            if residency.is_closed() {
                unwanted = Some(loaded);
            } else {
                has_recovered = loaded.is_ok() && residency.is_recovering(&id);
                restart = residency.finish_load(&id, loaded, Instant::now());
            }
        });
        if has_recovered {
            server_metrics::count_restart(&id);
        }
        if let Some(Ok(engine)) = unwanted {
            engine.stop();
            return;
        }
        if let Some(restart) = restart {
            self.restart(&id, restart);
        }
        if let Some(ended) = ended {
            tokio::spawn(self.supervise(id, ended));
        }
    }

    /// Waits until an engine ends, and has its model loaded again if it failed. Does not keep the registry alive.
    fn supervise(
        self,
        id: String,
        ended: impl Future<Output = Option<String>> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let registry = Arc::downgrade(&self.inner);
        drop(self);
        async move {
            let failure = ended.await;
            let (Some(reason), Some(inner)) = (failure, registry.upgrade()) else { return };
            let registry = Self { inner };
            tracing::error!(model = id, reason, "the engine failed");
            let mut restart = None;
            registry.inner.residency.send_modify(|residency| {
                restart = residency.engine_failed(&id, Instant::now());
            });
            server_metrics::set_model_loaded(&id, false);
            if let Some(restart) = restart {
                registry.restart(&id, restart);
            }
        }
    }

    /// Does what follows the failure of an engine.
    fn restart(&self, id: &str, restart: Restart) {
        match restart {
            Restart::At(at) => {
                tracing::warn!(model = id, pause = ?at.saturating_duration_since(Instant::now()), "model is loaded again");
                let (registry, id) = (Arc::downgrade(&self.inner), id.to_owned());
                tokio::spawn(async move {
                    tokio::time::sleep_until(at.into()).await;
                    if let Some(inner) = registry.upgrade() {
                        Self { inner }.load_default(&id);
                    }
                });
            }
            Restart::OnRequest => tracing::warn!(model = id, "the next request loads the model again"),
            Restart::Never => {
                tracing::error!(
                    model = id,
                    "the model failed repeatedly and is given up; restart the service"
                );
            }
        }
        server_metrics::count_engine_failure(id, restart == Restart::Never);
    }

    /// The reason why a default model is given up.
    pub(crate) fn given_up(&self) -> Option<Unready> {
        let residency = self.inner.residency.borrow();
        let mut slots =
            defaults(&self.inner.config).filter_map(|(id, _)| Some((id, &residency.entries().get(id)?.slot)));
        let (id, slot) = slots.find(|(_, slot)| matches!(slot, Slot::GivenUp(_)))?;
        slot.readiness(id).err()
    }

    /// Stops an evicted engine and records the end.
    async fn unload(self, (id, engine): Eviction) {
        // The model is unused, but an aborted request may still be in a step. An engine that has ended already fails here.
        let _ = engine.drain().await;
        engine.stop();
        let _ = engine.run().await;
        drop(engine);
        set_gauges(&id, &Slot::Unloaded);
        self.inner.residency.send_modify(|residency| residency.finish_unload(&id, Instant::now()));
    }

    /// Whether all default models can take requests.
    pub(crate) fn readiness(&self) -> Result<(), Unready> {
        let residency = self.inner.residency.borrow();
        for (id, _) in defaults(&self.inner.config) {
            let missing = || Unready { code: "failed", reason: format!("model '{id}' is missing") };
            let slot = &residency.entries().get(id).ok_or_else(missing)?.slot;
            let is_resting = matches!(slot, Slot::Unloaded | Slot::Unloading);
            // The next request loads it again.
            if !(is_resting && self.inner.config.default_ttl.is_some()) {
                slot.readiness(id)?;
            }
        }
        Ok(())
    }
}

/// The default models and the task of each.
fn defaults(config: &RegistryConfig) -> impl Iterator<Item = (&str, Task)> {
    let asr = config.default_asr.as_deref().map(|id| (id, Task::Asr));
    std::iter::once((config.default_tts.as_str(), Task::Tts)).chain(asr)
}

/// Shows a model's new state in the metrics.
fn set_gauges(id: &str, slot: &Slot) {
    if let Slot::Ready(engine) = slot {
        metrics::set_build_info(&engine.profile().device);
    }
    server_metrics::set_model_loaded(id, matches!(slot, Slot::Ready(_)));
}
