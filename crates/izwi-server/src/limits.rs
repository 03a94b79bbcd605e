//! Middleware of every request: its id, the refusal while draining, and the limit of concurrent requests.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use izwi_core::engine::RequestId;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ApiError;
use crate::state::AppState;

/// Header with the id of a request, which the log uses too.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Middleware: gives the request an id for engine, log and response.
pub(crate) async fn assign_request_id(mut request: Request, next: Next) -> Response {
    let id = RequestId::random();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Middleware: refuses new requests while draining, and beyond the limit. A request counts until its body has ended.
pub(crate) async fn admit(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if state.is_draining() {
        return ApiError::Draining.into_response();
    }
    match state.admit_request() {
        Ok(permit) => next.run(request).await.map(|body| Body::new(Admitted { body, _permit: permit })),
        Err(error) => error.into_response(),
    }
}

/// A body that holds its request's permit until it is sent or dropped.
struct Admitted {
    body: Body,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Admitted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
