//! Interfaces of other services, so that their clients work with a changed address. Each is one folder and one line in
//! [`all`] or, with a port of its own, a [`TcpService`](izwi_server::TcpService); sessions are
//! [`Protocol`](izwi_server::ws::protocol::Protocol)s of the server's driver.
//!
//! Owns their routes, messages and errors. Knows engines as handles only, as the server does.

#![forbid(unsafe_code)]

mod deepgram;
mod elevenlabs;
pub mod fuzzing;
mod hosted;
mod local;
pub mod mcp;
mod realtime;
mod response;
mod wyoming;

use izwi_server::Dialects;

pub use self::wyoming::Wyoming;

/// Every dialect that speaks HTTP or WebSocket.
pub const fn all() -> Dialects {
    Dialects::new(&[
        &deepgram::Deepgram,
        &elevenlabs::ElevenLabs,
        &realtime::Realtime,
        &local::Local,
        &mcp::Mcp,
    ])
}
