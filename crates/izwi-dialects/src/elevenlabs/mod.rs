//! ElevenLabs: text to speech over HTTP and WebSocket, speech to text, voices, models, pronunciation dictionaries. Field names
//! and shapes are those of the types of `elevenlabs` 2.78 for Python.
//!
//! - Its model ids (`eleven_…`) stand for the default TTS model, and a voice id that looks like one of its own for the
//!   default voice.
//! - `GET /v1/models` is also a route of OpenAI's: the answer has this dialect's shape for its clients, which send
//!   `xi-api-key`, or name themselves in `X-Fern-SDK-Name`.
//! - The key may come in `xi-api-key`, and on a WebSocket also in the first message.
//! - Times of characters are made of the times of words: the characters of a word share its time evenly.

mod alignment;
mod api;
mod contexts;
mod dictionaries;
mod formats;
mod listing;
mod pieces;
mod speech;
mod stream;
mod transcription;

use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use axum::http::{Extensions, HeaderMap};
use axum::response::{IntoResponse, Response};
use izwi_core::engine::RequestId;
use izwi_server::voices::{self, Voice};
use izwi_server::{ApiError, AppState, Dialect, Lease, ServerConfig};
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::api::{Detail, ErrorDetail, StreamQuery};
use self::stream::Opening;
pub(crate) use self::stream::Stream;
use crate::response::with_body;

/// Beginnings of the names of hosted models.
const HOSTED: [&str; 1] = ["eleven_"];
/// Letters and digits of a voice id of the hosted service.
const HOSTED_VOICE_ID_CHARS: usize = 20;
/// The most sessions whose key has not come yet.
const MAX_UNPROVEN: usize = 16;

#[derive(Debug)]
pub(crate) struct ElevenLabs;

impl Dialect for ElevenLabs {
    fn routes(&self, _config: &ServerConfig) -> OpenApiRouter<AppState> {
        OpenApiRouter::new()
            .routes(routes!(speech::convert))
            .routes(routes!(speech::stream))
            .routes(routes!(speech::convert_with_timestamps))
            .routes(routes!(speech::stream_with_timestamps))
            .routes(routes!(transcription::convert))
            .routes(routes!(stream::one_context))
            .routes(routes!(stream::many_contexts))
            .routes(routes!(listing::voices))
            .routes(routes!(listing::voices_page))
            .routes(routes!(listing::voice))
            .routes(routes!(dictionaries::list))
            .routes(routes!(dictionaries::show))
            .routes(routes!(dictionaries::add_from_rules))
            .routes(routes!(dictionaries::add_from_file))
            .routes(routes!(dictionaries::add_rules))
            .routes(routes!(dictionaries::set_rules))
            .routes(routes!(dictionaries::remove_rules))
            .routes(routes!(dictionaries::download))
            .routes(routes!(listing::user))
            .routes(routes!(listing::subscription))
            .layer(Extension(Arc::new(Semaphore::new(MAX_UNPROVEN))))
    }

    fn owns(&self, path: &str) -> bool {
        let starts = [
            "/v1/text-to-speech/",
            "/v1/speech-to-text",
            "/v1/voices",
            "/v2/voices",
            "/v1/user",
            "/v1/pronunciation-dictionaries",
        ];
        starts.iter().any(|start| path.starts_with(start))
    }

    fn render(&self, error: Option<&ApiError>, response: Response, _id: Option<&RequestId>) -> Response {
        match error {
            Some(error) => render(error, response),
            None => response,
        }
    }

    fn takes_late_key(&self, path: &str) -> bool {
        path.starts_with("/v1/text-to-speech/") && path.ends_with("stream-input")
    }

    fn models(&self, state: &AppState, headers: &HeaderMap) -> Option<Response> {
        is_client(headers).then(|| Json(listing::models(state)).into_response())
    }
}

/// Whether a request to a route that other dialects have too comes from a client of this one.
fn is_client(headers: &HeaderMap) -> bool {
    let sdk = headers.get("x-fern-sdk-name").and_then(|name| name.to_str().ok());
    headers.contains_key("xi-api-key") || sdk.is_some_and(|name| name.contains("elevenlabs"))
}

/// The error in the dialect's shape, besides the ordinary one, with the headers of its ordinary response.
fn render(error: &ApiError, response: Response) -> Response {
    let status = match error {
        ApiError::Unauthorized => "invalid_api_key",
        other => other.code(),
    };
    let detail = Detail { status, message: error.message(), param: error.param().map(izwi_types::excerpt) };
    with_body(response, &ErrorDetail { envelope: error.envelope(), detail })
}

/// What opens a session with several contexts, for fuzz targets.
pub(crate) fn opening() -> Result<Opening, ApiError> {
    let query = StreamQuery { output_format: Some("pcm_24000".to_owned()), ..StreamQuery::default() };
    Opening::new("one".to_owned(), query, true, &Extensions::new())
}

/// Finds a voice by its name. An unknown id that looks like one of the hosted service means the default voice.
async fn find_voice(id: &str, engine: &Lease, state: &AppState) -> Result<Option<Voice>, ApiError> {
    match voices::find(Some(id), engine, state.voices()).await {
        Err(ApiError::VoiceNotFound { .. }) if is_hosted_id(id) => {
            voices::find(None, engine, state.voices()).await
        }
        found => found,
    }
}

fn is_hosted_id(id: &str) -> bool {
    id.len() == HOSTED_VOICE_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    #[test]
    fn ids_of_the_hosted_service_are_known() {
        assert!(is_hosted_id("JBFqnCBsd6RMkjVDRZzb") && is_hosted_id("21m00Tcm4TlvDq8ikWAM"));
        assert!(!is_hosted_id("heart") && !is_hosted_id("21m00Tcm4TlvDq8ikWA-"));
    }

    #[test]
    fn clients_name_themselves() {
        let is = |name: &'static str, value: &'static str| {
            is_client(&HeaderMap::from_iter([(
                header::HeaderName::from_static(name),
                header::HeaderValue::from_static(value),
            )]))
        };
        assert!(is("xi-api-key", "x") && is("x-fern-sdk-name", "@elevenlabs/elevenlabs-js"));
        assert!(!is("authorization", "Bearer x") && !is("x-fern-sdk-name", "deepgram-sdk"));
    }
}
