//! WebSocket routes. Each is one [`Protocol`]: a file that knows its frames, and a line in [`routes`].
//!
//! [`driver`] runs every session. The other modules of this folder are its parts ([`connection`], [`outbox`],
//! [`writer`], [`socket`], [`resume`], [`generation`], [`pending_model`]) or parts of frames that several protocols share ([`frame`], [`playback`], [`produced`]).

mod chat;
mod connection;
mod driver;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod generation;
mod live;
pub mod outbox;
#[cfg(test)]
mod page;
mod pending_model;
pub(crate) mod playback;
pub mod produced;
pub mod protocol;
mod resume;
pub mod socket;
pub mod speech;
mod writer;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, FromRequestParts, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::response::Response;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use izwi_core::engine::RequestId;
use tokio::sync::OwnedSemaphorePermit;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::chat::Chat;
use self::live::Live;
use self::protocol::Protocol;
use self::resume::ResumeTable;
use self::socket::Socket;
use self::speech::Speech;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::openapi::SessionRefusals;
use crate::peer::{Client, Peer};
use crate::record::{self, RequestRecord};
use crate::state::AppState;

/// A message up to this multiple of the limit is read and refused with an error frame; a larger one ends the session.
const REFUSED_WITH_ERROR: usize = 4;
/// Bytes a socket may hold back: several of the largest chunks.
const MAX_WRITE_BUFFER: usize = 8 << 20;

/// Subprotocols that are accepted. The answer names one of them, never one that carries a key.
const SUBPROTOCOLS: [&str; 2] = ["izwi", "realtime"];

/// Routes whose sessions a new connection may continue.
const RESUMABLE: [&str; 2] = ["/v1/audio/speech/stream", "/v1/audio/chat/stream"];

/// Whether sessions of this route may be continued.
pub(crate) fn is_resumable(path: &str) -> bool {
    RESUMABLE.contains(&path)
}

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(speech_stream))
        .routes(routes!(chat_stream))
        .routes(routes!(transcription_stream))
        .layer(Extension(Arc::<ResumeTable>::default()))
}

/// Text in, audio out, over a WebSocket
///
/// The upgrade of a WebSocket. Its messages are in [docs/protocol.md](/docs/protocol.md#speech).
#[utoipa::path(
    get,
    path = "/v1/audio/speech/stream",
    tag = "speech",
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
async fn speech_stream(
    Extension(resumable): Extension<Arc<ResumeTable>>,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    upgrade.open_resumable::<Speech>(resumable, ())
}

/// Spoken conversation over a WebSocket: text or audio in, text and audio out
///
/// The upgrade of a WebSocket. Its messages are in [docs/protocol.md](/docs/protocol.md#conversation).
#[utoipa::path(
    get,
    path = "/v1/audio/chat/stream",
    tag = "conversation",
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
async fn chat_stream(
    Extension(resumable): Extension<Arc<ResumeTable>>,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    upgrade.open_resumable::<Chat>(resumable, ())
}

/// Audio in, its transcript out while it is spoken, over a WebSocket
///
/// The upgrade of a WebSocket. Its messages are in [docs/protocol.md](/docs/protocol.md#live-transcription).
#[utoipa::path(
    get,
    path = "/v1/audio/transcriptions/stream",
    tag = "transcription",
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
async fn transcription_stream(upgrade: SessionUpgrade) -> Result<Response, ApiError> {
    upgrade.open::<Live>(())
}

/// Serves a session of a protocol that WebSockets do not carry, until it ends. It cannot be continued on another
/// connection.
pub async fn serve<P: Protocol>(
    state: AppState,
    id: RequestId,
    socket: Socket,
    permit: OwnedSemaphorePermit,
    opening: P::Opening,
) {
    driver::run::<P>(state, Arc::default(), id, socket, permit, opening).await;
}

/// A session that something else than a WebSocket will carry, and that a request asks for.
#[derive(Debug)]
pub struct SessionCall {
    state: AppState,
    peer: Option<Peer>,
}

impl FromRequestParts<AppState> for SessionCall {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Client>().map(|client| client.peer);
        Ok(Self { state: state.clone(), peer })
    }
}

impl SessionCall {
    /// The configuration of the server.
    pub fn config(&self) -> &ServerConfig {
        self.state.config()
    }

    /// What serves the session on its socket, if fewer than the limit are open; `protocol` names it in the log.
    ///
    /// # Errors
    /// Too many sessions are open.
    pub fn admit<P: Protocol>(
        self,
        protocol: &'static str,
        opening: P::Opening,
    ) -> Result<impl FnOnce(Socket) -> BoxFuture<'static, ()> + Send + 'static, ApiError> {
        let Self { state, peer } = self;
        let permit = state.admit_session()?;
        Ok(move |socket| {
            let id = RequestId::random();
            let record =
                peer.map(|peer| RequestRecord::of_session(state.config(), id.clone(), protocol, peer));
            record::within(record, serve::<P>(state, id, socket, permit, opening)).boxed()
        })
    }
}

/// The upgrade of a WebSocket, for one session.
#[derive(Debug)]
pub struct SessionUpgrade {
    state: AppState,
    id: RequestId,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
}

impl FromRequestParts<AppState> for SessionUpgrade {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let id = parts.extensions.get::<RequestId>().cloned().unwrap_or_else(RequestId::random);
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        Ok(Self { state: state.clone(), id, upgrade })
    }
}

impl SessionUpgrade {
    /// Refuses a request that is no upgrade, before anything is done for it.
    ///
    /// # Errors
    /// It is none.
    pub fn checked(self) -> Result<Self, ApiError> {
        match self.upgrade {
            Err(error) => Err(ApiError::UpgradeRequired(error.body_text())),
            Ok(_) => Ok(self),
        }
    }

    /// Opens a session that cannot be continued on another connection, if fewer than the limit are open.
    ///
    /// # Errors
    /// It is no upgrade, or too many sessions are open.
    pub fn open<P: Protocol>(self, opening: P::Opening) -> Result<Response, ApiError> {
        self.open_resumable::<P>(Arc::default(), opening)
    }

    fn open_resumable<P: Protocol>(
        self,
        resumable: Arc<ResumeTable>,
        opening: P::Opening,
    ) -> Result<Response, ApiError> {
        let Self { state, id, upgrade } = self;
        let upgrade = upgrade.map_err(|error| ApiError::UpgradeRequired(error.body_text()))?;
        let permit = state.admit_session()?;
        let record = record::current();
        let message_limit = state.config().max_frame_bytes.saturating_mul(REFUSED_WITH_ERROR);
        Ok(upgrade
            .max_message_size(message_limit)
            .max_frame_size(message_limit)
            .write_buffer_size(0)
            .max_write_buffer_size(MAX_WRITE_BUFFER)
            .protocols(SUBPROTOCOLS)
            .on_failed_upgrade(|error| tracing::debug!(%error, "upgrade failed"))
            .on_upgrade(move |socket| async move {
                let session = driver::run::<P>(state, resumable, id, socket.into(), permit, opening);
                record::within(record, session).await;
            }))
    }
}
