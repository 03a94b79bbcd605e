//! Interfaces of other services, so that their clients work with a changed address. Each is one folder with a
//! `routes()` of its own and one line in [`routes`]; WebSocket dialects are [`Protocol`](crate::ws::protocol::Protocol)s of
//! the common session driver.

mod deepgram;
mod elevenlabs;
mod realtime;
pub(crate) mod wyoming;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::elevenlabs::{
    Stream as ElevenLabs, is_client as is_elevenlabs, models as elevenlabs_models,
    opening as elevenlabs_opening,
};
pub(crate) use self::realtime::Realtime;
use crate::error::ApiError;
use crate::state::AppState;

/// The routes of every dialect that speaks HTTP or WebSocket.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(deepgram::routes()).merge(elevenlabs::routes()).merge(realtime::routes())
}

/// Middleware: gives errors of a dialect's routes the shape that its clients know.
pub(crate) async fn render_errors(request: Request, next: Next) -> Response {
    let is_elevenlabs = elevenlabs::owns(request.uri().path());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) if is_elevenlabs => elevenlabs::render(&error, response),
        _ => response,
    }
}

/// Whether a request to this path may bring its key in a message.
pub(crate) fn takes_late_key(path: &str) -> bool {
    elevenlabs::takes_late_key(path)
}
