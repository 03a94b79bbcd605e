//! Responses in the shape of a dialect. Knows no dialect.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A response of JSON with another body, and the same status and headers.
pub(crate) fn with_body(response: Response, body: &impl Serialize) -> Response {
    let body = Json(body).into_response().into_body();
    let mut response = response.map(|_| body);
    // The body has another length.
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}
