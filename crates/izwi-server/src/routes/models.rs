//! `GET /v1/models`, `GET /v1/audio/models`, `GET` and `DELETE /v1/models/{id}`, and `POST` to `load` and `unload` of a model.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use izwi_core::engine::{Placement, Task};
use izwi_types::excerpt;

use crate::dialect::Dialects;
use crate::dto::listing::{AudioModelList, ModelDeleted, ModelList, ModelObject};
use crate::error::ApiError;
use crate::extract::ApiPath;
use crate::openapi::{DeletionRefusals, LoadRefusals, UnknownModelRefusals, UnloadRefusals};
use crate::registry::{Entry, Slot};
use crate::state::AppState;

/// Models
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, description = "All models.", body = ModelList)))]
pub(super) async fn list(
    State(state): State<AppState>,
    Extension(dialects): Extension<Dialects>,
    headers: HeaderMap,
) -> Response {
    state.discover_models().await;
    let of_dialect = dialects.iter().find_map(|dialect| dialect.models(&state, &headers));
    if let Some(response) = of_dialect {
        return response;
    }
    let entries = state.registry().entries();
    let data = entries.into_iter().map(|(id, entry)| describe(&state, id, &entry)).collect();
    Json(ModelList { object: "list", data }).into_response()
}

/// Models that speak
///
/// Clients show this list where a voice is chosen.
#[utoipa::path(
    get,
    path = "/v1/audio/models",
    tag = "models",
    responses((status = 200, description = "The models with the task `tts`.", body = AudioModelList)),
)]
pub(super) async fn list_speaking(State(state): State<AppState>) -> Json<AudioModelList> {
    state.discover_models().await;
    let speaks = |entry: &Entry| entry.tasks.is_empty() || entry.tasks.contains(&Task::Tts);
    let entries = state.registry().entries().into_iter().filter(|(_, entry)| speaks(entry));
    let models = entries.map(|(id, entry)| describe(&state, id, &entry)).collect();
    Json(AudioModelList { object: "list", models })
}

// example: route
/// One model
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "models",
    params(("id" = String, Path, description = "Id or alias of a model.", example = "tts-1")),
    responses((status = 200, description = "The model.", body = ModelObject), UnknownModelRefusals),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<ModelObject>, ApiError> {
    let (id, entry) = state.registry().find(&id)?;
    Ok(Json(describe(&state, id, &entry)))
}
// end of example

/// Load a model
///
/// Loads the model into memory, as its first request would, and answers once it takes requests.
#[utoipa::path(
    post,
    path = "/v1/models/{id}/load",
    tag = "models",
    params(("id" = String, Path, description = "Id or alias of a model.", example = "tts-1")),
    responses((status = 200, description = "The loaded model.", body = ModelObject), LoadRefusals),
)]
pub(super) async fn load(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<ModelObject>, ApiError> {
    let (id, _) = state.registry().find(&id)?;
    state.load(&id).await?;
    let (id, entry) = state.registry().find(&id)?;
    Ok(Json(describe(&state, id, &entry)))
}

/// Unload a model
///
/// Frees the memory of a model that no request uses. It is loaded again when a request names it. Default models stay
/// loaded.
#[utoipa::path(
    post,
    path = "/v1/models/{id}/unload",
    tag = "models",
    params(("id" = String, Path, description = "Id or alias of a model.", example = "tts-1")),
    responses((status = 200, description = "The model.", body = ModelObject), UnloadRefusals),
)]
pub(super) async fn unload(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<ModelObject>, ApiError> {
    let (id, _) = state.registry().find(&id)?;
    state.registry().unload_now(&id).await?;
    let (id, entry) = state.registry().find(&id)?;
    Ok(Json(describe(&state, id, &entry)))
}

/// Delete a model
///
/// Unloads the model and removes its files from the model store; a pull brings it back. Default models stay, and models
/// of `models_dir`, which other programs install.
#[utoipa::path(
    delete,
    path = "/v1/models/{id}",
    tag = "models",
    params(("id" = String, Path, description = "Id of a model, not an alias.")),
    responses((status = 200, description = "It is removed.", body = ModelDeleted), DeletionRefusals),
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<ModelDeleted>, ApiError> {
    let (found, _) = state.registry().find(&id)?;
    if found != id {
        let message = format!("id '{}' is another name of '{found}'; name the model itself", excerpt(&id));
        return Err(ApiError::invalid("id", message));
    }
    if !state.config().allow_pull {
        return Err(ApiError::PullForbidden(id));
    }
    let store = state.pulls().store()?.clone();
    if state.pulls().jobs().get(&id).is_some_and(|pull| pull.failure.is_none()) {
        return Err(ApiError::ModelInUse { id, reason: "it is being pulled; try again when that has ended" });
    }
    let name = id.clone();
    let remove = move || {
        store.remove(&name).map_err(|error| {
            ApiError::invalid("id", format!("model '{name}' cannot be deleted: {error}; see `izwi rm`"))
        })
    };
    state.registry().withdraw(&id, remove).await?;
    tracing::info!(model = id, "model deleted");
    Ok(Json(ModelDeleted { id, object: "model", deleted: true }))
}

fn describe(state: &AppState, id: String, entry: &Entry) -> ModelObject {
    let profile = match &entry.slot {
        Slot::Ready(engine) => Some(engine.profile()),
        Slot::Unloaded | Slot::Loading | Slot::Unloading => None,
        Slot::Failed(_) | Slot::Restarting { .. } | Slot::GivenUp(_) => None,
    };
    let is_remote =
        matches!(&entry.slot, Slot::Ready(engine) if matches!(engine.placement(), Placement::Remote(_)));
    let registry = state.registry();
    ModelObject {
        object: "model",
        created: state.started_unix_s(),
        owned_by: if is_remote { "remote" } else { "izwi" },
        state: entry.slot.readiness(&id).map_or_else(|unready| unready.code, |_| "ready"),
        default: id == registry.default_tts() || registry.default_asr() == Some(&id),
        tasks: entry.tasks.iter().map(|task| task.name()).collect(),
        sample_rate: profile.map(|profile| profile.info.sample_rate_hz),
        languages: profile.map(|profile| profile.info.languages.clone()).unwrap_or_default(),
        translates: profile.map(|profile| profile.info.translates),
        aligns_text: profile.map(|profile| profile.info.aligns_text),
        clones_voices: profile.map(|profile| profile.info.clones_voices),
        id,
    }
}
