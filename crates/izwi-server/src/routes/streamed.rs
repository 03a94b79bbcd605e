//! Streamed response bodies, whose statistics follow as trailers. Knows no event and no audio.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::Stream;
use http_body::Frame;
use http_body_util::StreamBody;
use izwi_core::engine::{FinishReason, RequestId, RequestStats};
use serde::Serialize;

use crate::error::ApiError;
use crate::registry::Lease;
use crate::stats_headers;

/// How long a stream waits for its first text before the response starts. A failure until then has a status.
pub(super) const FIRST_TEXT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keep-alive comments while there is no new text.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// A response that sends `frames` as they come; an error cuts the connection.
pub(super) fn response<E>(
    frames: impl Stream<Item = Result<Frame<Bytes>, E>> + Send + 'static,
    content_type: &'static str,
) -> Response
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::TRAILER, HeaderValue::from_static(stats_headers::NAMES));
    response
}

/// One server-sent event. <https://html.spec.whatwg.org/multipage/server-sent-events.html>
pub(super) fn event<T: Serialize>(event: &T) -> Bytes {
    // Serializing strings and numbers cannot fail.
    let json = serde_json::to_string(event).unwrap_or_default();
    format!("data: {json}\n\n").into()
}

/// Refuses the end of a request that failed.
pub(super) fn check_end(stats: &RequestStats, engine: &Lease, id: &RequestId) -> Result<(), ApiError> {
    match stats.finish_reason {
        FinishReason::Error => Err(ApiError::from_failure(stats.error.clone(), &engine.profile().model, id)),
        FinishReason::Cancelled => Err(ApiError::Draining),
        _ => Ok(()),
    }
}
