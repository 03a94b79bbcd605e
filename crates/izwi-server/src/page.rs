//! The files of the web page, part of the binary: `page/` of this crate. Knows no model and no other route.
//!
//! Debug builds read them from disk at each request.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use rust_embed::Embed;

#[derive(Embed)]
#[folder = "page/"]
struct Files;

/// What the page may load and reach: this server alone. `blob:` is audio that the page has made or was given.
const POLICY: &str = "default-src 'self'; media-src 'self' blob:; object-src 'none'; base-uri 'none'; \
form-action 'none'; frame-ancestors 'none'";

/// The service worker, which works for all of the page and not for its own folder alone.
const WORKER: &str = "worker.js";
/// <https://www.w3.org/TR/service-workers/#service-worker-allowed>
const WORKER_SCOPE: (HeaderName, &str) = (HeaderName::from_static("service-worker-allowed"), "/");

/// Headers of every file. Browsers ask each time whether a file has changed: a new version takes effect at once.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// A file, or `None` where there is no such file. The answer has no body where `If-None-Match` of the request has its tag.
pub(crate) fn answer(name: &str, request: &HeaderMap) -> Option<Response> {
    let file = Files::get(name)?;
    let digest = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(file.metadata.sha256_hash());
    let tag = format!("\"{digest}\"");
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|list| list.split(',')).any(|known| known.trim() == tag);
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let media_type = match file.metadata.mimetype() {
            text if text.starts_with("text/") => format!("{text}; charset=utf-8"),
            other => other.to_owned(),
        };
        ([(header::CONTENT_TYPE, media_type)], Bytes::from(file.data.into_owned())).into_response()
    };
    let headers = response.headers_mut();
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if name == WORKER {
        headers.insert(WORKER_SCOPE.0, HeaderValue::from_static(WORKER_SCOPE.1));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    Some(response)
}
