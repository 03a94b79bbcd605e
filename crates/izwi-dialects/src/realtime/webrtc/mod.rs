//! The network's end of a session over WebRTC: audio as Opus over RTP, events over the client's data channel.
//!
//! A [`Peer`] carries both for a session, which knows no WebRTC: it sees a client that sends audio as it comes, plays answers
//! as fast as they are spoken, and cuts them where it stopped. Nothing is asked of other servers: the addresses of this
//! machine are its candidates.

mod audio_receiver;
mod client_events;
mod interfaces;
mod peer;
mod playout;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod tests;

pub(super) use self::peer::{Peer, PeerError, session_channel};
