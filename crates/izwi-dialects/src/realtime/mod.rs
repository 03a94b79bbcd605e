//! The Realtime API of OpenAI (GA names) over WebSocket, `GET /v1/realtime`, and WebRTC, `POST /v1/realtime/calls`. Clients of
//! its beta get the names of the beta.
//!
//! Choices of this server:
//! - A session transcribes what is said (`?intent=transcription`, an ASR model, or `session.type` in the first
//!   `session.update`), or a model of conversations answers it. Names of hosted models stand for the default ones.
//! - Audio is decoded as it arrives; turns are found by the server's VAD, unless `turn_detection` is null.
//! - What is said is transcribed while it is said, beside a response; transcripts are completed in the order of their items.
//! - A conversation keeps the audio of its turns for the model that answers; a session that transcribes does not.
//! - `conversation.item.truncate` cuts an answer in the model's context to what was heard. Its text is forgotten.
//! - Items carry no audio back: `conversation.item.retrieve` gives texts and transcripts.
//! - Members that have no effect here are ignored, and `session.updated` shows what is in effect. Prompt templates are
//!   refused, and tools where the model calls none.

mod audio_format;
mod beta;
mod calls;
mod client_secrets;
mod config;
mod decision;
mod events;
mod generate;
mod handle;
mod input;
mod items;
mod opening;
mod out_of_band;
mod output;
mod parts;
mod refusal;
mod response;
mod session;
mod speculation;
mod tools;
mod transcripts;
mod turn_detection;
mod webrtc;

use axum::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use izwi_server::extract::ApiQuery;
use izwi_server::openapi::SessionRefusals;
use izwi_server::ws::SessionUpgrade;
use izwi_server::{ApiError, AppState, Dialect, Granted, ServerConfig};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::opening::Opening;
pub(crate) use self::session::Session;

// example: dialect
#[derive(Debug)]
pub(crate) struct Realtime;

impl Dialect for Realtime {
    fn routes(&self, _config: &ServerConfig) -> OpenApiRouter<AppState> {
        OpenApiRouter::new()
            .routes(routes!(connect))
            .routes(routes!(calls::call))
            .routes(routes!(client_secrets::create))
    }
}

/// The Realtime API of OpenAI over a WebSocket
///
/// The upgrade of a WebSocket. Its events are those of OpenAI; what is supported stands in docs/compatibility.md.
#[utoipa::path(
    get,
    path = "/v1/realtime",
    tag = "dialects",
    params(Opening),
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
async fn connect(
    ApiQuery(opening): ApiQuery<Opening>,
    headers: HeaderMap,
    granted: Option<Extension<Granted>>,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    let session = granted.map(|Extension(Granted(session))| session);
    let opening = Opening { is_beta: beta::is_asked_for(&headers), session, ..opening };
    upgrade.open::<Session>(opening)
}
// end of example
