//! `GET /` and `GET /page/{file}`: the web page.

use axum::http::HeaderMap;
use axum::response::Response;
use izwi_types::excerpt;

use crate::error::ApiError;
use crate::extract::ApiPath;
use crate::openapi::PageRefusals;
use crate::page;

/// The web page
#[utoipa::path(
    get,
    path = "/",
    tag = "service",
    responses(
        (status = 200, description = "The page.", body = String, content_type = "text/html"),
        (status = 304, description = "The page is as `If-None-Match` says."),
    ),
)]
pub(super) async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    page::answer("index.html", &headers).ok_or_else(|| unknown("/"))
}

/// A file of the web page
#[utoipa::path(
    get,
    path = "/page/{file}",
    tag = "service",
    params(("file" = String, Path, description = "Name of the file.", example = "style.css")),
    responses(
        (
            status = 200,
            description = "The file.",
            content(
                (String = "text/css"),
                (String = "text/html"),
                (String = "text/javascript"),
                (String = "image/svg+xml"),
                (String = "image/png"),
                (String = "application/manifest+json"),
            ),
        ),
        (status = 304, description = "The file is as `If-None-Match` says."),
        PageRefusals,
    ),
)]
pub(super) async fn file(ApiPath(file): ApiPath, headers: HeaderMap) -> Result<Response, ApiError> {
    page::answer(&file, &headers).ok_or_else(|| unknown(&format!("/page/{}", excerpt(&file))))
}

fn unknown(path: &str) -> ApiError {
    ApiError::UnknownRoute(format!("GET {path}"))
}
