//! The sending half of a session's socket, with a limit on how long a peer may leave it unread.
//!
//! It knows messages and no frame of a protocol.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message};
use bytes::Bytes;
use futures::SinkExt;
use tokio::time::Instant;

use super::outbox::Outbox;
use super::socket::MessageSink;
use crate::record;

/// Why nothing more can be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the peer does not read")]
    Stalled,
    #[error(transparent)]
    Broken(#[from] axum::Error),
}

pub(super) struct Writer {
    sink: MessageSink,
    /// Messages that were taken from the outbox, and those of the connection itself.
    staged: VecDeque<Message>,
    /// Whether the socket still buffers bytes.
    is_dirty: bool,
    limit: Duration,
    /// When the message being sent must have made progress.
    deadline: Option<Instant>,
}

impl Writer {
    pub(super) fn new(sink: MessageSink, limit: Duration) -> Self {
        Self { sink, staged: VecDeque::new(), is_dirty: false, limit, deadline: None }
    }

    pub(super) fn ping(&mut self) {
        self.staged.push_back(Message::Ping(Bytes::new()));
    }

    pub(super) fn close(&mut self, code: u16, reason: &str) {
        self.staged.push_back(Message::Close(Some(CloseFrame { code, reason: reason.into() })));
    }

    /// Whether the socket has taken every message.
    pub(super) fn is_idle(&self, outbox: &Outbox) -> bool {
        self.staged.is_empty() && !self.is_dirty && outbox.is_empty()
    }

    /// Moves one message into the socket, or flushes it. Cancel-safe; to be called only while not idle.
    pub(super) async fn advance(&mut self, outbox: &mut Outbox) -> Result<(), SendError> {
        if self.staged.is_empty()
            && let Some((first, second)) = outbox.take()
        {
            self.staged.push_back(first);
            self.staged.extend(second);
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.limit);
        let (sink, staged, is_dirty) = (&mut self.sink, &mut self.staged, &mut self.is_dirty);
        let moved = poll_fn(|context| {
            if staged.is_empty() {
                ready!(sink.poll_flush_unpin(context))?;
                *is_dirty = false;
            } else {
                ready!(sink.poll_ready_unpin(context))?;
                if let Some(message) = staged.pop_front() {
                    *is_dirty = true;
                    record::sent(payload_bytes(&message));
                    sink.start_send_unpin(message)?;
                }
            }
            Poll::Ready(Ok::<(), axum::Error>(()))
        });
        match tokio::time::timeout_at(deadline, moved).await {
            Ok(result) => {
                self.deadline = None;
                Ok(result?)
            }
            Err(_) => Err(SendError::Stalled),
        }
    }

    /// Sends the answer to a close frame, which the socket itself has queued.
    pub(super) async fn answer_close(&mut self) -> Result<(), axum::Error> {
        // A message that was handed over before and not sent yet is refused after a close frame. That error comes once.
        match self.sink.flush().await {
            Ok(()) => Ok(()),
            Err(_) => self.sink.flush().await,
        }
    }

    /// Sends every message.
    pub(super) async fn finish(&mut self, outbox: &mut Outbox) -> Result<(), SendError> {
        while !self.is_idle(outbox) {
            self.advance(outbox).await?;
        }
        Ok(())
    }
}

/// Bytes of a message that belong to the session.
fn payload_bytes(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) => bytes.len(),
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => 0,
    }
}
