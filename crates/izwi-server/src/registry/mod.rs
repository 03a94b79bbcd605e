//! The models a server offers: which are there, in which state, and which are the defaults.
//!
//! Models load on first use, one load for all who wait; unused ones leave memory after a while, or when another needs
//! the room. Knows engines as handles; how one is made is the loader's task. What is decided is decided in [`books`].

mod books;
mod lease;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use izwi_core::engine::{Engine, Task, metrics};
use tokio::sync::watch;

use self::books::{Answer, Books, Leaving};
pub(crate) use self::books::{Entry, Unready};
pub use self::books::{Offer, Slot};
pub(crate) use self::lease::Lease;
use crate::error::ApiError;
use crate::{metrics as series, near};

/// Names of hosted models that stand for the default speaking model.
pub const DEFAULT_ALIASES: [&str; 3] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"];
/// Names of hosted models that stand for the default listening model.
pub const LISTENING_ALIASES: [&str; 3] = ["whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"];

/// Loads the model of an id. Called on a blocking thread of the runtime; may take minutes.
pub type Loader = Arc<dyn Fn(&str) -> Result<Engine, String> + Send + Sync>;

/// What the fleet is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetConfig {
    /// Model that speaks where a request names none; it is loaded at the start and stays.
    pub default_tts: String,
    /// Model that listens where a request names an alias; it is loaded at the start and stays. `None` for none.
    pub default_asr: Option<String>,
    /// How long a request may wait for its model to load.
    pub load_timeout: Duration,
    /// How long another model stays loaded unused; `None` for ever.
    pub ttl: Option<Duration>,
    /// The most bytes that loaded models may take together; `None` for no limit.
    pub memory_budget_bytes: Option<u64>,
}

impl FleetConfig {
    /// A fleet whose default speaking model is `default_tts`, with no listening model.
    pub fn new(default_tts: impl Into<String>) -> Self {
        Self {
            default_tts: default_tts.into(),
            default_asr: None,
            load_timeout: Duration::from_secs(30),
            ttl: Some(Duration::from_secs(600)),
            memory_budget_bytes: None,
        }
    }
}

