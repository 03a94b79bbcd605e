//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::State;

use crate::dto::listing::{ModelList, ModelObject};
use crate::error::ApiError;
use crate::extract::ApiPath;
use crate::registry::Slot;
use crate::state::AppState;

pub(super) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let data =
        state.registry().snapshot().into_iter().map(|(id, slot)| describe(&state, id, &slot)).collect();
    Json(ModelList { object: "list", data })
}

pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<ModelObject>, ApiError> {
    let (id, slot) = state.registry().find(&id)?;
    Ok(Json(describe(&state, id, &slot)))
}

fn describe(state: &AppState, id: String, slot: &Slot) -> ModelObject {
    let profile = match slot {
        Slot::Ready(engine) => Some(engine.profile()),
        Slot::Loading | Slot::Failed(_) => None,
    };
    ModelObject {
        object: "model",
        created: state.started_unix_s(),
        owned_by: "izwi",
        state: slot.readiness(&id).map_or_else(|unready| unready.code, |_| "ready"),
        default: id == state.registry().default_tts(),
        tasks: profile.map(|p| p.tasks.iter().map(|task| task.label()).collect()).unwrap_or_default(),
        sample_rate: profile.map(|profile| profile.sample_rate),
        id,
    }
}
