//! Streamed response bodies, whose statistics follow as trailers. Knows no event and no audio.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use izwi_core::engine::{FinishReason, RequestId, RequestStats};
use serde::Serialize;

use crate::error::ApiError;
use crate::registry::Lease;
use crate::stats_headers;

/// How long a stream waits for its first text before the response starts. A failure until then has a status.
const FIRST_TEXT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keep-alive comments while there is no new text.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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

/// The events of a transcript in progress. Dropping it drops the engine's receiver, which aborts the request.
pub(super) trait Events: Send + 'static {
    /// Waits for the engine's next output and adds the frames of it; breaks after the last. Cancel-safe.
    ///
    /// # Errors
    /// The request failed; its error is the last event.
    fn advance(
        &mut self,
        frames: &mut VecDeque<Frame<Bytes>>,
    ) -> impl Future<Output = Result<ControlFlow<()>, ApiError>> + Send;
}

/// A response that sends events as they come.
///
/// # Errors
/// The request fails before its first output, or soon.
pub(super) async fn events(events: impl Events) -> Result<Response, ApiError> {
    let mut body = EventBody { events, frames: VecDeque::new(), is_over: false };
    if let Ok(first) = tokio::time::timeout(FIRST_TEXT_TIMEOUT, body.advance()).await {
        first?;
    }
    let frames =
        stream::unfold(body, |mut body| async { Some((Ok::<_, ApiError>(body.next().await?), body)) });
    Ok(response(frames, EVENT_STREAM))
}

struct EventBody<E> {
    events: E,
    frames: VecDeque<Frame<Bytes>>,
    is_over: bool,
}

impl<E: Events> EventBody<E> {
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.advance()).await {
                // A comment, which clients ignore.
                Err(_) => return Some(Frame::data(Bytes::from_static(b":\n\n"))),
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    self.is_over = true;
                    return Some(Frame::data(event(&error.envelope())));
                }
            }
        }
    }

    async fn advance(&mut self) -> Result<(), ApiError> {
        self.is_over = self.events.advance(&mut self.frames).await?.is_break();
        Ok(())
    }
}

/// Refuses the end of a request that failed.
pub(super) fn check_end(stats: &RequestStats, engine: &Lease, id: &RequestId) -> Result<(), ApiError> {
    match stats.finish_reason {
        FinishReason::Error => Err(ApiError::from_failure(stats.error.clone(), &engine.profile().model, id)),
        FinishReason::Cancelled => Err(ApiError::Draining),
        _ => Ok(()),
    }
}
