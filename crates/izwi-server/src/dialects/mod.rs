//! Interfaces of other services, so that their clients work with a changed address. Each is one folder with a
//! `routes()` of its own and one line in [`routes`]; WebSocket dialects are [`Protocol`](crate::ws::protocol::Protocol)s of
//! the common session driver.

mod deepgram;
mod elevenlabs;
mod local;
mod realtime;
pub(crate) mod wyoming;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use izwi_core::engine::RequestId;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::elevenlabs::{
    Stream as ElevenLabs, is_client as is_elevenlabs, models as elevenlabs_models,
    opening as elevenlabs_opening,
};
pub(crate) use self::realtime::Realtime;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::state::AppState;

/// The routes of every dialect that speaks HTTP or WebSocket.
pub(crate) fn routes(config: &ServerConfig) -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(deepgram::routes())
        .merge(elevenlabs::routes())
        .merge(realtime::routes())
        .merge(local::routes(config))
}

/// Middleware: gives errors of a dialect's routes the shape that its clients know.
pub(crate) async fn render_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (is_elevenlabs, is_deepgram) = (elevenlabs::owns(path), deepgram::owns(path));
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>();
    match error {
        Some(error) if is_elevenlabs => elevenlabs::render(&error, response),
        error if is_deepgram => deepgram::render(error.as_ref(), response, id.as_ref()),
        _ => response,
    }
}

/// Whether a request to this path may bring its key in a message.
pub(crate) fn takes_late_key(path: &str) -> bool {
    elevenlabs::takes_late_key(path)
}
