//! Interfaces of other services, so that their clients work with a changed address. Each is one folder and one line in
//! [`all`] or, with a port of its own, a [`TcpService`](izwi_server::TcpService); sessions are
//! [`Protocol`](izwi_server::ws::protocol::Protocol)s of the server's driver.
//!
//! Owns their routes, messages and errors. Knows engines as handles only, as the server does.

#![forbid(unsafe_code)]

mod deepgram;
mod elevenlabs;
pub mod fuzzing;
mod local;
mod realtime;
mod wyoming;

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use izwi_server::Dialects;
use serde::Serialize;

pub use self::wyoming::Wyoming;

/// A response of JSON with another body, and the same status and headers.
fn with_body(response: Response, body: &impl Serialize) -> Response {
    let body = Json(body).into_response().into_body();
    let mut response = response.map(|_| body);
    // The body has another length.
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}

/// Every dialect that speaks HTTP or WebSocket.
pub const fn all() -> Dialects {
    Dialects::new(&[&deepgram::Deepgram, &elevenlabs::ElevenLabs, &realtime::Realtime, &local::Local])
}
