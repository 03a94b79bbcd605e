//! The WebSockets: `/v1/audio/speech/stream`, text in, audio out, in order, and `/v1/audio/chat/stream` (in [`chat`]).
//!
//! A session is one task that owns its socket, its text and the utterance being spoken. It reads while it speaks, so
//! that a client that leaves is noticed at once; it takes audio from the engine only when the socket has taken the
//! chunk before, so that a client that does not read pauses its own utterance and nothing else.
//!
//! Choices the protocol leaves open:
//! - `session.created` answers `session.config`, or the first text of a session without one.
//! - `audio.start` is sent with the first audio of an utterance; one that is refused is an `error` alone.
//! - With `response_format: "wav"` the first binary frame of an utterance starts with a 44-byte header of a stream of
//!   unknown length; `samples` counts audio only.
//! - Text is spoken at `input.flush` and `input.done`, and early up to the last complete sentence once there is enough.
//! - `interrupt` ends the utterance being spoken with the reason `interrupted` and forgets text that was not spoken yet;
//!   an utterance of which nothing was heard is passed over. Text that comes later is spoken.
//! - Any text frame and a WebSocket ping keep an idle session open; answers to the server's pings do not.

mod arrival;
mod chat;
mod chunking;
mod link;
mod parse;
mod script;
mod session;
mod wire;

use axum::extract::ws::WebSocket;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, State, WebSocketUpgrade};
use axum::response::Response;
use izwi_core::engine::RequestId;

use crate::error::ApiError;
use crate::state::AppState;

/// Frames up to this multiple of the limit are read and refused with a word; larger ones end the session.
const REFUSED_POLITELY: usize = 4;
/// Bytes a socket may hold back: several of the largest chunks.
const MAX_WRITE_BUFFER: usize = 8 << 20;

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// `/v1/audio/speech/stream`.
pub(crate) async fn upgrade(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upgrade: Upgrade,
) -> Result<Response, ApiError> {
    open(&state.clone(), upgrade, move |socket| session::run(state, id, socket))
}

/// `/v1/audio/chat/stream`.
pub(crate) async fn upgrade_chat(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upgrade: Upgrade,
) -> Result<Response, ApiError> {
    open(&state.clone(), upgrade, move |socket| chat::run(state, id, socket))
}

/// Opens a session, if there is a place for it.
fn open<F: Future<Output = ()> + Send + 'static>(
    state: &AppState,
    upgrade: Upgrade,
    serve: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|error| ApiError::UpgradeRequired(error.body_text()))?;
    let place = state.admit_session()?;
    let frame_limit = state.config().max_frame_bytes.saturating_mul(REFUSED_POLITELY);
    Ok(upgrade
        .max_message_size(frame_limit)
        .max_frame_size(frame_limit)
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_WRITE_BUFFER)
        .on_failed_upgrade(|error| tracing::debug!(%error, "upgrade failed"))
        .on_upgrade(move |socket| async move {
            let _place = place;
            serve(socket).await;
        }))
}
