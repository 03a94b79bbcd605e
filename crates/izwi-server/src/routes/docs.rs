//! `GET /openapi.json`, `GET /docs` and `GET /docs/protocol.md`: the documentation of this server, without any other host.

use std::sync::Arc;

use axum::extract::Extension;
use axum::http::header;
use axum::response::IntoResponse;

use crate::openapi::Published;

/// The messages of the WebSockets, as `docs/protocol.md` has them.
const PROTOCOL: &str = include_str!("../../../../docs/protocol.md");

/// This document
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "service",
    responses((status = 200, description = "OpenAPI 3.1.", body = serde_json::Value)),
)]
pub(super) async fn document(Extension(published): Extension<Arc<Published>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], published.json.clone())
}

/// This document as a page
#[utoipa::path(
    get,
    path = "/docs",
    tag = "service",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html")),
)]
pub(super) async fn page(Extension(published): Extension<Arc<Published>>) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, published.policy.clone()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    (headers, published.page.clone())
}

/// Messages of the WebSockets
#[utoipa::path(
    get,
    path = "/docs/protocol.md",
    tag = "service",
    responses((status = 200, description = "The page, in Markdown.", body = String, content_type = "text/plain")),
)]
pub(super) async fn protocol() -> impl IntoResponse {
    // Browsers show plain text and save Markdown.
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], PROTOCOL)
}
