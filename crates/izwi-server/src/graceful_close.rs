//! Graceful close of requests that are refused before their body was read.
//!
//! A server that closes a connection with bytes unread resets it, and the client may lose the response. The rest of a
//! refused body is therefore read and discarded, within limits, so that the client can read the response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;

/// Limits on reading a refused body.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 256 << 20;

/// Middleware: reads the rest of a body after its request was answered.
pub(crate) async fn drain_refused_bodies(request: Request, next: Next) -> Response {
    // Such a client sends no body before the server asks for it.
    let waits = request.headers().contains_key(header::EXPECT);
    if waits || request.body().is_end_stream() {
        return next.run(request).await;
    }
    next.run(request.map(|body| Body::new(DrainOnDrop { body: Some(body) }))).await
}

/// A body whose rest is read when it is dropped before its end.
struct DrainOnDrop {
    body: Option<Body>,
}

impl http_body::Body for DrainOnDrop {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        // Without a runtime there is no connection to close.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let rest = async move {
            let mut left = MAX_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        runtime.spawn(tokio::time::timeout(TIMEOUT, rest));
    }
}
