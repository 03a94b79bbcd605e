//! The messages of a connection, whatever carries them: a WebSocket, or a protocol over TCP. Knows no frame.

use std::fmt;
use std::pin::Pin;

use axum::extract::ws::{Message, WebSocket};
use futures::stream::BoxStream;
use futures::{Sink, Stream, StreamExt};

pub(super) type MessageSink = Pin<Box<dyn Sink<Message, Error = axum::Error> + Send>>;
pub(super) type MessageStream = BoxStream<'static, Result<Message, axum::Error>>;

/// A connection that carries messages both ways. A carrier without pings drops those it is given; a close message ends
/// its sending half. An error whose source is an I/O error says that the connection is lost, any other that the peer
/// violates the protocol.
pub struct Socket {
    pub(super) sink: MessageSink,
    pub(super) incoming: MessageStream,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl Socket {
    /// A connection of two halves.
    pub fn new(
        sink: impl Sink<Message, Error = axum::Error> + Send + 'static,
        incoming: impl Stream<Item = Result<Message, axum::Error>> + Send + 'static,
    ) -> Self {
        Self { sink: Box::pin(sink), incoming: incoming.boxed() }
    }
}

impl From<WebSocket> for Socket {
    fn from(socket: WebSocket) -> Self {
        let (sink, incoming) = socket.split();
        Self::new(sink, incoming)
    }
}
