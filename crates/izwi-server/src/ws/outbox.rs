//! The sending half of a session's socket: a queue, and a limit on how long a peer may leave it unread.
//!
//! It knows messages and no frame of a protocol.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use futures::SinkExt;
use futures::stream::SplitSink;
use serde::Serialize;
use tokio::time::Instant;

/// Why nothing more can be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the peer does not read")]
    Stalled,
    #[error(transparent)]
    Broken(#[from] axum::Error),
}

pub(super) struct Outbox {
    sink: SplitSink<WebSocket, Message>,
    queue: VecDeque<Message>,
    /// Whether the socket still buffers bytes.
    is_dirty: bool,
    limit: Duration,
    /// When the message being sent must have made progress.
    deadline: Option<Instant>,
}

impl Outbox {
    pub(super) fn new(sink: SplitSink<WebSocket, Message>, limit: Duration) -> Self {
        Self { sink, queue: VecDeque::new(), is_dirty: false, limit, deadline: None }
    }

    /// Queues a text message.
    pub(super) fn frame(&mut self, frame: &impl Serialize) {
        // Serializing strings and numbers cannot fail.
        let json = serde_json::to_string(frame).unwrap_or_default();
        self.push(Message::text(json));
    }

    /// Queues a binary message.
    pub(super) fn binary(&mut self, bytes: Bytes) {
        self.push(Message::Binary(bytes));
    }

    pub(super) fn ping(&mut self) {
        self.push(Message::Ping(Bytes::new()));
    }

    pub(super) fn close(&mut self, code: u16, reason: &'static str) {
        self.push(Message::Close(Some(CloseFrame { code, reason: reason.into() })));
    }

    fn push(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    /// Queued messages.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the socket has taken every message.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_dirty
    }

    /// Moves one message into the socket, or flushes it. Cancel-safe; to be called only while not idle.
    pub(super) async fn advance(&mut self) -> Result<(), SendError> {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.limit);
        let (sink, queue, is_dirty) = (&mut self.sink, &mut self.queue, &mut self.is_dirty);
        let moved = poll_fn(|context| {
            if queue.is_empty() {
                ready!(sink.poll_flush_unpin(context))?;
                *is_dirty = false;
            } else {
                ready!(sink.poll_ready_unpin(context))?;
                if let Some(message) = queue.pop_front() {
                    *is_dirty = true;
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

    /// Sends every message.
    pub(super) async fn finish(&mut self) -> Result<(), SendError> {
        while !self.is_idle() {
            self.advance().await?;
        }
        Ok(())
    }
}
