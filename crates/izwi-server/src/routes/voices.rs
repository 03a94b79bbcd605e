//! `GET` and `POST /v1/audio/voices`, `GET` and `DELETE /v1/audio/voices/{id}`: the models' own voices and saved ones.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use izwi_core::engine::{Engine, ReferenceAudio, RequestId, Task};
use izwi_hub::{SavedVoice, VoiceNotes, VoiceStore};
use izwi_types::excerpt;

use crate::dto::listing::{
    VOICE, VOICE_DELETED, VoiceDeleted, VoiceList, VoiceObject, VoiceQuery, VoiceRequest,
};
use crate::error::ApiError;
use crate::extract::{ApiPath, ApiQuery, non_blank};
use crate::openapi::{SavedVoiceRefusals, VoiceCreationRefusals, VoiceForm, VoiceRefusals};
use crate::registry::{Lease, Slot};
use crate::state::AppState;
use crate::upload::Upload;
use crate::voices;
use crate::voices::{Voice, blocking, stored};

/// Voices
///
/// Voices of the requested model, or of all loaded TTS models; then the saved voices that it, or any, accepts. Loads no
/// model: a page of another site can send a GET without reading the answer.
#[utoipa::path(
    get,
    path = "/v1/audio/voices",
    tag = "speech",
    params(VoiceQuery),
    responses((status = 200, description = "The voices.", body = VoiceList), VoiceRefusals),
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<VoiceQuery>,
) -> Result<Json<VoiceList>, ApiError> {
    let chosen = match &query.model {
        Some(model) => Some(state.lease_loaded(Some(model), Task::Tts).await?),
        None => None,
    };
    let engines = match &chosen {
        Some(lease) => vec![Engine::clone(lease)],
        None => loaded_tts(&state),
    };
    let mut listed: Vec<VoiceObject> =
        engines.iter().flat_map(|engine| voices_of(engine, state.started_unix_s())).collect();
    if let Some(store) = state.voices() {
        for voice in saved(store, &engines).await? {
            let fits = |lease: &Lease| voice.models.contains(&lease.profile().model);
            if chosen.as_ref().is_none_or(fits) {
                listed.push(voice);
            }
        }
    }
    Ok(Json(VoiceList { object: "list", voices: listed }))
}

/// One voice
///
/// A voice of the requested model or the default one, or a saved voice. An OpenAI name shows the voice it stands for.
#[utoipa::path(
    get,
    path = "/v1/audio/voices/{id}",
    tag = "speech",
    params(("id" = String, Path, description = "Name of a voice.", example = "alloy"), VoiceQuery),
    responses((status = 200, description = "The voice.", body = VoiceObject), VoiceRefusals),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<VoiceQuery>,
) -> Result<Json<VoiceObject>, ApiError> {
    let engine = state.lease_loaded(query.model.as_deref(), Task::Tts).await?;
    let is_own = engine.profile().info.voices.iter().any(|voice| voice.id == id);
    if let Some(store) = state.voices().filter(|_| !is_own)
        && let Some((voice, pack)) = stored(store, &id).await?
    {
        return Ok(Json(describe_saved(voice, &pack, &loaded_tts(&state)).await));
    }
    let found = voices::find(Some(&id), &engine, state.voices()).await?;
    let own = found.as_ref().and_then(|voice| match voice {
        Voice::Own(name) | Voice::StandIn(name) => {
            engine.profile().info.voices.iter().find(|own| own.id == *name)
        }
        Voice::Saved { .. } => None,
    });
    match own {
        Some(voice) => Ok(Json(describe(&engine, voice, state.started_unix_s()))),
        None => Err(ApiError::VoiceNotFound {
            id: excerpt(&id),
            model: engine.profile().model.clone(),
            hint: "the model has no voices".to_owned(),
        }),
    }
}

/// Make a voice of a recording
///
/// Clones the voice of a recording and saves it under a name.
#[utoipa::path(
    post,
    path = "/v1/audio/voices",
    tag = "speech",
    request_body(content(
        (VoiceRequest = "application/json"),
        (VoiceForm = "multipart/form-data"),
    )),
    responses((status = 200, description = "The saved voice.", body = VoiceObject), VoiceCreationRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<VoiceRequest>,
) -> Result<(HeaderMap, Json<VoiceObject>), ApiError> {
    let Upload { fields, recording, ignored, memory } = upload;
    let store = voice_store(&state)?;
    let Some(name) = non_blank(fields.name) else {
        return Err(ApiError::invalid("name", "name is missing; it is required, a-z, 0-9, '.', '_' and '-'"));
    };
    let overwrite = fields.overwrite.unwrap_or(false);
    let text = match (non_blank(fields.ref_text), non_blank(fields.text)) {
        (Some(one), Some(other)) if one != other => {
            return Err(ApiError::invalid("text", "ref_text and text are both given; send one"));
        }
        (one, other) => one.or(other),
    };
    let (checked, wanted) = (store.clone(), name.clone());
    blocking(move || checked.check_free(&wanted, overwrite), "name").await?;

    let engine = state.lease(non_blank(fields.model).as_deref(), Task::Tts).await?;
    check_maker(&engine, &name)?;
    let model = engine.profile().model.clone();
    let notes = VoiceNotes { made_by: Some(model.clone()), text: text.clone() };
    let timbre_only = fields.x_vector_only_mode.unwrap_or(false);
    let made = engine.make_voice(ReferenceAudio { audio: recording.audio, text, timbre_only }).await;
    drop(memory);
    let field = recording.param;
    let pack = made.map_err(|error| ApiError::from_engine(error, &model, &id).about_recording(field))?;
    let store = store.clone();
    let save = move || {
        let saved = store.save(&name, &pack, &notes, overwrite)?;
        Ok((saved, pack))
    };
    let (saved, pack) = blocking(save, "name").await?;
    tracing::info!(voice = saved.name, model, "voice saved");
    Ok((ignored.headers(), Json(describe_saved(saved, &pack.into(), &loaded_tts(&state)).await)))
}

