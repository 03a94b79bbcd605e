//! The books of the fleet: which model is in which state, who uses it, and what may go to make room for another.
//!
//! Decides and computes nothing else: loading, unloading and waiting are done by whoever asked. Knows no request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use izwi_core::engine::{Engine, EngineState, Task};

use crate::error::ApiError;

/// How long a model that failed to load is left alone before a request tries again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// State of one model.
#[derive(Debug, Clone)]
pub enum Slot {
    /// Not in memory; the first request loads it.
    Unloaded,
    /// Being loaded and warmed.
    Loading,
    /// Loaded; the engine knows whether it is warm and alive.
    Ready(Engine),
    /// Leaving memory.
    Unloading,
    /// Could not be loaded, with the reason.
    Failed(String),
}

/// Why a model takes no requests at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unready {
    /// One of a fixed set of words.
    pub(crate) code: &'static str,
    pub(crate) reason: String,
}

impl Slot {
    /// Whether the model can take requests.
    pub(crate) fn readiness(&self, id: &str) -> Result<&Engine, Unready> {
        let unready = |code, reason| Err(Unready { code, reason });
        match self {
            Self::Unloaded => unready("unloaded", format!("model '{id}' loads on first use")),
            Self::Unloading => unready("unloading", format!("model '{id}' is leaving memory")),
            Self::Loading => unready("loading", format!("model '{id}' is loading")),
            Self::Failed(reason) => unready("failed", format!("model '{id}' failed to load: {reason}")),
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

/// A model that can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its id.
    pub id: String,
    /// What it does, as far as is known before it is loaded.
    pub tasks: Vec<Task>,
    /// Bytes it is expected to take, 0 where that is not known.
    pub bytes: u64,
}

/// What the books know of one model.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) slot: Slot,
    /// What it does; empty until that is known.
    pub(crate) tasks: Vec<Task>,
    /// Bytes it takes: expected, and once it was loaded as its engine says.
    bytes: u64,
    /// A default model: it is never unloaded.
    stays: bool,
    /// Requests and sessions that hold it.
    open: usize,
    /// When it last changed its state or was given back.
    used_at: Instant,
}

impl Entry {
    fn new(slot: Slot, now: Instant) -> Self {
        Self { slot, tasks: Vec::new(), bytes: 0, stays: false, open: 0, used_at: now }
    }

    fn move_to(&mut self, slot: Slot, now: Instant) {
        if let Slot::Ready(engine) = &slot {
            self.tasks.clone_from(&engine.profile().info.tasks);
            let bytes = engine.profile().memory_bytes as u64;
            self.bytes = if bytes == 0 { self.bytes } else { bytes };
        }
        self.slot = slot;
        self.used_at = now;
    }

    /// The engine, if nobody uses it and it may go.
    fn dispensable(&self) -> Option<&Engine> {
        match &self.slot {
            Slot::Ready(engine) if !self.stays && self.open == 0 => {
                let status = engine.status();
                (status.running + status.pending == 0).then_some(engine)
            }
            _ => None,
        }
    }

    fn takes_memory(&self) -> bool {
        matches!(self.slot, Slot::Ready(_) | Slot::Loading)
    }
}

/// An engine that was taken off the books and must be stopped, with the model's id.
pub(super) type Leaving = (String, Engine);

/// What becomes of a request for a model.
pub(super) enum Answer {
    /// Here it is; it counts as used until it is given back.
    Granted(Engine),
    /// It runs warm; wait for that and ask again.
    Warming(Engine),
    /// Somebody loads or unloads it; wait for the next change and ask again.
    Wait,
    /// Stop those that leave, load it, settle it, and ask again. It counts as loading from now on.
    Load(Vec<Leaving>),
    /// No.
    Refused(ApiError),
}

/// Every model, and the limits on all together.
#[derive(Debug)]
pub(super) struct Books {
    entries: BTreeMap<String, Entry>,
    /// The most bytes that loaded models may take together; `None` for no limit.
    budget_bytes: Option<u64>,
    /// Unused models go after this; `None` for never.
    ttl: Option<Duration>,
    can_load: bool,
    is_closed: bool,
}

impl Books {
    pub(super) fn new(budget_bytes: Option<u64>, ttl: Option<Duration>, can_load: bool) -> Self {
        Self { entries: BTreeMap::new(), budget_bytes, ttl, can_load, is_closed: false }
    }

    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Adds a model that is not loaded.
    pub(super) fn offer(&mut self, offer: Offer, now: Instant) {
        let entry = self.entries.entry(offer.id).or_insert_with(|| Entry::new(Slot::Unloaded, now));
        entry.tasks = offer.tasks;
        entry.bytes = offer.bytes;
    }

    /// Puts a model into a state; what it was before is forgotten.
    pub(super) fn set(&mut self, id: String, slot: Slot, now: Instant) {
        self.entries.entry(id).or_insert_with(|| Entry::new(Slot::Unloaded, now)).move_to(slot, now);
    }

    /// Makes a model one that is never unloaded.
    pub(super) fn keep(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.stays = true;
        }
    }

