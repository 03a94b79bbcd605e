//! Wyoming events on a TCP stream: where one ends, how large it may be, and the halves of a connection. Knows no event.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::ws::Message;
use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::event::Header;

/// The most bytes of the first line of an event.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The receiving half of a connection: whole events.
pub(super) type Events = SplitStream<Framed<TcpStream, EventCodec>>;

/// Why no further event can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum CodecError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the first line of an event has more than {MAX_LINE_BYTES} bytes")]
    LongLine,
    #[error("the first line of an event is not JSON with a type: {0}")]
    Line(#[from] serde_json::Error),
    #[error("an event has more than {0} bytes; send audio and text in smaller parts")]
    TooLarge(usize),
}

impl CodecError {
    /// As the session driver tells a lost connection from a peer that violates the protocol: by the source.
    pub(super) fn into_axum(self) -> axum::Error {
        match self {
            Self::Io(error) => axum::Error::new(error),
            other => axum::Error::new(other),
        }
    }
}

/// Cuts events out of a stream.
#[derive(Debug)]
pub(super) struct EventCodec {
    max_bytes: usize,
    /// Bytes that have no line end in them.
    searched: usize,
    /// Bytes of the event whose line has arrived.
    length: Option<usize>,
}

impl EventCodec {
    /// A codec that refuses events of more than `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, searched: 0, length: None }
    }

    /// Length of the event at the start of `buffer`; `None` while its line is incomplete.
    fn length_of(&mut self, buffer: &[u8]) -> Result<Option<usize>, CodecError> {
        let line_end = buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(line_end) = line_end.map(|end| self.searched + end + 1) else {
            self.searched = buffer.len();
            return if buffer.len() > MAX_LINE_BYTES { Err(CodecError::LongLine) } else { Ok(None) };
        };
        if line_end > MAX_LINE_BYTES {
            return Err(CodecError::LongLine);
        }
        let rest = Header::parse(&buffer[..line_end])?.rest();
        let length =
            rest.and_then(|rest| rest.checked_add(line_end)).filter(|length| *length <= self.max_bytes);
        length.map(Some).ok_or(CodecError::TooLarge(self.max_bytes))
    }
}

impl Decoder for EventCodec {
    type Item = Bytes;
    type Error = CodecError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, CodecError> {
        if self.length.is_none() {
            self.length = self.length_of(buffer)?;
        }
        let Some(length) = self.length.filter(|length| *length <= buffer.len()) else { return Ok(None) };
        (self.length, self.searched) = (None, 0);
        Ok(Some(buffer.split_to(length).freeze()))
    }
}

impl Encoder<Bytes> for EventCodec {
    type Error = CodecError;

    fn encode(&mut self, event: Bytes, buffer: &mut BytesMut) -> Result<(), CodecError> {
        buffer.extend_from_slice(&event);
        Ok(())
    }
}

/// Divides a stream into its halves.
pub(super) fn split(stream: TcpStream, max_bytes: usize) -> (EventSink, Events) {
    let (sink, events) = Framed::new(stream, EventCodec::new(max_bytes)).split();
    (EventSink { sink, closing: Arc::default(), is_closing: false }, events)
}

/// The sending half of a connection. Binary messages are events, a close message ends the half, and others do not exist
/// in this protocol and are dropped.
pub(super) struct EventSink {
    sink: SplitSink<Framed<TcpStream, EventCodec>, Bytes>,
    closing: Arc<Notify>,
    is_closing: bool,
}

impl EventSink {
    /// Told once, when the half is being closed.
    pub(super) fn closing(&self) -> Arc<Notify> {
        Arc::clone(&self.closing)
    }
}

impl Sink<Message> for EventSink {
    type Error = axum::Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.sink.poll_ready_unpin(context).map_err(CodecError::into_axum)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), axum::Error> {
        match message {
            Message::Binary(event) => self.sink.start_send_unpin(event).map_err(CodecError::into_axum),
            Message::Close(_) => {
                self.is_closing = true;
                self.closing.notify_one();
                Ok(())
            }
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => Ok(()),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        let polled = match self.is_closing {
            true => self.sink.poll_close_unpin(context),
            false => self.sink.poll_flush_unpin(context),
        };
        polled.map_err(CodecError::into_axum)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        self.sink.poll_close_unpin(context).map_err(CodecError::into_axum)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wyoming::event::event;

    proptest! {
        #[test]
        fn events_are_the_same_however_their_bytes_arrive(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6),
            cut in 1usize..64,
        ) {
            let events: Vec<Bytes> =
                payloads.iter().map(|payload| event("audio-chunk", &serde_json::json!({"rate": 1}), payload)).collect();
            let mut codec = EventCodec::new(1_000);
            let (mut buffer, mut read) = (BytesMut::new(), Vec::new());
            for piece in events.concat().chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(event) = codec.decode(&mut buffer).unwrap() {
                    read.push(event);
                }
            }
            prop_assert_eq!(read, events);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut codec = EventCodec::new(100);
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(event)) = codec.decode(&mut buffer) {
                // An error is as good as an event.
                drop(crate::wyoming::event::ClientEvent::parse(&event));
            }
        }
    }

    #[test]
    fn lines_and_events_are_bounded() {
        let refused =
            |bytes: &[u8]| EventCodec::new(1_000).decode(&mut BytesMut::from(bytes)).unwrap_err().to_string();
        assert!(refused(&vec![b' '; MAX_LINE_BYTES + 1]).contains("65536"));
        assert!(refused(b"{\"type\": \"audio-chunk\", \"payload_length\": 1001}\n").contains("1000"));
        let absurd =
            format!("{{\"type\": \"a\", \"data_length\": {0}, \"payload_length\": {0}}}\n", usize::MAX);
        assert!(refused(absurd.as_bytes()).contains("1000"));
        assert!(refused(b"GET / HTTP/1.1\r\n").contains("not JSON"));
        assert!(refused(b"{}\n").contains("type"));
        assert!(refused(b"{\"type\": \"a\", \"data_length\": -1}\n").contains("not JSON"));
    }
}