/// Remove a saved voice
#[utoipa::path(
    delete,
    path = "/v1/audio/voices/{id}",
    tag = "speech",
    params(("id" = String, Path, description = "Name of a saved voice.", max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]*$")),
    responses((status = 200, description = "It is removed.", body = VoiceDeleted), SavedVoiceRefusals),
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<VoiceDeleted>, ApiError> {
    let (store, name) = (voice_store(&state)?.clone(), id.clone());
    blocking(move || store.remove(&name), "voice").await?;
    tracing::info!(voice = id, "voice removed");
    Ok(Json(VoiceDeleted { id, object: VOICE_DELETED, deleted: true }))
}

fn voice_store(state: &AppState) -> Result<&VoiceStore, ApiError> {
    let message = "this server saves no voices; send ref_audio with each speech request";
    state.voices().ok_or_else(|| ApiError::invalid("voice", message))
}

/// Refuses a model without voice cloning, or with a voice of the same name, which would take precedence.
fn check_maker(engine: &Engine, name: &str) -> Result<(), ApiError> {
    let profile = engine.profile();
    if !profile.info.clones_voices {
        let message = format!(
            "model '{}' does not support voice cloning; choose one that does, see /v1/models",
            profile.model
        );
        return Err(ApiError::invalid("model", message));
    }
    if profile.info.voices.iter().any(|voice| voice.id == name) {
        let message = format!("model '{}' has a voice '{name}' of its own; take another name", profile.model);
        return Err(ApiError::VoiceExists { message });
    }
    Ok(())
}

fn loaded_tts(state: &AppState) -> Vec<Engine> {
    let tts_engine = |(id, slot): (String, Slot)| {
        let engine = slot.readiness(&id).ok()?.clone();
        engine.profile().info.tasks.contains(&Task::Tts).then_some(engine)
    };
    state.registry().snapshot().into_iter().filter_map(tts_engine).collect()
}

/// The saved voices whose files can be read.
pub(crate) async fn saved(store: &VoiceStore, engines: &[Engine]) -> Result<Vec<VoiceObject>, ApiError> {
    let names = store.clone();
    let names = blocking(move || names.names(), "voice").await?;
    let mut listed = Vec::with_capacity(names.len());
    for name in names {
        // One at a time, because packs are large.
        match stored(store, &name).await {
            Ok(Some((voice, pack))) => listed.push(describe_saved(voice, &pack, engines).await),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(voice = name, %error, "a saved voice cannot be read and is not listed")
            }
        }
    }
    Ok(listed)
}

fn voices_of(engine: &Engine, started_unix_s: u64) -> Vec<VoiceObject> {
    engine.profile().info.voices.iter().map(|voice| describe(engine, voice, started_unix_s)).collect()
}

/// Unix time of an RFC 3339 time; 0 if it is none.
fn unix_s(time: &str) -> u64 {
    let since = humantime::parse_rfc3339(time).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

fn describe(engine: &Engine, voice: &izwi_core::engine::Voice, started_unix_s: u64) -> VoiceObject {
    let profile = engine.profile();
    VoiceObject {
        id: voice.id.clone(),
        object: VOICE,
        kind: "audio_sample",
        name: voice.id.clone(),
        created_at: started_unix_s,
        language: Some(voice.language.clone()),
        description: voice.description.clone(),
        model: Some(profile.model.clone()),
        default: profile.info.voices.first().is_some_and(|first| first.id == voice.id),
        owned_by: "izwi",
        models: vec![profile.model.clone()],
        text: None,
    }
}

async fn describe_saved(voice: SavedVoice, pack: &Arc<[u8]>, engines: &[Engine]) -> VoiceObject {
    let mut models = Vec::new();
    for engine in engines {
        if engine.check_voice(Arc::clone(pack)).await.is_ok() {
            models.push(engine.profile().model.clone());
        }
    }
    // A model that is not loaded cannot check the pack; the one that made it accepts it.
    let is_loaded = |model: &String| engines.iter().any(|engine| engine.profile().model == *model);
    models.extend(voice.made_by.iter().filter(|model| !is_loaded(model)).cloned());
    VoiceObject {
        id: voice.name.clone(),
        object: VOICE,
        kind: "audio_sample",
        name: voice.name,
        created_at: unix_s(&voice.created),
        language: None,
        description: format!("saved voice of the family {}", voice.family),
        model: voice.made_by,
        default: false,
        owned_by: "user",
        models,
        text: voice.text,
    }
}
