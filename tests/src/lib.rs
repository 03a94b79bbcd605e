//! Shared by the end-to-end tests: the real server on a real socket over a simulated executor, and clients.
#![forbid(unsafe_code)]

mod collector;
mod dice;
mod gate;
mod llm;
mod log;
mod raw;
mod recording;
mod server;
mod session;
mod speakers;
pub mod synthetic;
mod upstream;
mod waiting;
pub mod wer;

pub use collector::TraceCollector;
pub use dice::Dice;
pub use gate::Gate;
pub use llm::{Completion, Line, Llm};
pub use log::Log;
pub use raw::{RawResponse, exchange};
pub use recording::{Form, base64, recording, transcript_events};
pub use server::{Setup, TestServer, copy, provide_tls};
pub use session::{Incoming, Session, Turn, Utterance};
pub use speakers::{live_speakers, live_speakers_with};
pub use upstream::{Reply, Seen, Upstream};
pub use waiting::{eventually, guarded};

/// Timeout of every wait.
pub const GUARD: std::time::Duration = std::time::Duration::from_secs(60);
