//! Which models are in memory: the state of each, its open leases, and which to evict under the memory budget.
//!
//! It decides only: the [registry](super) loads, unloads and waits. It knows no request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use izwi_core::engine::{Engine, EngineState, MemoryBudget, Task};

use super::RegistryConfig;
use super::supervision::{Failures, RestartPolicy};
use crate::error::ApiError;

/// Pause after a failed load before a request loads the model again.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Memory of a server besides its models and requests.
const OWN_BYTES: u64 = 100 << 20;
/// The most memory that one transcription takes while it is computed: the recording, the encoder's states and the decoder's
/// cache. Measured with a model of 74 M parameters.
const TRANSCRIPTION_BYTES: u64 = 48 << 20;

/// State of one model.
#[derive(Debug, Clone)]
pub enum Slot {
    /// Not in memory; the first request loads it.
    Unloaded,
    /// Being loaded and warmed.
    Loading,
    /// Loaded; the engine knows whether it is warm and alive.
    Ready(Engine),
    /// Being unloaded.
    Unloading,
    /// Could not be loaded, with the reason.
    Failed(String),
    /// Its engine failed, with the reason; it is loaded again from `at` on.
    Restarting {
        /// Why it failed last.
        reason: String,
        /// When it may be loaded.
        at: Instant,
    },
    /// Its engine failed too often, with the last reason. It is not loaded again.
    GivenUp(String),
}

/// Why a model takes no requests at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// One of a fixed set of codes.
    pub(crate) code: &'static str,
    pub(crate) reason: String,
}

impl Slot {
    /// Whether the model can take requests.
    pub fn readiness(&self, id: &str) -> Result<&Engine, Unready> {
        let unready = |code, reason| Err(Unready { code, reason });
        match self {
            Self::Unloaded => unready("unloaded", format!("model '{id}' loads on first use")),
            Self::Unloading => unready("unloading", format!("model '{id}' is being unloaded")),
            Self::Loading => unready("loading", format!("model '{id}' is loading")),
            Self::Failed(reason) => unready("failed", format!("model '{id}' failed to load: {reason}")),
            Self::Restarting { reason, .. } => {
                unready("restarting", format!("model '{id}' failed and is loaded again: {reason}"))
            }
            Self::GivenUp(reason) => unready(
                "given_up",
                format!("model '{id}' failed repeatedly and is given up; restart the service: {reason}"),
            ),
            Self::Ready(engine) => match engine.status().state {
                EngineState::Ready => Ok(engine),
                EngineState::Starting => unready("loading", format!("model '{id}' is warming up")),
                EngineState::Draining => unready("draining", format!("model '{id}' is draining")),
                EngineState::Stopped => unready("stopped", format!("model '{id}' has stopped")),
                EngineState::Dead(reason) => unready("dead", format!("model '{id}' is dead: {reason}")),
            },
        }
    }
}

/// A model that the registry can load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Model id.
    pub id: String,
    /// Its tasks, as far as known before it is loaded.
    pub tasks: Vec<Task>,
    /// Expected memory, 0 if unknown.
    pub bytes: u64,
}

/// One model.
#[derive(Debug, Clone)]
pub struct Entry {
    pub slot: Slot,
    /// Its tasks; empty until known.
    pub tasks: Vec<Task>,
    /// Memory: expected, or as the engine reported once it was loaded.
    bytes: u64,
    /// A default model: it is not unloaded for the memory budget, and for its age only by a time of its own.
    is_pinned: bool,
    /// Requests and sessions that hold a lease.
    leases: usize,
    /// When it last changed its state or a lease ended.
    used_at: Instant,
    failures: Failures,
    /// Whether its engine failed and it has not been loaded since.
    is_recovering: bool,
}

impl Entry {
    fn new(slot: Slot, now: Instant) -> Self {
        Self {
            slot,
            tasks: Vec::new(),
            bytes: 0,
            is_pinned: false,
            leases: 0,
            used_at: now,
            failures: Failures::default(),
            is_recovering: false,
        }
    }

    fn set_slot(&mut self, slot: Slot, now: Instant) {
        if let Slot::Ready(engine) = &slot {
            self.tasks.clone_from(&engine.profile().info.tasks);
            let bytes = engine.profile().memory_bytes as u64;
            self.bytes = if bytes == 0 { self.bytes } else { bytes };
        }
        self.slot = slot;
        self.used_at = now;
    }

    /// The engine, if the model is unused and not pinned.
    fn evictable(&self) -> Option<&Engine> {
        self.unused().filter(|_| !self.is_pinned)
    }

    /// The engine, if the model is unused.
    fn unused(&self) -> Option<&Engine> {
        match &self.slot {
            Slot::Ready(engine) if self.leases == 0 => {
                let status = engine.status();
                (status.running + status.pending == 0).then_some(engine)
            }
            _ => None,
        }
    }

