//! Voices, models and the user, in the dialect's shapes. Loads no model.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use izwi_core::engine::Task;
use izwi_server::dto::listing::{VoiceObject, VoiceQuery};
use izwi_server::extract::{ApiPath, ApiQuery, check_range};
use izwi_server::openapi::VoiceRefusals;
use izwi_server::routes;
use izwi_server::{ApiError, AppState, Slot};
use izwi_types::{excerpt, suggest};

use super::api::{Language, Model, Subscription, User, Voice, Voices, VoicesPage, VoicesQuery};
use super::is_hosted_id;

/// Voices of a page without `page_size`, and the range of that.
const DEFAULT_PAGE: usize = 10;
const PAGE: std::ops::RangeInclusive<usize> = 1..=100;

/// Voices, as ElevenLabs lists them
#[utoipa::path(
    get,
    path = "/v1/voices",
    tag = "dialects",
    responses((status = 200, description = "The voices.", body = Voices), VoiceRefusals),
)]
pub(super) async fn voices(State(state): State<AppState>) -> Result<Json<Voices>, ApiError> {
    Ok(Json(Voices { voices: all(state).await? }))
}

/// A page of voices, as ElevenLabs lists them
#[utoipa::path(
    get,
    path = "/v2/voices",
    tag = "dialects",
    params(VoicesQuery),
    responses((status = 200, description = "The voices of a page.", body = VoicesPage), VoiceRefusals),
)]
pub(super) async fn voices_page(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<VoicesQuery>,
) -> Result<Json<VoicesPage>, ApiError> {
    let size = check_range("page_size", query.page_size.unwrap_or(DEFAULT_PAGE), &PAGE)?;
    let start = match query.next_page_token.as_deref().filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => token.parse::<usize>().map_err(|_| {
            let message = format!("next_page_token '{}' is of no page; leave it out", excerpt(token));
            ApiError::invalid("next_page_token", message)
        })?,
    };
    let wanted = query.search.unwrap_or_default().to_lowercase();
    let found: Vec<Voice> = all(state)
        .await?
        .into_iter()
        .filter(|voice| format!("{} {}", voice.name, voice.description).to_lowercase().contains(&wanted))
        .collect();
    let total_count = found.len();
    let end = start.saturating_add(size);
    let voices = found.into_iter().skip(start).take(size).collect();
    let has_more = end < total_count;
    Ok(Json(VoicesPage { voices, has_more, total_count, next_page_token: has_more.then(|| end.to_string()) }))
}

/// A voice, as ElevenLabs shows it
///
/// An id of the hosted service shows the default voice, under that id.
#[utoipa::path(
    get,
    path = "/v1/voices/{voice_id}",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice.")),
    responses((status = 200, description = "The voice.", body = Voice), VoiceRefusals),
)]
pub(super) async fn voice(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<Voice>, ApiError> {
    let model = state.registry().default_tts().to_owned();
    let mut known = all(state).await?;
    if let Some(at) = known.iter().position(|voice| voice.voice_id == id) {
        return Ok(Json(known.swap_remove(at)));
    }
    if is_hosted_id(&id) && !known.is_empty() {
        return Ok(Json(Voice { voice_id: id, ..known.swap_remove(0) }));
    }
    let names = known.iter().map(|voice| voice.voice_id.as_str());
    Err(ApiError::VoiceNotFound { hint: suggest(&id, "voices", names), id: excerpt(&id), model })
}

async fn all(state: AppState) -> Result<Vec<Voice>, ApiError> {
    let Json(list) = routes::voices::list(State(state), ApiQuery(VoiceQuery::default())).await?;
    // A voice has no other key here than its id.
    let mut known = BTreeSet::new();
    let voices = list.voices.into_iter().filter(|voice| known.insert(voice.id.clone()));
    Ok(voices.map(describe).collect())
}

fn describe(voice: VoiceObject) -> Voice {
    let language = voice.language.map(|language| ("language", language));
    let labels = language.into_iter().chain(voice.gender.map(|gender| ("gender", gender.to_owned())));
    Voice {
        voice_id: voice.id,
        name: voice.name,
        category: if voice.owned_by == "user" { "cloned" } else { "premade" },
        labels: labels.collect(),
        description: voice.description,
        preview_url: None,
        high_quality_base_model_ids: voice.models,
        available_for_tiers: Vec::new(),
        is_owner: voice.owned_by == "user",
    }
}

/// `GET /v1/models` for clients of the dialect: the TTS models.
pub(crate) fn models(state: &AppState) -> Vec<Model> {
    let entries = state.registry().entries().into_iter();
    let speakers = entries.filter(|(_, entry)| entry.tasks.is_empty() || entry.tasks.contains(&Task::Tts));
    let models = speakers.map(|(id, entry)| {
        let languages = match &entry.slot {
            Slot::Ready(engine) => engine.profile().info.languages.clone(),
            _ => Vec::new(),
        };
        let is_default = id == state.registry().default_tts();
        Model {
            name: id.clone(),
            model_id: id,
            description: if is_default { "the default model" } else { "" }.to_owned(),
            can_do_text_to_speech: true,
            can_do_voice_conversion: false,
            can_be_finetuned: false,
            can_use_style: false,
            can_use_speaker_boost: false,
            serves_pro_voices: false,
            requires_alpha_access: false,
            token_cost_factor: 0.0,
            maximum_text_length_per_request: state.config().max_input_chars,
            languages: languages
                .into_iter()
                .map(|name| Language { language_id: name.clone(), name })
                .collect(),
        }
    });
    models.collect()
}

/// The user, for clients of ElevenLabs
///
/// Who asks is not known, and nothing is counted.
#[utoipa::path(
    get,
    path = "/v1/user",
    tag = "dialects",
    responses((status = 200, description = "The user.", body = User)),
)]
pub(super) async fn user() -> Json<User> {
    Json(User {
        user_id: "izwi",
        workspace_id: "izwi",
        subscription: free(),
        is_new_user: false,
        can_use_delayed_payment_methods: false,
        is_onboarding_completed: true,
        is_onboarding_checklist_completed: true,
        created_at: 0,
        seat_type: "workspace_admin",
    })
}

/// The subscription, for clients of ElevenLabs
#[utoipa::path(
    get,
    path = "/v1/user/subscription",
    tag = "dialects",
    responses((status = 200, description = "The subscription.", body = Subscription)),
)]
pub(super) async fn subscription() -> Json<Subscription> {
    Json(free())
}

/// Some clients stop at the limit of characters: it is never reached.
fn free() -> Subscription {
    Subscription {
        tier: "free",
        status: "active",
        character_count: 0,
        character_limit: i32::MAX as u64,
        can_extend_character_limit: false,
        allowed_to_extend_character_limit: false,
        voice_slots_used: 0,
        voice_limit: 0,
        professional_voice_slots_used: 0,
        professional_voice_limit: 0,
        can_extend_voice_limit: false,
        can_use_instant_voice_cloning: false,
        can_use_professional_voice_cloning: false,
    }
}