/// The models by id. Clones address the same registry.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    config: FleetConfig,
    loader: Option<Loader>,
    books: watch::Sender<Books>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry that loads nothing itself: its default models count as loading until they are [`Registry::set`].
    pub fn new(config: FleetConfig) -> Self {
        Self::build(config, Vec::new(), None, Slot::Loading)
    }

    /// A registry of `offers` beside the default models, which `loader` loads when they are needed.
    pub fn with_loader(config: FleetConfig, offers: Vec<Offer>, loader: Loader) -> Self {
        Self::build(config, offers, Some(loader), Slot::Unloaded)
    }

    fn build(config: FleetConfig, offers: Vec<Offer>, loader: Option<Loader>, first: Slot) -> Self {
        let now = Instant::now();
        let mut books = Books::new(config.memory_budget_bytes, config.ttl, loader.is_some());
        for (id, _) in defaults(&config) {
            books.set(id.to_owned(), first.clone(), now);
        }
        for offer in offers {
            books.offer(offer, now);
        }
        for (id, _) in defaults(&config) {
            books.keep(id);
        }
        let registry = Self { inner: Arc::new(Inner { config, loader, books: watch::Sender::new(books) }) };
        for id in registry.inner.books.borrow().entries().keys() {
            series::set_model_loaded(id, false);
        }
        registry
    }

    /// Begins to load the default models. Must be called within a tokio runtime.
    pub fn load_defaults(&self) {
        for (id, _) in defaults(&self.inner.config) {
            // A request that nobody waits for: it counts for nothing once it is granted.
            if let Answer::Granted(_) = self.ask(id) {
                self.give_back(id);
            }
        }
    }

    /// Puts a model into a state, replacing the one it had.
    pub fn set(&self, id: impl Into<String>, slot: Slot) {
        let id = id.into();
        show(&id, &slot);
        self.inner.books.send_modify(|books| books.set(id, slot, Instant::now()));
    }

    /// Id of the default speaking model.
    pub fn default_tts(&self) -> &str {
        &self.inner.config.default_tts
    }

    /// Id of the default listening model.
    pub fn default_asr(&self) -> Option<&str> {
        self.inner.config.default_asr.as_deref()
    }

    /// All models and their states, by id.
    pub fn snapshot(&self) -> BTreeMap<String, Slot> {
        let entries = self.entries();
        entries.into_iter().map(|(id, entry)| (id, entry.slot)).collect()
    }

    /// Stops engines of models that nobody has used for long.
    pub fn expire(&self) {
        self.expire_at(Instant::now());
    }

    fn expire_at(&self, now: Instant) {
        let mut leaving = Vec::new();
        self.inner.books.send_if_modified(|books| {
            leaving = books.expire(now);
            !leaving.is_empty()
        });
        for (id, engine) in leaving {
            tracing::info!(model = id, "model is unused and leaves memory");
            tokio::spawn(self.clone().see_off((id, engine)));
        }
    }

    /// All that is known of the models, by id.
    pub(crate) fn entries(&self) -> BTreeMap<String, Entry> {
        self.inner.books.borrow().entries().clone()
    }

    /// Engines that are loaded.
    pub(crate) fn engines(&self) -> Vec<Engine> {
        let engine = |entry: &Entry| match &entry.slot {
            Slot::Ready(engine) => Some(engine.clone()),
            _ => None,
        };
        self.inner.books.borrow().entries().values().filter_map(engine).collect()
    }

    /// Loads nothing any more, and stops every engine.
    pub(crate) fn close(&self) {
        self.inner.books.send_modify(Books::close);
        for engine in self.engines() {
            engine.stop();
        }
    }

    /// The real id that `id` or an alias stands for.
    fn resolve<'a>(&'a self, id: &'a str) -> &'a str {
        let stands_for = if DEFAULT_ALIASES.contains(&id) {
            Some(self.default_tts())
        } else if LISTENING_ALIASES.contains(&id) {
            self.default_asr()
        } else {
            None
        };
        let is_real = || self.inner.books.borrow().entries().contains_key(id);
        stands_for.filter(|_| !is_real()).unwrap_or(id)
    }

    /// What is known of the model that `id` or an alias names, with its real id.
    pub(crate) fn find(&self, id: &str) -> Result<(String, Entry), ApiError> {
        let real = self.resolve(id);
        let books = self.inner.books.borrow();
        match books.entries().get(real) {
            Some(entry) => Ok((real.to_owned(), entry.clone())),
            None if LISTENING_ALIASES.contains(&id) => {
                let hint = "this server was started without a listening model; set asr_model".to_owned();
                Err(ApiError::ModelNotFound { id: id.to_owned(), hint })
            }
            None => {
                let hint = near::hint(id, books.entries().keys().map(String::as_str));
                Err(ApiError::ModelNotFound { id: near::shown(id), hint })
            }
        }
    }

    /// The engine of a model that does `task`, loaded if need be; the default one without an id.
    pub(crate) async fn lease(&self, id: Option<&str>, task: Task) -> Result<Lease, ApiError> {
        let id = match (id, task) {
            (Some(id), _) => id.to_owned(),
            (None, Task::Tts) => self.default_tts().to_owned(),
            (None, Task::Asr) => self.default_asr().unwrap_or(LISTENING_ALIASES[0]).to_owned(),
            (None, Task::Chat) => self.first_to_converse()?,
        };
        let (id, entry) = self.find(&id)?;
        if !entry.tasks.is_empty() {
            check_task(&id, &entry.tasks, task)?;
        }
        let lease = self.acquire(&id).await?;
        check_task(&id, &lease.profile().info.tasks, task)?;
        Ok(lease)
    }

    /// The model that converses where nobody names one: the default speaker if it does, else the first that does.
    fn first_to_converse(&self) -> Result<String, ApiError> {
        let books = self.inner.books.borrow();
        let converses = |entry: &Entry| entry.tasks.contains(&Task::Chat);
        let speaker = books.entries().get_key_value(self.default_tts());
        let found = speaker.filter(|(_, entry)| converses(entry));
        let found = found.or_else(|| books.entries().iter().find(|(_, entry)| converses(entry)));
        found.map(|(id, _)| id.clone()).ok_or_else(|| {
            ApiError::invalid("model", "no model here converses; install one that does, see `izwi list`")
        })
    }

    async fn acquire(&self, id: &str) -> Result<Lease, ApiError> {
        let mut changes = self.inner.books.subscribe();
        let granted = async {
            loop {
                match self.ask(id) {
                    Answer::Granted(engine) => return Ok(Lease::new(self.clone(), id.to_owned(), engine)),
                    // Whether it became ready or ended, its state says so now.
                    Answer::Warming(engine) => drop(engine.ready().await),
                    // The sender lives as long as this registry.
                    Answer::Wait | Answer::Load(_) => drop(changes.changed().await),
                    Answer::Refused(error) => return Err(error),
                }
            }
        };
        match tokio::time::timeout(self.inner.config.load_timeout, granted).await {
            Ok(lease) => lease,
            Err(_) => Err(ApiError::ModelLoading(id.to_owned())),
        }
    }

    /// Asks for a model, and begins to load it where that is the answer.
    fn ask(&self, id: &str) -> Answer {
        let mut answer = Answer::Wait;
        self.inner.books.send_if_modified(|books| {
            answer = books.request(id, Instant::now());
            matches!(answer, Answer::Load(_))
        });
        if let Answer::Load(leaving) = &mut answer {
            tokio::spawn(self.clone().load(id.to_owned(), std::mem::take(leaving)));
        }
        answer
    }

    fn give_back(&self, id: &str) {
        self.inner.books.send_if_modified(|books| {
            books.give_back(id, Instant::now());
            // Nobody waits for a model to become unused.
            false
        });
    }

    /// Loads a model once there is room, and puts it into its new state.
    async fn load(self, id: String, leaving: Vec<Leaving>) {
        let Some(loader) = self.inner.loader.clone() else { return };
        for (other, _) in &leaving {
            tracing::info!(model = other, room_for = id, "model leaves memory");
        }
        futures::future::join_all(leaving.into_iter().map(|leaving| self.clone().see_off(leaving))).await;
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
                show(&id, &Slot::Ready(engine.clone()));
            }
            Err(reason) => tracing::error!(model = id, reason, "model failed to load"),
        }
        let mut unwanted = None;
        self.inner.books.send_modify(|books| unwanted = books.settle(&id, loaded, Instant::now()));
        if let Some(engine) = unwanted {
            engine.stop();
        }
    }

    /// Stops an engine that was taken off the books, and says when it has gone.
    async fn see_off(self, (id, engine): Leaving) {
        // Nobody uses it; what was aborted may still be in a step. An engine that has ended already is gone.
        let _ = engine.drain().await;
        engine.stop();
        let _ = engine.run().await;
        drop(engine);
        show(&id, &Slot::Unloaded);
        self.inner.books.send_modify(|books| books.left(&id, Instant::now()));
    }

    /// Whether all default models can take requests.
    pub(crate) fn readiness(&self) -> Result<(), Unready> {
        let books = self.inner.books.borrow();
        for (id, _) in defaults(&self.inner.config) {
            let missing = || Unready { code: "failed", reason: format!("model '{id}' is missing") };
            books.entries().get(id).ok_or_else(missing)?.slot.readiness(id)?;
        }
        Ok(())
    }
}

/// The default models and what each is the default for.
fn defaults(config: &FleetConfig) -> impl Iterator<Item = (&str, Task)> {
    let listening = config.default_asr.as_deref().map(|id| (id, Task::Asr));
    std::iter::once((config.default_tts.as_str(), Task::Tts)).chain(listening)
}

fn check_task(id: &str, tasks: &[Task], task: Task) -> Result<(), ApiError> {
    if tasks.contains(&task) {
        return Ok(());
    }
    let does = match task {
        Task::Tts => "speak",
        Task::Asr => "transcribe",
        Task::Chat => "converse",
    };
    let message = format!("model '{id}' does not {does}; choose one that does, see /v1/models");
    Err(ApiError::invalid("model", message))
}

/// Shows a model's new state in the metrics.
fn show(id: &str, slot: &Slot) {
    if let Slot::Ready(engine) = slot {
        metrics::set_build_info(&engine.profile().device);
    }
    series::set_model_loaded(id, matches!(slot, Slot::Ready(_)));
}