    /// Whether its memory is in use. That of a default model which is loaded again is kept free.
    fn is_resident(&self) -> bool {
        match self.slot {
            Slot::Ready(_) | Slot::Loading => true,
            Slot::Restarting { .. } => self.is_pinned,
            Slot::Unloaded | Slot::Unloading | Slot::Failed(_) | Slot::GivenUp(_) => false,
        }
    }
}

/// An evicted model and its engine, which must be stopped.
pub(super) type Eviction = (String, Engine);

/// The answer to a request for a model.
pub(super) enum Decision {
    /// The model is loaded. The lease lasts until [`Residency::release`].
    Granted(Engine),
    /// It is warming up; wait for that and ask again.
    Warming(Engine),
    /// It is being loaded or unloaded; wait for the next change and ask again.
    Wait,
    /// Stop the evicted engines, load the model, call [`Residency::finish_load`], and ask again. It counts as loading from
    /// now on.
    Load(Vec<Eviction>),
    /// The request fails.
    Refused(ApiError),
}

/// What follows the failure of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    /// A default model is loaded again at this time.
    At(Instant),
    /// Another model is loaded again by the first request after the pause.
    OnRequest,
    /// The model is given up.
    Never,
}

/// All models, and their common limits.
#[derive(Debug)]
pub(super) struct Residency {
    entries: BTreeMap<String, Entry>,
    /// What all loaded models take, and recordings.
    memory: MemoryBudget,
    /// The most memory of the process; `None` for no limit.
    process_bytes: Option<u64>,
    /// Unused models are unloaded after this; `None` for never.
    ttl: Option<Duration>,
    /// As `ttl`, of pinned models.
    pinned_ttl: Option<Duration>,
    /// How models whose engine failed are loaded again.
    policy: RestartPolicy,
    can_load: bool,
    is_closed: bool,
}

impl Residency {
    pub(super) fn new(config: &RegistryConfig, can_load: bool) -> Self {
        Self {
            entries: BTreeMap::new(),
            memory: config.memory.clone(),
            process_bytes: config.process_memory_bytes,
            ttl: config.ttl,
            pinned_ttl: config.default_ttl,
            policy: config.restart.clone(),
            can_load,
            is_closed: false,
        }
    }

    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Adds a model that is not loaded.
    pub(super) fn offer(&mut self, offer: Offer, now: Instant) {
        let entry = self.entries.entry(offer.id).or_insert_with(|| Entry::new(Slot::Unloaded, now));
        entry.tasks = offer.tasks;
        entry.bytes = offer.bytes;
        // It may have failed because it was not installed.
        if matches!(entry.slot, Slot::Failed(_)) {
            entry.set_slot(Slot::Unloaded, now);
        }
    }

    /// Replaces the state of a model.
    pub(super) fn set(&mut self, id: String, slot: Slot, now: Instant) {
        self.entries.entry(id).or_insert_with(|| Entry::new(Slot::Unloaded, now)).set_slot(slot, now);
        self.memory.set_models(self.resident_bytes());
    }

