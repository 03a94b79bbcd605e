//! Interfaces of other services, so that their clients work with a changed address. Each is one folder with a
//! `routes()` of its own and one line in [`routes`]; WebSocket dialects are [`Protocol`](crate::ws::protocol::Protocol)s of
//! the common session driver.

mod deepgram;
mod realtime;
pub(crate) mod wyoming;

use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::realtime::Realtime;

use crate::state::AppState;

/// The routes of every dialect that speaks HTTP or WebSocket.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(deepgram::routes()).merge(realtime::routes())
}
