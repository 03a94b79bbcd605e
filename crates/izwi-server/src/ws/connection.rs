//! One connection of a session: its socket and its clocks: idle timeout, keep-alive pings, size limit, close. Knows no
//! protocol.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::ws::{Message, close_code};
use futures::StreamExt;
use izwi_core::engine::RequestId;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::outbox::Outbox;
use super::protocol::ClientMessage;
use super::socket::{MessageStream, Socket};
use super::writer::{SendError, Writer};
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::record;
use crate::state::AppState;

/// Messages that may be queued before reading pauses: a client that only sends must also read.
pub(super) const MAX_QUEUED: usize = 32;
/// The same in bytes; one more answer may follow.
const MAX_QUEUED_BYTES: usize = 256 << 10;
/// How long a peer may take to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a reason: a close frame holds 125, two of which are the code.
const MAX_REASON: usize = 123;

/// The codes of a peer whose frames cannot be read any more.
const UNREADABLE: [u16; 3] = [close_code::PROTOCOL, close_code::INVALID, close_code::SIZE];

/// Close code and reason.
pub(super) type Closing = (u16, Cow<'static, str>);

/// What happened on the connection.
pub(super) enum Signal {
    /// Nothing that concerns the session.
    Handled,
    /// A message within the size limit.
    Message(ClientMessage),
    /// A message beyond the size limit.
    Refused(ApiError),
    /// The server takes no new work. Comes once.
    Draining,
    /// The session cannot continue.
    Failed(ApiError, Closing),
    /// The peer has closed the session.
    Closed,
    /// The connection is lost, or the peer does not read.
    Lost,
}

enum Event {
    Sent(Result<(), SendError>),
    Received(Option<Result<Message, axum::Error>>),
    PingDue,
    Idle,
    Draining,
}

pub(super) struct Connection {
    state: AppState,
    pub(super) id: RequestId,
    writer: Writer,
    incoming: MessageStream,
    draining: watch::Receiver<bool>,
    is_draining: bool,
    ping: Interval,
    active_at: Instant,
    /// Until when the peer may answer the close frame, once that is queued.
    close_by: Option<Instant>,
    /// Whether the peer has sent its close frame first.
    is_closed_by_peer: bool,
    /// Counts the connection in the limit of sessions.
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(state: AppState, id: RequestId, socket: Socket, permit: OwnedSemaphorePermit) -> Self {
        let Socket { sink, incoming } = socket;
        let config = state.config();
        let now = Instant::now();
        let mut ping = interval_at(now + config.ping_interval, config.ping_interval);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tracing::debug!(session = %id, "session opened");
        Self {
            writer: Writer::new(sink, config.send_timeout),
            incoming,
            draining: state.draining(),
            is_draining: false,
            ping,
            active_at: now,
            close_by: None,
            is_closed_by_peer: false,
            _permit: permit,
            id,
            state,
        }
    }

    pub(super) fn config(&self) -> &ServerConfig {
        self.state.config()
    }

    /// Restarts the idle timeout.
    pub(super) fn touch(&mut self) {
        self.active_at = Instant::now();
    }

    /// Marks the session as one that ends because the server does.
    pub(super) fn note_draining(&mut self) {
        self.is_draining = true;
    }

    /// How a session closes that is done.
    pub(super) fn closing_when_done(&self) -> Closing {
        (if self.is_draining { close_code::AWAY } else { close_code::NORMAL }, "done".into())
    }

    /// Sends queued messages and waits for the next signal. It reads only if `may_read`, and may idle only for
    /// `idle_timeout`, if there is one. Cancel-safe.
    pub(super) async fn next(
        &mut self,
        outbox: &mut Outbox,
        may_read: bool,
        idle_timeout: Option<Duration>,
    ) -> Signal {
        match self.event(outbox, may_read, idle_timeout).await {
            Event::Sent(Ok(())) => Signal::Handled,
            Event::Sent(Err(error)) => {
                tracing::info!(session = %self.id, %error, "connection lost");
                Signal::Lost
            }
            Event::Received(received) => self.receive(received),
            Event::PingDue => {
                outbox.trim();
                if self.writer.is_idle(outbox) {
                    self.writer.ping();
                }
                Signal::Handled
            }
            Event::Idle => {
                let error = ApiError::IdleTimeout(idle_timeout.unwrap_or_default());
                Signal::Failed(error, (close_code::POLICY, "idle".into()))
            }
            Event::Draining => {
                self.is_draining = true;
                Signal::Draining
            }
        }
    }

    async fn event(&mut self, outbox: &mut Outbox, may_read: bool, idle_timeout: Option<Duration>) -> Event {
        let is_sending = !self.writer.is_idle(outbox);
        let may_read = may_read && outbox.queued() < MAX_QUEUED && outbox.queued_bytes() < MAX_QUEUED_BYTES;
        let idle_at = self.active_at + idle_timeout.unwrap_or_default();
        tokio::select! {
            received = self.incoming.next(), if may_read => Event::Received(received),
            sent = self.writer.advance(outbox), if is_sending => Event::Sent(sent),
            _ = self.draining.wait_for(|draining| *draining), if !self.is_draining => Event::Draining,
            _ = self.ping.tick() => Event::PingDue,
            () = tokio::time::sleep_until(idle_at), if idle_timeout.is_some() => Event::Idle,
        }
    }

    fn receive(&mut self, received: Option<Result<Message, axum::Error>>) -> Signal {
        let signal = match received {
            Some(Ok(Message::Close(frame))) => {
                self.is_closed_by_peer = true;
                record::closed(frame.map_or(close_code::STATUS, |frame| frame.code));
                tracing::debug!(session = %self.id, "client closed the session");
                return Signal::Closed;
            }
            None => return Signal::Lost,
            Some(Err(error)) if is_lost(&error) => {
                tracing::debug!(session = %self.id, %error, "connection lost");
                return Signal::Lost;
            }
            Some(Err(error)) => {
                let closing = closing_for(&error);
                return Signal::Failed(ApiError::BrokenFrame(error.to_string()), closing);
            }
            Some(Ok(Message::Pong(_))) => return Signal::Handled,
            Some(Ok(Message::Ping(_))) => Signal::Handled,
            Some(Ok(Message::Binary(bytes))) => self.limited(bytes.len(), ClientMessage::Binary(bytes)),
            Some(Ok(Message::Text(text))) => self.limited(text.len(), ClientMessage::Text(text)),
        };
        self.touch();
        signal
    }

    fn limited(&self, bytes: usize, message: ClientMessage) -> Signal {
        record::received(bytes);
        let limit = self.config().max_frame_bytes;
        if bytes <= limit {
            return Signal::Message(message);
        }
        Signal::Refused(ApiError::TooLarge(format!("frame has more than {limit} bytes; send less at once")))
    }

    /// Answers the close frame of a peer that closed the session; gives up on one that does not read.
    pub(super) async fn leave(&mut self) {
        if self.is_closed_by_peer {
            // A peer that has left meanwhile needs none.
            drop(tokio::time::timeout(CLOSE_TIMEOUT, self.writer.answer_close()).await);
        }
    }

    /// Whether the socket has taken all messages.
    pub(super) fn is_idle(&self, outbox: &Outbox) -> bool {
        self.writer.is_idle(outbox)
    }

    /// Sends the queued messages and closes; gives up on a peer that does not read or answer. Returns `Closed` once the
    /// peer has answered. Cancel-safe.
    pub(super) async fn close(&mut self, outbox: &mut Outbox, (code, reason): &Closing) -> Signal {
        if self.close_by.is_none() {
            if self.writer.finish(outbox).await.is_err() {
                return Signal::Lost;
            }
            self.writer.close(*code, excerpt(reason));
            record::closed(*code);
            self.close_by = Some(Instant::now() + CLOSE_TIMEOUT);
            tracing::debug!(session = %self.id, code, %reason, "session closed");
        }
        let sent = self.writer.finish(outbox).await;
        let by = *self.close_by.get_or_insert_with(Instant::now);
        if sent.is_err() {
            return Signal::Lost;
        }
        // Closing the socket with bytes unread would reset the connection, and the peer would lose the last frames.
        let answered = async {
            loop {
                match self.incoming.next().await {
                    Some(Ok(Message::Close(_))) => return Signal::Closed,
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None if UNREADABLE.contains(code) => std::future::pending().await,
                    Some(Err(_)) | None => return Signal::Lost,
                }
            }
        };
        tokio::time::timeout_at(by, answered).await.unwrap_or(Signal::Lost)
    }
}

/// As much of a reason as fits into a close frame.
fn excerpt(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

/// How to close after an error of the peer. The library's type for it is not part of axum's interface.
fn closing_for(error: &axum::Error) -> Closing {
    let error = error.to_string();
    if error.starts_with("UTF-8") {
        (close_code::INVALID, "not UTF-8".into())
    } else if error.starts_with("Space limit") {
        (close_code::SIZE, "message too large".into())
    } else {
        (close_code::PROTOCOL, "protocol error".into())
    }
}

/// Whether an error says that the connection broke, and not that the peer violated the protocol.
fn is_lost(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<std::io::Error>() {
            return true;
        }
        source = cause.source();
    }
    // The WebSocket library's type for the end of a connection without a close frame is not part of axum's interface.
    error.to_string().contains("without closing handshake")
}
