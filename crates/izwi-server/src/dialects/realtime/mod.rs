//! The Realtime API of OpenAI (GA names) over WebSocket: `GET /v1/realtime`.
//!
//! Choices of this server:
//! - A session transcribes what is said (`?intent=transcription`, an ASR model, or `session.type` in the first
//!   `session.update`), or a model of conversations answers it. Names of hosted models stand for the default ones.
//! - Audio is decoded as it arrives; turns are found by the server's VAD, unless `turn_detection` is null.
//! - Transcriptions and responses are generated one at a time: responses first, then transcriptions in order. Audio is
//!   taken meanwhile.
//! - `conversation.item.truncate` cuts an answer in the model's context to what was heard. Its text is forgotten.
//! - Items carry no audio back: `conversation.item.retrieve` gives texts and transcripts.
//! - Members that have no effect here are ignored, and `session.updated` shows what is in effect. Tools, prompt templates
//!   and WebRTC are refused.

mod config;
mod events;
mod input;
mod items;
mod response;
mod session;

use axum::Router;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, State, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use izwi_core::engine::RequestId;
use serde::Deserialize;

pub(crate) use self::session::Realtime;

use crate::error::ApiError;
use crate::extract::ApiQuery;
use crate::state::AppState;
use crate::ws;

/// What the URL says.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Opening {
    model: Option<String>,
    intent: Option<String>,
}

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/v1/realtime", get(connect))
}

async fn connect(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    ApiQuery(opening): ApiQuery<Opening>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    ws::open::<Realtime>(state, id, upgrade, opening)
}
