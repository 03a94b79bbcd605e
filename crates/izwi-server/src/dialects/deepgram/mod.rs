//! Deepgram: `/v1/speak` and `/v1/listen`, each over HTTP and as a WebSocket. Field names and shapes are those of the types
//! of `deepgram-sdk` 7.17 for Python.
//!
//! - Its model names (`aura-…`, `nova-…` and the like) stand for the default models; a model of this server is named by
//!   its id, a voice by the additional parameter `voice`.
//! - What would change a result and is not supported is refused by name; a parameter set to `false` is not. No URL is
//!   fetched.
//! - The key comes as `Authorization: Token KEY` as well.

mod listen;
mod listen_socket;
mod live;
mod params;
mod results;
mod speak;
mod speak_socket;

use axum::Json;
use axum::extract::DefaultBodyLimit;
use axum::response::{IntoResponse, Response};
use izwi_core::engine::RequestId;
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dto::error::ErrorEnvelope;
use crate::error::ApiError;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(speak::create, speak_socket::open))
        // The bodies have limits of their own.
        .routes(routes!(listen::transcribe, listen_socket::open))
        .layer(DefaultBodyLimit::disable())
}

/// A refusal in the shape of Deepgram's errors, beside the ordinary one.
#[derive(Debug)]
struct Refusal {
    error: ApiError,
    request: RequestId,
}

#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    #[serde(flatten)]
    envelope: ErrorEnvelope,
    err_code: String,
    err_msg: String,
    request_id: &'a str,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            envelope: self.error.envelope(),
            err_code: self.error.code().to_ascii_uppercase(),
            err_msg: self.error.message(),
            request_id: self.request.as_str(),
        };
        let body = Json(body).into_response().into_body();
        self.error.into_response().map(|_| body)
    }
}
