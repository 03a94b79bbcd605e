//! `GET /v1/audio/voices` and `GET /v1/audio/voices/{id}`.

use axum::Json;
use axum::extract::State;
use izwi_core::engine::executor::VoiceInfo;
use izwi_core::engine::{Engine, TaskType};

use crate::dto::listing::{VoiceList, VoiceObject, VoiceQuery};
use crate::error::ApiError;
use crate::extract::{ApiPath, ApiQuery};
use crate::near;
use crate::registry::Slot;
use crate::state::AppState;
use crate::voices;

/// Voices of the model asked for, or of all loaded models that speak.
pub(super) async fn list(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<VoiceQuery>,
) -> Result<Json<VoiceList>, ApiError> {
    let voices = match &query.model {
        Some(model) => voices_of(&*state.lease(Some(model), TaskType::Tts).await?),
        None => speakers(&state).iter().flat_map(voices_of).collect(),
    };
    Ok(Json(VoiceList { object: "list", voices }))
}

/// One voice, of the model asked for or of the default one; a name of OpenAI's shows the voice it stands for.
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<VoiceQuery>,
) -> Result<Json<VoiceObject>, ApiError> {
    let engine = state.lease(query.model.as_deref(), TaskType::Tts).await?;
    match voices::resolve(engine.profile(), Some(&id))? {
        Some(voice) => Ok(Json(describe(&engine, voice))),
        None => Err(ApiError::VoiceNotFound {
            id: near::shown(&id),
            model: engine.profile().model.clone(),
            hint: "it has no voices to choose from".to_owned(),
        }),
    }
}

fn speakers(state: &AppState) -> Vec<Engine> {
    let speaker = |(id, slot): (String, Slot)| {
        let engine = slot.readiness(&id).ok()?.clone();
        engine.profile().tasks.contains(&TaskType::Tts).then_some(engine)
    };
    state.registry().snapshot().into_iter().filter_map(speaker).collect()
}

fn voices_of(engine: &Engine) -> Vec<VoiceObject> {
    engine.profile().voices.iter().map(|voice| describe(engine, voice)).collect()
}

fn describe(engine: &Engine, voice: &VoiceInfo) -> VoiceObject {
    let profile = engine.profile();
    VoiceObject {
        id: voice.id.clone(),
        object: "voice",
        name: voice.id.clone(),
        language: voice.language.clone(),
        description: voice.description.clone(),
        model: profile.model.clone(),
        default: profile.voices.first().is_some_and(|first| first.id == voice.id),
    }
}
