//! Wyoming, the protocol of Home Assistant's voice services: events of JSON and PCM over TCP, for speech and transcripts.
//!
//! A connection runs on the common session driver. It counts as a connection and as a session, with their limits; one whose
//! first event has not come gives its place to a new one. There is no authentication in this protocol, and no browser can
//! speak it: the first line of HTTP is no event, and ends the connection.

mod codec;
mod event;
mod info;
mod recording;
mod session;
mod speech;
mod transcription;
mod zeroconf;

use std::time::Duration;

use axum::extract::ws::Message;
use futures::{SinkExt, StreamExt, stream};
use izwi_core::engine::RequestId;
use tokio::net::TcpStream;

use self::codec::CodecError;
use self::session::Wyoming;
pub(crate) use self::zeroconf::announce;
use crate::connections::Place;
use crate::record::{self, RequestRecord};
use crate::state::AppState;
use crate::ws;
use crate::ws::socket::Socket;

/// How long a client that is refused may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a connection until it ends.
pub(crate) async fn serve(state: AppState, stream: TcpStream, place: Place) {
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
            let session = ws::serve::<Wyoming>(state, id, Socket::new(sink, messages), permit, ());
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
