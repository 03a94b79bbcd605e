//! Wyoming, the protocol of Home Assistant's voice services: events of JSON and PCM over TCP, for speech and transcripts.
//!
//! A connection runs on the common session driver. It counts as a connection and as a session, with their limits; one whose
//! first event has not come gives its place to a new one. There is no authentication in this protocol, and no browser can
//! speak it: the first line of HTTP is no event, and ends the connection.

mod codec;
mod event;
mod info;
mod mono;
mod session;
mod speech;
mod transcription;
mod zeroconf;

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ws::Message;
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt, stream};
use izwi_core::engine::RequestId;
use izwi_server::connections::Place;
use izwi_server::record::{self, RequestRecord};
use izwi_server::ws;
use izwi_server::ws::socket::Socket;
use izwi_server::{AppState, TcpService};
use tokio::net::TcpStream;

use self::codec::CodecError;
use self::session::Session;

/// How long a client that is refused may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Wyoming on a port of its own, for [`Listeners::services`](izwi_server::Listeners).
#[derive(Debug)]
pub struct Wyoming {
    /// Whether the port is announced by multicast DNS.
    pub zeroconf: bool,
}

impl TcpService for Wyoming {
    fn name(&self) -> &'static str {
        "wyoming"
    }

    fn announce(&self, address: SocketAddr) -> Option<Box<dyn Any + Send>> {
        let announcement = self.zeroconf.then(|| zeroconf::announce(address))??;
        Some(Box::new(announcement))
    }

    fn serve(&self, state: AppState, stream: TcpStream, place: Place) -> BoxFuture<'static, ()> {
        serve(state, stream, place).boxed()
    }
}

async fn serve(state: AppState, stream: TcpStream, place: Place) {
    let (mut sink, mut events) = codec::split(stream, state.config().max_frame_bytes);
    let first = tokio::select! {
        () = place.evicted() => return,
        first = events.next() => first,
    };
    let Some(first) = first else { return };
    place.upgrade();
    let closing = sink.closing();
    match state.admit_session() {
        Ok(permit) => {
            let incoming = stream::iter([first]).chain(events);
            let messages = incoming.map(|event| event.map(Message::Binary).map_err(CodecError::into_axum));
            let id = RequestId::random();
            let record = RequestRecord::of_session(state.config(), id.clone(), "wyoming", place.peer);
            let session = ws::serve::<Session>(state, id, Socket::new(sink, messages), permit, ());
            // A client that does not close its half keeps the place from nobody.
            let displaced = async {
                closing.notified().await;
                place.end();
                place.evicted().await;
            };
            tokio::select! {
                biased;
                () = record::within(Some(record), session) => {}
                () = displaced => {}
            }
        }
        Err(error) => {
            error.count();
            // Whoever does not read it is not told.
            let refusal = sink.send(Message::Binary(event::error(&error)));
            drop(tokio::time::timeout(REFUSAL_TIMEOUT, refusal).await);
        }
    }
}
