//! What the end-to-end tests share: the real server on a real socket over an executor without weights, and clients.
#![forbid(unsafe_code)]

mod gate;
mod raw;
mod recording;
mod server;
mod session;
pub mod wer;

pub use gate::Gate;
pub use raw::{RawResponse, exchange};
pub use recording::{Form, base64, recording, transcript_events};
pub use server::{Setup, TestServer, copy, eventually, guarded};
pub use session::{Incoming, Session, Turn, Utterance};

/// Longest a test waits for anything; only a failure takes that long.
pub const GUARD: std::time::Duration = std::time::Duration::from_secs(60);
