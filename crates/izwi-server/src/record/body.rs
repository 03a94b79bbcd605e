//! Bodies whose bytes a record counts. Knows no content.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::{CURRENT, RequestRecord};

/// Which way a body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the client.
    In,
    /// To the client.
    Out,
}

/// A body that adds to a record: its bytes, and what its source tells while it is read.
pub(super) struct CountedBody {
    body: Body,
    record: RequestRecord,
    direction: Direction,
    has_ended: bool,
}

impl CountedBody {
    pub(super) fn wrap(body: Body, record: RequestRecord, direction: Direction) -> Body {
        Body::new(Self { body, record, direction, has_ended: false })
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let poll = || Pin::new(&mut this.body).poll_frame(context);
        let polled = CURRENT.sync_scope(this.record.clone(), poll);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.record.add(this.direction, frame.data_ref().map_or(0, Bytes::len));
                // Nothing follows trailers.
                this.has_ended |= frame.is_trailers();
            }
            Poll::Ready(None) => this.has_ended = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        if self.direction == Direction::Out && (self.has_ended || self.body.is_end_stream()) {
            self.record.complete();
        }
    }
}
