//! `GET` and `POST /v1/lexicons`, `GET` and `DELETE /v1/lexicons/{id}`: how users want words said.

use axum::Json;
use axum::extract::{Request, State};
use izwi_core::engine::{check_lexicon, read_lexicon};
use izwi_hub::SavedLexicon;
use izwi_types::{Lexicon, excerpt, languages};

use crate::dto::lexicon::{LexiconDeleted, LexiconList, LexiconObject, LexiconRequest};
use crate::dto::schemas::LEXICON_DELETED;
use crate::error::ApiError;
use crate::extract::{ApiPath, non_blank, parse_json, required};
use crate::lexicons;
use crate::openapi::{LexiconCreationRefusals, LexiconRefusals};
use crate::state::AppState;
use crate::upload;

/// Lexicons
///
/// The saved lexicons, without their words.
#[utoipa::path(
    get,
    path = "/v1/lexicons",
    tag = "speech",
    responses((status = 200, description = "The lexicons.", body = LexiconList), LexiconRefusals),
)]
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<LexiconList>, ApiError> {
    let saved = lexicons::all(&state).await?.into_iter();
    let lexicons = saved.map(|saved| LexiconObject { entries: None, ..saved.into() }).collect();
    Ok(Json(LexiconList { object: "list", lexicons }))
}

/// One lexicon
///
/// A saved lexicon and its words.
#[utoipa::path(
    get,
    path = "/v1/lexicons/{id}",
    tag = "speech",
    params(("id" = String, Path, description = "Name of a lexicon.")),
    responses((status = 200, description = "The lexicon.", body = LexiconObject), LexiconRefusals),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<LexiconObject>, ApiError> {
    Ok(Json(lexicons::find(&state, id).await?.into()))
}

/// Save a lexicon
///
/// Words and how they are said, in speech that names the lexicon, in that of some voices, or in all.
#[utoipa::path(
    post,
    path = "/v1/lexicons",
    tag = "speech",
    request_body = LexiconRequest,
    responses((status = 200, description = "The saved lexicon.", body = LexiconObject), LexiconCreationRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    request: Request,
) -> Result<Json<LexiconObject>, ApiError> {
    let body: LexiconRequest = parse_json(&upload::read_plain_json(request, &state).await?)?;
    let name = required("name", non_blank(body.name))?;
    let lexicon = match (body.entries, non_blank(body.text)) {
        (Some(entries), None) => Lexicon { language: None, entries },
        (None, Some(text)) => {
            read_lexicon(&text).map_err(|error| ApiError::invalid("text", error.message))?
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("text", "entries and text are both given; send one"));
        }
        (None, None) => return Err(ApiError::invalid("entries", "entries is missing; send entries or text")),
    };
    let tag = |language: String| {
        languages::tag_of(&language).ok_or_else(|| {
            let message = format!("language is '{}'; use a code such as en or en-US", excerpt(&language));
            ApiError::invalid("language", message)
        })
    };
    let language = non_blank(body.language).or(lexicon.language).map(tag).transpose()?;
    let lexicon = Lexicon { language, ..lexicon };
    check_lexicon(&lexicon).map_err(|error| ApiError::invalid(error.param, error.message))?;
    let saved = SavedLexicon {
        description: non_blank(body.description),
        always: body.always.unwrap_or(false),
        voices: body.voices.unwrap_or_default(),
        ..SavedLexicon::new(&name, lexicon)
    };
    Ok(Json(lexicons::save(&state, saved, body.overwrite.unwrap_or(false)).await?.into()))
}

/// Remove a lexicon
#[utoipa::path(
    delete,
    path = "/v1/lexicons/{id}",
    tag = "speech",
    params(("id" = String, Path, description = "Name of a lexicon.", max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]*$")),
    responses((status = 200, description = "It is removed.", body = LexiconDeleted), LexiconRefusals),
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<LexiconDeleted>, ApiError> {
    lexicons::remove(&state, id.clone()).await?;
    tracing::info!(lexicon = id, "lexicon removed");
    Ok(Json(LexiconDeleted { id, object: LEXICON_DELETED, deleted: true }))
}
