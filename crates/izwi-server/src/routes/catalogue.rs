//! `GET /v1/catalogue` and `POST /v1/models/{id}/pull`: the models that can be installed, and their pulls.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use izwi_core::engine::RequestId;
use izwi_hub::ModelStatus;
use izwi_types::{excerpt, suggest};

use crate::dto::catalogue::{CatalogueList, CatalogueObject, PullObject};
use crate::error::ApiError;
use crate::extract::ApiPath;
use crate::openapi::{CatalogueRefusals, PullRefusals};
use crate::pulls::Pull;
use crate::state::AppState;

/// Models that can be installed
///
/// With the progress of the pulls that run. A server without a model store answers with an empty list.
#[utoipa::path(
    get,
    path = "/v1/catalogue",
    tag = "models",
    responses((status = 200, description = "All models.", body = CatalogueList), CatalogueRefusals),
)]
pub(super) async fn list(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
) -> Result<Json<CatalogueList>, ApiError> {
    let Ok(store) = state.pulls().store() else {
        return Ok(Json(CatalogueList { object: "list", data: Vec::new() }));
    };
    let (store, jobs) = (store.clone(), state.pulls().jobs());
    let listing = tokio::task::spawn_blocking(move || {
        let models = store.list().into_iter().filter(|model| !model.manifest.component);
        models.map(|model| describe(&model, jobs.get(&model.manifest.name))).collect()
    });
    let data = listing.await.map_err(|error| ApiError::internal(&error.to_string(), &id))?;
    Ok(Json(CatalogueList { object: "list", data }))
}

/// Pull a model
///
/// Begins to download the model and answers at once; `pull` of the model in `/v1/catalogue` has the progress. A model that
/// is installed can be used without a restart.
#[utoipa::path(
    post,
    path = "/v1/models/{id}/pull",
    tag = "models",
    params(("id" = String, Path, description = "Id of a model of `/v1/catalogue`.")),
    responses((status = 202, description = "The pull runs.", body = PullObject), PullRefusals),
)]
pub(super) async fn pull(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<(StatusCode, Json<PullObject>), ApiError> {
    let store = state.pulls().store()?;
    if store.manifest(&id).is_err() {
        let names = store.manifests().iter().map(|manifest| manifest.name.as_str());
        return Err(ApiError::ModelNotFound { id: excerpt(&id), hint: suggest(&id, "models", names) });
    }
    let (registry, name) = (state.registry().clone(), id.clone());
    let begun = state.pulls().begin(&id, move |store| registry.offer_installed(store, &name))?;
    Ok((StatusCode::ACCEPTED, Json(show(&begun))))
}

fn describe(model: &ModelStatus<'_>, pull: Option<&Pull>) -> CatalogueObject {
    let manifest = model.manifest;
    CatalogueObject {
        id: manifest.name.clone(),
        object: "catalogue.model",
        description: manifest.description.clone(),
        tasks: manifest.tasks.iter().map(|task| task.name()).collect(),
        languages: manifest.languages.clone(),
        licence: manifest.licence.clone(),
        clones_voices: manifest.clones_voices,
        download_bytes: manifest.download_bytes(),
        installed: model.installed,
        bytes: model.bytes,
        pull: pull.map(show),
    }
}

fn show(pull: &Pull) -> PullObject {
    let state = if pull.failure.is_some() { "failed" } else { "running" };
    PullObject {
        state,
        file: pull.file.clone(),
        done_bytes: pull.done_bytes,
        total_bytes: pull.total_bytes,
        message: pull.failure.clone().or_else(|| pull.note.clone()),
    }
}
