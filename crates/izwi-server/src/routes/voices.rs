//! `GET` and `POST /v1/audio/voices`, `GET` and `DELETE /v1/audio/voices/{id}`: the models' own voices and saved ones.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use izwi_core::engine::{Engine, ReferenceAudio, RequestId, Task, Voice, executor};
use izwi_hub::{SavedVoice, VoiceNotes, VoiceStore};
use izwi_types::{Gender, excerpt, suggest};

use crate::dto::listing::{VoiceDeleted, VoiceList, VoiceObject, VoiceQuery, VoiceRequest};
use crate::dto::schemas::{VOICE, VOICE_DELETED};
use crate::error::ApiError;
use crate::extract::{ApiPath, ApiQuery, non_blank};
use crate::openapi::{SavedVoiceRefusals, VoiceCreationRefusals, VoiceForm, VoiceRefusals};
use crate::registry::{Entry, Slot};
use crate::state::AppState;
use crate::upload::Upload;
use crate::voices;
use crate::voices::{blocking, saved_names, stored};

/// Voices
///
/// Voices of the requested model, or of all installed TTS models, the default one first; then the saved voices that it, or
/// any, accepts. Loads no model: a page of another site can send a GET without reading the answer.
#[utoipa::path(
    get,
    path = "/v1/audio/voices",
    tag = "speech",
    params(VoiceQuery),
    responses((status = 200, description = "The voices.", body = VoiceList), VoiceRefusals),
)]
pub async fn list(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<VoiceQuery>,
) -> Result<Json<VoiceList>, ApiError> {
    let chosen = match &query.model {
        Some(model) => Some(speaker(&state, Some(model)).await?),
        None => None,
    };
    let model = chosen.as_ref().map(|speaker| speaker.model.clone());
    let speakers = match chosen {
        Some(speaker) => vec![speaker],
        None => speakers(&state).await,
    };
    let mut listed: Vec<VoiceObject> =
        speakers.iter().flat_map(|speaker| speaker.describe_all(state.started_unix_s())).collect();
    if let Some(store) = state.voices() {
        let voices = saved(store, &loaded_tts(&state)).await?;
        let fits = |voice: &VoiceObject| model.as_ref().is_none_or(|model| voice.models.contains(model));
        listed.extend(voices.into_iter().filter(fits));
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
    let speaker = speaker(&state, query.model.as_deref()).await?;
    let own = speaker.voices.iter().find(|voice| voice.id == id);
    if let Some(store) = state.voices().filter(|_| own.is_none())
        && let Some((voice, pack)) = stored(store, &id).await?
    {
        return Ok(Json(describe_saved(voice, &pack, &loaded_tts(&state)).await));
    }
    match own
        .or_else(|| voices::meant(&id, &speaker.voices))
        .or_else(|| voices::stand_in(&id, &speaker.voices))
    {
        Some(voice) => Ok(Json(speaker.describe(voice, state.started_unix_s()))),
        None => {
            let own = speaker.voices.iter().map(|voice| voice.id.clone());
            let known: Vec<String> = own.chain(saved_names(state.voices()).await?).collect();
            let hint = suggest(&id, "voices", known.iter().map(String::as_str));
            Err(ApiError::VoiceNotFound { id: excerpt(&id), model: speaker.model, hint })
        }
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

/// A TTS model and the voices of its own, the default first.
struct Speaker {
    model: String,
    voices: Vec<Voice>,
}

impl Speaker {
    fn of(engine: &Engine) -> Self {
        let profile = engine.profile();
        Self { model: profile.model.clone(), voices: profile.info.voices.clone() }
    }

    /// The speaker of a model that is not loaded, of its files; `None` where it has none here.
    async fn of_files(state: &AppState, model: &str) -> Option<Self> {
        let (store, name) = (state.pulls().store().ok()?.clone(), model.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            store.installed(&name).ok()?;
            let voices = executor::installed_voices(&store, &name);
            voices.inspect_err(|error| tracing::warn!(model = name, %error, "voices are not listed")).ok()
        });
        Some(Self { model: model.to_owned(), voices: read.await.ok().flatten()? })
    }

    fn describe_all(&self, started_unix_s: u64) -> impl Iterator<Item = VoiceObject> {
        self.voices.iter().map(move |voice| self.describe(voice, started_unix_s))
    }

    fn describe(&self, voice: &Voice, started_unix_s: u64) -> VoiceObject {
        VoiceObject {
            id: voice.id.clone(),
            object: VOICE,
            kind: "audio_sample",
            name: voice.id.clone(),
            created_at: started_unix_s,
            language: Some(voice.language.clone()),
            gender: voice.gender.map(Gender::name),
            description: voice.description.clone(),
            model: Some(self.model.clone()),
            default: self.voices.first().is_some_and(|first| first.id == voice.id),
            owned_by: "izwi",
            models: vec![self.model.clone()],
            text: None,
        }
    }
}

/// The speaker of a model, or of the default one. Loads none.
async fn speaker(state: &AppState, model: Option<&str>) -> Result<Speaker, ApiError> {
    let (id, entry) = state.registry().find(model.unwrap_or_else(|| state.registry().default_tts()))?;
    if entry.tasks.contains(&Task::Tts)
        && entry.slot.readiness(&id).is_err()
        && let Some(speaker) = Speaker::of_files(state, &id).await
    {
        return Ok(speaker);
    }
    Ok(Speaker::of(&*state.lease_loaded(Some(&id), Task::Tts).await?))
}

/// The speakers of all TTS models that are installed or loaded, the default model's first.
async fn speakers(state: &AppState) -> Vec<Speaker> {
    let mut entries: Vec<(String, Entry)> = state.registry().entries().into_iter().collect();
    entries.sort_by_key(|(id, _)| id != state.registry().default_tts());
    let mut speakers = Vec::new();
    for (id, entry) in entries {
        match entry.slot.readiness(&id) {
            Ok(engine) if engine.profile().info.tasks.contains(&Task::Tts) => {
                speakers.push(Speaker::of(engine));
            }
            Err(_) if entry.tasks.contains(&Task::Tts) => {
                speakers.extend(Speaker::of_files(state, &id).await);
            }
            Ok(_) | Err(_) => {}
        }
    }
    speakers
}

fn loaded_tts(state: &AppState) -> Vec<Engine> {
    let tts_engine = |(id, slot): (String, Slot)| {
        let engine = slot.readiness(&id).ok()?.clone();
        engine.profile().info.tasks.contains(&Task::Tts).then_some(engine)
    };
    state.registry().snapshot().into_iter().filter_map(tts_engine).collect()
}

/// The saved voices whose files can be read.
pub async fn saved(store: &VoiceStore, engines: &[Engine]) -> Result<Vec<VoiceObject>, ApiError> {
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

/// Unix time of an RFC 3339 time; 0 if it is none.
fn unix_s(time: &str) -> u64 {
    let since = humantime::parse_rfc3339(time).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
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
        gender: None,
        description: format!("saved voice of the family {}", voice.family),
        model: voice.made_by,
        default: false,
        owned_by: "user",
        models,
        text: voice.text,
    }
}
