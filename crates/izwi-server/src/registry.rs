//! The models a server offers: which are there, in which state, and which is the default.
//!
//! Knows engines as handles; loading them is the caller's task.

use std::collections::BTreeMap;

use izwi_core::engine::{Engine, EngineState, TaskType, metrics};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::near;

/// Names of hosted models that stand for the default speaking model.
pub const DEFAULT_ALIASES: [&str; 3] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"];

/// State of one model.
#[derive(Debug, Clone)]
pub enum Slot {
    /// Being loaded.
    Loading,
    /// Loaded; the engine knows whether it is warm and alive.
    Ready(Engine),
    /// Could not be loaded, with the reason.
    Failed(String),
}

/// Why a model takes no requests.
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

/// The models by id. Clones address the same registry, so that models can appear while the server runs.
#[derive(Debug, Clone)]
pub struct Registry {
    default_tts: String,
    slots: watch::Sender<BTreeMap<String, Slot>>,
}

impl Registry {
    /// A registry whose default speaking model is `default_tts`, which counts as loading until it is set.
    pub fn new(default_tts: impl Into<String>) -> Self {
        let default_tts = default_tts.into();
        let slots = BTreeMap::from([(default_tts.clone(), Slot::Loading)]);
        Self { default_tts, slots: watch::Sender::new(slots) }
    }

    /// Puts a model into a state, replacing the one it had.
    pub fn set(&self, id: impl Into<String>, slot: Slot) {
        if let Slot::Ready(engine) = &slot {
            metrics::set_build_info(&engine.profile().device);
        }
        let id = id.into();
        self.slots.send_modify(|slots| drop(slots.insert(id, slot)));
    }

    /// Id of the default speaking model.
    pub fn default_tts(&self) -> &str {
        &self.default_tts
    }

    /// All models, by id.
    pub fn snapshot(&self) -> BTreeMap<String, Slot> {
        self.slots.borrow().clone()
    }

    /// Engines that were loaded.
    pub(crate) fn engines(&self) -> Vec<Engine> {
        let engine = |slot: &Slot| match slot {
            Slot::Ready(engine) => Some(engine.clone()),
            Slot::Loading | Slot::Failed(_) => None,
        };
        self.slots.borrow().values().filter_map(engine).collect()
    }

    /// The real id that `id` or an alias stands for.
    pub(crate) fn resolve<'a>(&'a self, id: &'a str) -> &'a str {
        if DEFAULT_ALIASES.contains(&id) && !self.slots.borrow().contains_key(id) {
            &self.default_tts
        } else {
            id
        }
    }

    /// State of the model that `id` or an alias names.
    pub(crate) fn find(&self, id: &str) -> Result<(String, Slot), ApiError> {
        let real = self.resolve(id);
        let slots = self.slots.borrow();
        match slots.get(real) {
            Some(slot) => Ok((real.to_owned(), slot.clone())),
            None => {
                let hint = near::hint(id, slots.keys().map(String::as_str));
                Err(ApiError::ModelNotFound { id: near::shown(id), hint })
            }
        }
    }

    /// The engine of a speaking model; the default one without an id.
    pub(crate) fn speaker(&self, id: Option<&str>) -> Result<Engine, ApiError> {
        let (id, slot) = self.find(id.unwrap_or(&self.default_tts))?;
        let engine = slot.readiness(&id).map_err(|unready| match unready.code {
            "loading" => ApiError::ModelLoading(id.clone()),
            "draining" => ApiError::Draining,
            _ => ApiError::ModelUnavailable(id.clone()),
        })?;
        if !engine.profile().tasks.contains(&TaskType::Tts) {
            let message = format!("model '{id}' does not speak; choose one that does, see /v1/models");
            return Err(ApiError::invalid("model", message));
        }
        Ok(engine.clone())
    }

    /// Whether the default model can take requests.
    pub(crate) fn readiness(&self) -> Result<(), Unready> {
        match self.slots.borrow().get(&self.default_tts) {
            Some(slot) => slot.readiness(&self.default_tts).map(|_| ()),
            None => {
                Err(Unready { code: "failed", reason: format!("model '{}' is missing", self.default_tts) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_stand_for_the_default_model() {
        let registry = Registry::new("harbour");
        for alias in DEFAULT_ALIASES {
            assert_eq!(registry.find(alias).unwrap().0, "harbour");
        }
        let error = registry.find("harbuor").unwrap_err();
        assert!(error.to_string().contains("harbour"), "{error}");
    }

    #[test]
    fn readiness_says_why_not() {
        let registry = Registry::new("m");
        assert_eq!(registry.readiness().unwrap_err().code, "loading");
        registry.set("m", Slot::Failed("no weights".to_owned()));
        let unready = registry.readiness().unwrap_err();
        assert_eq!(unready.code, "failed");
        assert!(unready.reason.contains("no weights"));
    }
}
