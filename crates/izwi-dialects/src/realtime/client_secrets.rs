//! `POST /v1/realtime/client_secrets`: a short-lived key for a browser, and the settings that its sessions begin with.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, header};
use izwi_server::extract::{check_range, parse_json};
use izwi_server::openapi::SessionRefusals;
use izwi_server::{ApiError, AppState, upload};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::events::{ClientEvent, Event, new_id};
use super::opening::Opening;
use super::refusal::Refusal;
use super::session::opened;

/// Routes that a client secret opens.
const ROUTES: &[&str] = &["/v1/realtime", "/v1/realtime/calls"];
/// Seconds until a client secret expires. <https://platform.openai.com/docs/api-reference/realtime-sessions/create-realtime-client-secret>
const SECONDS: RangeInclusive<u64> = 10..=7_200;
const DEFAULT_SECONDS: u64 = 600;
/// Bytes of a session as JSON: the server keeps it as long as the secret.
const MAX_SESSION_BYTES: usize = 64 << 10;

/// How long a client secret is valid, and for which session.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct NewSecret {
    expires_after: Option<ExpiresAfter>,
    /// The session as in `session.update`, with its `model`.
    #[schema(value_type = Option<Object>)]
    session: Option<Value>,
}

/// When a client secret expires.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct ExpiresAfter {
    /// `created_at`, the only one.
    anchor: Option<String>,
    /// Seconds from then; 600 without it.
    #[schema(minimum = 10, maximum = 7200)]
    seconds: Option<u64>,
}

/// A client secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClientSecret {
    value: String,
    /// Unix time in seconds.
    expires_at: u64,
    /// The session as it begins.
    #[schema(value_type = Object)]
    session: Value,
}

/// Client secret of the Realtime API of OpenAI
///
/// A short-lived key that opens `/v1/realtime` and `/v1/realtime/calls`, any number of times, in place of the API key, which a
/// browser should not have. Its sessions begin with `session`.
#[utoipa::path(
    post,
    path = "/v1/realtime/client_secrets",
    tag = "dialects",
    request_body = NewSecret,
    responses((status = 200, description = "The client secret.", body = ClientSecret), SessionRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    request: Request,
) -> Result<([(HeaderName, &'static str); 1], Json<ClientSecret>), ApiError> {
    let body: NewSecret = parse_json(&upload::read_plain_json(request, &state).await?)?;
    let seconds = seconds(body.expires_after)?;
    let settings = body.session.unwrap_or_else(|| json!({}));
    if settings.to_string().len() > MAX_SESSION_BYTES {
        let message =
            format!("session has more than {MAX_SESSION_BYTES} bytes; send the rest by session.update");
        return Err(ApiError::invalid("session", message));
    }
    let session = view(&state, &settings).map_err(Refusal::into_error)?;
    let (now, lifetime) = (Instant::now(), Duration::from_secs(seconds));
    let value = state.client_secrets().issue(ROUTES, settings, now, now + lifetime);
    let value =
        value.ok_or_else(|| ApiError::overloaded("too many client secrets are valid; try again later"))?;
    let expires_at = state.unix_s() + seconds;
    let secret = ClientSecret { value, expires_at, session };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(secret)))
}

fn seconds(expires_after: Option<ExpiresAfter>) -> Result<u64, ApiError> {
    let Some(ExpiresAfter { anchor, seconds }) = expires_after else { return Ok(DEFAULT_SECONDS) };
    if anchor.as_deref().is_some_and(|anchor| anchor != "created_at") {
        let message = "expires_after.anchor must be created_at";
        return Err(ApiError::invalid("expires_after.anchor", message));
    }
    let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
    check_range("expires_after.seconds", seconds, &SECONDS)?;
    Ok(seconds)
}

/// The session that the settings give, before its models are loaded.
fn view(state: &AppState, settings: &Value) -> Result<Value, Refusal> {
    let event = ClientEvent::of_settings(settings).event?;
    let Event::Update(patch) = event else { return Err(Refusal::invalid("session", "session is no object")) };
    let (config, model) =
        opened(state, Opening { session: Some(Arc::new(settings.clone())), ..Opening::default() })?;
    Ok(config.patched(&patch)?.view(&new_id("sess"), model.as_deref()))
}
