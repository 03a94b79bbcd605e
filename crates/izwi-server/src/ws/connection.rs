//! What every session shares: its socket, its clocks, and how it ends. Knows no protocol.

use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::SplitStream;
use izwi_core::engine::RequestId;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::wire::{Wire, WireError};
use crate::error::ApiError;
use crate::state::AppState;

/// Answers that may wait before reading pauses: a client that only asks must also read.
pub(super) const MAX_QUEUED: usize = 32;
/// How long a peer may take to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Close code and reason.
pub(super) type Ending = (u16, &'static str);

/// News for a session.
pub(super) enum Signal {
    /// Nothing that it need know.
    Moved,
    /// A text message within the limit.
    Text(Utf8Bytes),
    /// A binary message within the limit.
    Binary(Bytes),
    /// A message that is refused.
    Refused(ApiError),
    /// The server takes no new work. Comes once.
    Draining,
    /// It is over: how to close, or `None` when nobody is there to be told.
    Over(Option<Ending>),
}

enum Event {
    Sent(Result<(), WireError>),
    Received(Option<Result<Message, axum::Error>>),
    PingDue,
    Idle,
    Draining,
}

pub(super) struct Link {
    pub(super) state: AppState,
    pub(super) id: RequestId,
    pub(super) wire: Wire,
    incoming: SplitStream<WebSocket>,
    draining: watch::Receiver<bool>,
    is_draining: bool,
    ping: Interval,
    active_at: Instant,
}

impl Link {
    pub(super) fn new(state: AppState, id: RequestId, socket: WebSocket) -> Self {
        let (sink, incoming) = socket.split();
        let config = state.config();
        let now = Instant::now();
        let mut ping = interval_at(now + config.ping_interval, config.ping_interval);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tracing::debug!(session = %id, "session opened");
        Self {
            wire: Wire::new(sink, config.send_timeout),
            incoming,
            draining: state.draining(),
            is_draining: false,
            ping,
            active_at: now,
            id,
            state,
        }
    }

    /// The client did something, or something was done for it: it is not idle.
    pub(super) fn touch(&mut self) {
        self.active_at = Instant::now();
    }

    /// From now on the session is one that ends because the server does.
    pub(super) fn note_draining(&mut self) {
        self.is_draining = true;
    }

    /// How a session closes that came to its end.
    pub(super) fn ending(&self) -> Ending {
        (if self.is_draining { close_code::AWAY } else { close_code::NORMAL }, "done")
    }

    /// Sends what there is and waits for news. It reads only where `hears`, and loses patience with a silent client only
    /// where `may_idle`. Cancel-safe.
    pub(super) async fn next(&mut self, hears: bool, may_idle: bool) -> Signal {
        match self.event(hears, may_idle).await {
            Event::Sent(Ok(())) => Signal::Moved,
            Event::Sent(Err(error)) => {
                tracing::info!(session = %self.id, %error, "session dropped");
                Signal::Over(None)
            }
            Event::Received(received) => self.receive(received),
            Event::PingDue => {
                if self.wire.is_idle() {
                    self.wire.ping();
                }
                Signal::Moved
            }
            Event::Idle => {
                self.wire.error(&ApiError::IdleTimeout(self.state.config().idle_timeout));
                Signal::Over(Some((close_code::POLICY, "idle")))
            }
            Event::Draining => {
                self.is_draining = true;
                Signal::Draining
            }
        }
    }

    async fn event(&mut self, hears: bool, may_idle: bool) -> Event {
        let wire_is_idle = self.wire.is_idle();
        let hears = hears && self.wire.queued() < MAX_QUEUED;
        let idle_at = self.active_at + self.state.config().idle_timeout;
        tokio::select! {
            received = self.incoming.next(), if hears => Event::Received(received),
            sent = self.wire.advance(), if !wire_is_idle => Event::Sent(sent),
            _ = self.draining.wait_for(|draining| *draining), if !self.is_draining => Event::Draining,
            _ = self.ping.tick() => Event::PingDue,
            () = tokio::time::sleep_until(idle_at), if may_idle => Event::Idle,
        }
    }

    fn receive(&mut self, received: Option<Result<Message, axum::Error>>) -> Signal {
        let signal = match received {
            None | Some(Ok(Message::Close(_))) => {
                tracing::debug!(session = %self.id, "client has left");
                return Signal::Over(None);
            }
            Some(Err(error)) => {
                self.wire.error(&ApiError::BrokenFrame(error.to_string()));
                return Signal::Over(Some((close_code::PROTOCOL, "protocol error")));
            }
            Some(Ok(Message::Pong(_))) => return Signal::Moved,
            Some(Ok(Message::Ping(_))) => Signal::Moved,
            Some(Ok(Message::Binary(bytes))) => {
                self.check_size(bytes.len()).map_or_else(Signal::Refused, |()| Signal::Binary(bytes))
            }
            Some(Ok(Message::Text(text))) => {
                self.check_size(text.len()).map_or_else(Signal::Refused, |()| Signal::Text(text))
            }
        };
        self.touch();
        signal
    }

    fn check_size(&self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.state.config().max_frame_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(ApiError::TooLarge(format!("frame has more than {limit} bytes; send less at once")))
    }

    /// Sends what is left and closes; gives up on a peer that does not read or answer.
    pub(super) async fn close(mut self, (code, reason): Ending) {
        self.wire.close(code, reason);
        tracing::debug!(session = %self.id, code, reason, "session closed");
        if self.wire.finish().await.is_err() {
            return;
        }
        // Leaving with bytes unread would reset the connection and take the last frames with it.
        let answered = async {
            while let Some(Ok(_)) = self.incoming.next().await {}
            if code == close_code::PROTOCOL {
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, answered).await;
    }
}