    /// A request asks for a model.
    pub(super) fn request(&mut self, id: &str, now: Instant) -> Answer {
        if self.is_closed {
            return Answer::Refused(ApiError::Draining);
        }
        let can_load = self.can_load;
        let unavailable = || Answer::Refused(ApiError::ModelUnavailable(id.to_owned()));
        let Some(entry) = self.entries.get_mut(id) else { return unavailable() };
        match &entry.slot {
            Slot::Ready(engine) => match engine.status().state {
                EngineState::Ready => {
                    let engine = engine.clone();
                    entry.open += 1;
                    Answer::Granted(engine)
                }
                EngineState::Starting => Answer::Warming(engine.clone()),
                EngineState::Draining => Answer::Refused(ApiError::Draining),
                EngineState::Stopped | EngineState::Dead(_) => unavailable(),
            },
            Slot::Loading | Slot::Unloading => Answer::Wait,
            Slot::Failed(_) if !can_load || now.duration_since(entry.used_at) < RETRY_AFTER => unavailable(),
            Slot::Unloaded if !can_load => unavailable(),
            Slot::Unloaded | Slot::Failed(_) => self.begin_load(id, now),
        }
    }

    /// Reserves room for a model, at the cost of those unused for longest.
    fn begin_load(&mut self, id: &str, now: Instant) -> Answer {
        let need = self.entries.get(id).map_or(0, |entry| entry.bytes);
        let leaving = match self.budget_bytes {
            None => Vec::new(),
            Some(budget) => match self.room_for(id, need, budget) {
                Ok(leaving) => leaving,
                Err(error) => return Answer::Refused(error),
            },
        };
        let leaving = leaving.into_iter().filter_map(|id| self.take_off(&id, now)).collect();
        self.set(id.to_owned(), Slot::Loading, now);
        Answer::Load(leaving)
    }

    /// Which models must go so that `need` bytes more fit.
    fn room_for(&self, id: &str, need: u64, budget: u64) -> Result<Vec<String>, ApiError> {
        let (leaving, used) = self.to_leave(need, budget);
        if used.saturating_add(need) <= budget {
            return Ok(leaving);
        }
        let staying = self.entries.values().filter(|entry| entry.stays && entry.takes_memory());
        let staying: u64 = staying.map(|entry| entry.bytes).sum();
        let may_fit_later = staying.saturating_add(need) <= budget;
        Err(ApiError::NoRoom { id: id.to_owned(), need, budget, used, may_fit_later })
    }

    /// Unused models, those unused for longest first, whose leaving would make room for `need` bytes more, and the bytes
    /// that would then be taken.
    fn to_leave(&self, need: u64, budget: u64) -> (Vec<String>, u64) {
        let loaded = self.entries.values().filter(|entry| entry.takes_memory());
        let mut used: u64 = loaded.map(|entry| entry.bytes).sum();
        let mut idle: Vec<_> =
            self.entries.iter().filter(|(_, entry)| entry.dispensable().is_some()).collect();
        idle.sort_by_key(|(_, entry)| entry.used_at);
        let mut leaving = Vec::new();
        for (id, entry) in idle {
            if used.saturating_add(need) <= budget {
                break;
            }
            used = used.saturating_sub(entry.bytes);
            leaving.push(id.clone());
        }
        (leaving, used)
    }

    /// Takes a loaded model off the books; its engine is to be stopped.
    fn take_off(&mut self, id: &str, now: Instant) -> Option<Leaving> {
        let entry = self.entries.get_mut(id)?;
        let engine = entry.dispensable()?.clone();
        entry.move_to(Slot::Unloading, now);
        Some((id.to_owned(), engine))
    }

    /// A request or session that was granted a model has ended.
    pub(super) fn give_back(&mut self, id: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.open = entry.open.saturating_sub(1);
            entry.used_at = now;
        }
    }

    /// A load has ended. Gives the engine back if nobody wants it any more.
    pub(super) fn settle(
        &mut self,
        id: &str,
        loaded: Result<Engine, String>,
        now: Instant,
    ) -> Option<Engine> {
        match loaded {
            Ok(engine) if self.is_closed => return Some(engine),
            Ok(engine) => self.set(id.to_owned(), Slot::Ready(engine), now),
            Err(reason) => self.set(id.to_owned(), Slot::Failed(reason), now),
        }
        None
    }

    /// An engine that left has stopped.
    pub(super) fn left(&mut self, id: &str, now: Instant) {
        self.set(id.to_owned(), Slot::Unloaded, now);
    }

    /// Takes off the books what nobody has used for long, and what is too much: a model may turn out larger than it was
    /// expected to be.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Leaving> {
        let is_old = |entry: &Entry| self.ttl.is_some_and(|ttl| now.duration_since(entry.used_at) >= ttl);
        let old = self.entries.iter().filter(|(_, entry)| is_old(entry));
        let mut ids: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        ids.extend(self.budget_bytes.map(|budget| self.to_leave(0, budget).0).unwrap_or_default());
        // What is in use or has been taken off stays as it is.
        ids.into_iter().filter_map(|id| self.take_off(&id, now)).collect()
    }

    /// Loads nothing any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }
}
