//! What the server tells: its state, and the models and voices to choose from.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use reqwest::Client;
use serde::Deserialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::running_server::Health;
use crate::web_socket::Place;

/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(3);
/// A server answers within that, also while it computes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions after which models and voices are asked for again, though the state of no model has changed.
const CATALOGUE_EVERY: u32 = 20;

/// A server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// The word of `/health`, with its reason.
    pub(super) status: String,
    /// Models that are loaded.
    pub(super) loaded: Vec<String>,
    pub(super) catalogue: Arc<Catalogue>,
}

/// What there is to choose from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Catalogue {
    pub(super) models: Vec<Model>,
    pub(super) voices: Vec<Voice>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Model {
    pub(super) id: String,
    #[serde(default)]
    pub(super) tasks: Vec<String>,
    #[serde(default)]
    pub(super) default: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Voice {
    pub(super) id: String,
    /// Models that accept it.
    #[serde(default)]
    pub(super) models: Vec<String>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Voices {
    voices: Vec<Voice>,
}

impl Catalogue {
    /// The ids of the models with a task, the default one first.
    pub(super) fn models(&self, task: &str) -> Vec<&str> {
        let does = |model: &&Model| model.tasks.iter().any(|name| name == task);
        let mut models: Vec<&Model> = self.models.iter().filter(does).collect();
        models.sort_by_key(|model| !model.default);
        models.into_iter().map(|model| model.id.as_str()).collect()
    }

    /// The voices of a model.
    pub(super) fn voices(&self, model: &str) -> Vec<&str> {
        let fits = |voice: &&Voice| voice.models.iter().any(|name| name == model);
        self.voices.iter().filter(fits).map(|voice| voice.id.as_str()).collect()
    }
}

/// Asks the server again and again, at once when `now` is notified, and sends what it tells; `None` if none answers. Ends with
/// the receiver.
pub(super) async fn watch(place: Place, client: Client, now: Arc<Notify>, told: mpsc::Sender<Option<Seen>>) {
    let mut known: Option<(Health, Arc<Catalogue>)> = None;
    for round in 0_u32.. {
        let health = timeout(PATIENCE, health(&place, &client)).await;
        let seen = match health {
            Ok(Ok(health)) => {
                let is_known = known.as_ref().is_some_and(|(before, _)| states(before) == states(&health));
                if !is_known || round.is_multiple_of(CATALOGUE_EVERY) {
                    let asked = timeout(PATIENCE, catalogue(&place, &client)).await;
                    // Without an answer, or without the key, there is nothing to choose from.
                    let catalogue = asked.ok().and_then(Result::ok).unwrap_or_default();
                    known = Some((health.clone(), Arc::new(catalogue)));
                }
                known.as_ref().map(|(_, catalogue)| Seen::of(&health, Arc::clone(catalogue)))
            }
            Ok(Err(_)) | Err(_) => {
                known = None;
                None
            }
        };
        if told.send(seen).await.is_err() {
            return;
        }
        // The time is over, or somebody asks.
        let _ = timeout(INTERVAL, now.notified()).await;
    }
}

impl Seen {
    fn of(health: &Health, catalogue: Arc<Catalogue>) -> Self {
        let loaded = health.models.iter().filter(|(_, model)| model.state == "ready");
        let status = match &health.reason {
            Some(reason) => format!("{}: {reason}", health.status),
            None => health.status.clone(),
        };
        Self { status, loaded: loaded.map(|(id, _)| id.clone()).collect(), catalogue }
    }
}

/// The models and their states.
fn states(health: &Health) -> Vec<(&String, &String)> {
    health.models.iter().map(|(id, model)| (id, &model.state)).collect()
}

async fn health(place: &Place, client: &Client) -> Result<Health> {
    place.answer(client.get(place.url("/health"))).await
}

async fn catalogue(place: &Place, client: &Client) -> Result<Catalogue> {
    let models: Models = place.answer(client.get(place.url("/v1/models"))).await?;
    let voices: Voices = place.answer(client.get(place.url("/v1/audio/voices"))).await?;
    Ok(Catalogue { models: models.data, voices: voices.voices })
}
