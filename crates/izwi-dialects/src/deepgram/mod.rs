//! Deepgram: `/v1/speak` and `/v1/listen`, each over HTTP and as a WebSocket. Field names and shapes are those of the types
//! of `deepgram-sdk` 7.17 for Python.
//!
//! - Its model names (`aura-…`, `nova-…` and the like) stand for the default models; a model of this server is named by
//!   its id, a voice by the additional parameter `voice`.
//! - What would send a result elsewhere, leave private words in it or change its shape, and is not supported, is refused by
//!   name; a parameter set to `false` is not. Other parameters that have no effect are reported in `X-Ignored-Fields`, also of
//!   an upgrade. No URL is fetched.
//! - Every answer has `dg-request-id`, and every refusal `dg-error`: clients of a WebSocket see no body of a refused upgrade.
//! - The key comes as `Authorization: Token KEY` as well.

mod listen;
mod listen_socket;
mod params;
mod results;
mod speak;
mod speak_socket;

use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use izwi_core::engine::RequestId;
use izwi_server::dto::error::ErrorEnvelope;
use izwi_server::{ApiError, AppState, Dialect, ServerConfig};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::response::with_body;

#[derive(Debug)]
pub(crate) struct Deepgram;

impl Dialect for Deepgram {
    fn routes(&self, _config: &ServerConfig) -> OpenApiRouter<AppState> {
        OpenApiRouter::new()
            .routes(routes!(speak::create, speak_socket::open))
            // The bodies have limits of their own.
            .routes(routes!(listen::transcribe, listen_socket::open))
            .layer(DefaultBodyLimit::disable())
    }

    fn owns(&self, path: &str) -> bool {
        matches!(path, "/v1/speak" | "/v1/listen")
    }

    fn render(&self, error: Option<&ApiError>, response: Response, id: Option<&RequestId>) -> Response {
        render(error, response, id)
    }
}

/// The error in the dialect's shape, besides the ordinary one, with the headers of its ordinary response; and the headers
/// that every answer has.
fn render(error: Option<&ApiError>, response: Response, id: Option<&RequestId>) -> Response {
    let id = id.map_or("", RequestId::as_str);
    let mut response = match error {
        None => response,
        Some(error) => {
            let body = ErrorBody {
                envelope: error.envelope(),
                err_code: error.code().to_ascii_uppercase(),
                err_msg: error.message(),
                request_id: id,
            };
            with_body(response, &body)
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [("dg-request-id", Some(id.to_owned())), ("dg-error", error.map(one_line))] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The message of an error as a header: characters that headers do not carry become `?`.
fn one_line(error: &ApiError) -> String {
    let plain = |character: char| if matches!(character, ' '..='~') { character } else { '?' };
    error.message().chars().map(plain).collect()
}

#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    #[serde(flatten)]
    envelope: ErrorEnvelope,
    err_code: String,
    err_msg: String,
    request_id: &'a str,
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn a_refusal_is_told_in_headers() {
        let error = ApiError::invalid("language", "language 'größe' is unknown; use en");
        let id = RequestId::from("req-1");
        let response = render(Some(&error), error.clone().into_response(), Some(&id));
        assert_eq!(response.status(), 400);
        assert_eq!(response.headers()["dg-error"], "language 'gr??e' is unknown; use en");
        assert_eq!(response.headers()["dg-request-id"], "req-1");
        let fine = render(None, "x".into_response(), Some(&id));
        assert!(fine.headers().contains_key("dg-request-id") && !fine.headers().contains_key("dg-error"));
    }
}