    /// Never unloads this model for the memory budget.
    pub(super) fn pin(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_pinned = true;
        }
    }

    /// Asks for a lease of a model. One that is not in memory is loaded only if `may_load`.
    pub(super) fn acquire(&mut self, id: &str, may_load: bool, now: Instant) -> Decision {
        if self.is_closed {
            return Decision::Refused(ApiError::Draining);
        }
        let can_load = self.can_load;
        let is_full = self.is_full_for(id);
        let unavailable = || Decision::Refused(ApiError::ModelUnavailable(id.to_owned()));
        let restarting = |at: Instant| {
            let retry_after = at.saturating_duration_since(now);
            Decision::Refused(ApiError::ModelRestarting { id: id.to_owned(), retry_after })
        };
        let Some(entry) = self.entries.get_mut(id) else { return unavailable() };
        match &entry.slot {
            // Its failure is about to be recorded.
            Slot::Ready(engine) if can_load && engine.failure().is_some() => restarting(now),
            Slot::Ready(engine) => match engine.status().state {
                EngineState::Ready if is_full => Decision::Refused(ApiError::overloaded(
                    "the memory of this process allows no more transcriptions at once; try again later",
                )),
                EngineState::Ready => {
                    let engine = engine.clone();
                    entry.leases += 1;
                    Decision::Granted(engine)
                }
                EngineState::Starting => Decision::Warming(engine.clone()),
                EngineState::Draining => Decision::Refused(ApiError::Draining),
                EngineState::Stopped | EngineState::Dead(_) => unavailable(),
            },
            Slot::Loading | Slot::Unloading => Decision::Wait,
            Slot::Failed(_) if !can_load || now.duration_since(entry.used_at) < RETRY_AFTER => unavailable(),
            Slot::GivenUp(_) => Decision::Refused(ApiError::ModelGivenUp(id.to_owned())),
            Slot::Restarting { at, .. } if now < *at => restarting(*at),
            Slot::Unloaded if !can_load => unavailable(),
            Slot::Unloaded | Slot::Failed(_) | Slot::Restarting { .. } if !may_load => {
                Decision::Refused(ApiError::ModelNotLoaded(id.to_owned()))
            }
            Slot::Unloaded | Slot::Failed(_) | Slot::Restarting { .. } => self.begin_load(id, now),
        }
    }

    /// Memory of all models that are in memory or being loaded.
    fn resident_bytes(&self) -> u64 {
        self.others(None).filter(|(_, entry)| entry.is_resident()).map(|(_, entry)| entry.bytes).sum()
    }

    /// Whether the memory of the process allows no further transcription by this model. One at a time is always allowed.
    fn is_full_for(&self, id: &str) -> bool {
        let Some(limit) = self.process_bytes else { return false };
        let transcribes = |entry: &&Entry| entry.tasks.contains(&Task::Asr);
        if self.entries.get(id).is_none_or(|entry| !transcribes(&entry)) {
            return false;
        }
        let open: usize = self.entries.values().filter(transcribes).map(|entry| entry.leases).sum();
        let taken = OWN_BYTES.saturating_add(self.resident_bytes()).saturating_add(self.memory.recordings());
        let room = limit.saturating_sub(taken) / TRANSCRIPTION_BYTES;
        open > 0 && open as u64 >= room
    }

    /// Reserves memory for a model and evicts the least recently used ones.
    fn begin_load(&mut self, id: &str, now: Instant) -> Decision {
        let need = self.entries.get(id).map_or(0, |entry| entry.bytes);
        let evictions = match self.room_for(id, need) {
            Ok(evictions) => evictions,
            Err(error) => return Decision::Refused(error),
        };
        let evictions = evictions.into_iter().filter_map(|id| self.evict(&id, now)).collect();
        self.set(id.to_owned(), Slot::Loading, now);
        Decision::Load(evictions)
    }

    /// Which models to evict so that `need` more bytes fit beside the recordings of now.
    fn room_for(&self, id: &str, need: u64) -> Result<Vec<String>, ApiError> {
        let Some(budget) = self.memory.limit() else { return Ok(Vec::new()) };
        let recordings = self.memory.recordings();
        let (evictions, models) = self.evictions_for(Some(id), need, budget.saturating_sub(recordings));
        let used = models.saturating_add(recordings);
        if used.saturating_add(need) <= budget {
            return Ok(evictions);
        }
        let pinned = self.others(Some(id)).filter(|(_, entry)| entry.is_pinned && entry.is_resident());
        let pinned: u64 = pinned.map(|(_, entry)| entry.bytes).sum();
        let may_fit_later = pinned.saturating_add(need) <= budget;
        Err(ApiError::NoRoom { id: id.to_owned(), need, budget, used, may_fit_later })
    }

    /// All models but `id`.
    fn others<'a>(&'a self, id: Option<&'a str>) -> impl Iterator<Item = (&'a String, &'a Entry)> {
        self.entries.iter().filter(move |(other, _)| id != Some(other.as_str()))
    }

    /// Unused models to evict for `need` more bytes for `id`, least recently used first, and the bytes that others use after
    /// that.
    fn evictions_for(&self, id: Option<&str>, need: u64, budget: u64) -> (Vec<String>, u64) {
        let loaded = self.others(id).filter(|(_, entry)| entry.is_resident());
        let mut used: u64 = loaded.map(|(_, entry)| entry.bytes).sum();
        let mut idle: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.evictable().is_some()).collect();
        idle.sort_by_key(|(_, entry)| entry.used_at);
        let mut evictions = Vec::new();
        for (id, entry) in idle {
            if used.saturating_add(need) <= budget {
                break;
            }
            used = used.saturating_sub(entry.bytes);
            evictions.push(id.clone());
        }
        (evictions, used)
    }

    /// Evicts a loaded model. `None` if it is in use.
    fn evict(&mut self, id: &str, now: Instant) -> Option<Eviction> {
        let entry = self.entries.get_mut(id)?;
        let engine = entry.unused()?.clone();
        self.set(id.to_owned(), Slot::Unloading, now);
        Some((id.to_owned(), engine))
    }

    /// Unloads a model on request. `None` if it is not in memory.
    pub(super) fn unload(&mut self, id: &str, now: Instant) -> Result<Option<Eviction>, ApiError> {
        let in_use = |reason| ApiError::ModelInUse { id: id.to_owned(), reason };
        let Some(entry) = self.entries.get(id) else { return Ok(None) };
        match &entry.slot {
            Slot::Loading => Err(ApiError::ModelLoading(id.to_owned())),
            Slot::Ready(_) if entry.is_pinned && self.pinned_ttl.is_none() => {
                Err(in_use("default models stay loaded; choose other defaults with tts_model and asr_model"))
            }
            Slot::Ready(_) => match self.evict(id, now) {
                Some(eviction) => Ok(Some(eviction)),
                None => Err(in_use("requests or sessions use it; try again when they have ended")),
            },
            Slot::Unloaded | Slot::Unloading | Slot::Failed(_) => Ok(None),
            Slot::Restarting { .. } | Slot::GivenUp(_) => Ok(None),
        }
    }

    /// Begins to withdraw a model whose files are removed: until [`Self::withdraw`], requests for it wait.
    ///
    /// # Errors
    /// It is a default model, loading or in memory.
    pub(super) fn begin_withdrawal(&mut self, id: &str, now: Instant) -> Result<(), ApiError> {
        let in_use = |reason| Err(ApiError::ModelInUse { id: id.to_owned(), reason });
        let Some(entry) = self.entries.get_mut(id) else { return Ok(()) };
        match &entry.slot {
            _ if entry.is_pinned => {
                in_use("default models stay; choose other defaults with tts_model and asr_model")
            }
            Slot::Ready(_) => in_use("requests or sessions use it; try again when they have ended"),
            Slot::Unloading => in_use("it is being unloaded; try again shortly"),
            Slot::Loading => Err(ApiError::ModelLoading(id.to_owned())),
            Slot::Unloaded | Slot::Failed(_) | Slot::Restarting { .. } | Slot::GivenUp(_) => {
                entry.set_slot(Slot::Unloading, now);
                Ok(())
            }
        }
    }

    /// Forgets a model whose files are gone.
    pub(super) fn withdraw(&mut self, id: &str) {
        self.entries.remove(id);
    }

    /// Ends a lease.
    pub(super) fn release(&mut self, id: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.leases = entry.leases.saturating_sub(1);
            entry.used_at = now;
        }
    }

    /// Records the end of a load. A failed reload counts as a failure of the engine, and what follows is returned.
    pub(super) fn finish_load(
        &mut self,
        id: &str,
        loaded: Result<Engine, String>,
        now: Instant,
    ) -> Option<Restart> {
        match loaded {
            Ok(engine) => {
                self.set(id.to_owned(), Slot::Ready(engine), now);
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.is_recovering = false;
                }
            }
            Err(reason) if self.is_recovering(id) => return self.record_failure(id, reason, now),
            Err(reason) => self.set(id.to_owned(), Slot::Failed(reason), now),
        }
        None
    }

    /// Whether the engine of a model failed and it has not been loaded since.
    pub(super) fn is_recovering(&self, id: &str) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.is_recovering)
    }

    /// Whether loads that end now are discarded.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Records that the engine of a model has failed, and says what follows. `None` if that is known already, or if nothing
    /// can load it again.
    pub(super) fn engine_failed(&mut self, id: &str, now: Instant) -> Option<Restart> {
        let Slot::Ready(engine) = &self.entries.get(id)?.slot else { return None };
        let reason = engine.failure()?;
        if !self.can_load || self.is_closed { None } else { self.record_failure(id, reason, now) }
    }

    fn record_failure(&mut self, id: &str, reason: String, now: Instant) -> Option<Restart> {
        let entry = self.entries.get_mut(id)?;
        entry.is_recovering = true;
        let (pause, is_pinned) = (entry.failures.record(&self.policy, now), entry.is_pinned);
        let Some(pause) = pause else {
            self.set(id.to_owned(), Slot::GivenUp(reason), now);
            return Some(Restart::Never);
        };
        let at = now + pause;
        self.set(id.to_owned(), Slot::Restarting { reason, at }, now);
        Some(if is_pinned { Restart::At(at) } else { Restart::OnRequest })
    }

    /// Records that an evicted engine has stopped.
    pub(super) fn finish_unload(&mut self, id: &str, now: Instant) {
        self.set(id.to_owned(), Slot::Unloaded, now);
    }

    /// Evicts models unused for longer than the TTL, and those beyond the budget: a model may be larger than expected.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Eviction> {
        let is_old = |entry: &Entry| {
            let ttl = if entry.is_pinned { self.pinned_ttl } else { self.ttl };
            ttl.is_some_and(|ttl| now.duration_since(entry.used_at) >= ttl)
        };
        let old = self.entries.iter().filter(|(_, entry)| is_old(entry));
        let mut ids: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        if let Some(budget) = self.memory.limit() {
            let left = budget.saturating_sub(self.memory.recordings());
            ids.extend(self.evictions_for(None, 0, left).0);
        }
        // Models in use or evicted already are skipped.
        ids.into_iter().filter_map(|id| self.evict(&id, now)).collect()
    }

    /// Refuses further requests and loads.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }
}
