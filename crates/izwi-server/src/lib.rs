//! The HTTP and WebSocket service over the engine.
//!
//! Owns routes, wire types, limits, access rules and shutdown. Knows engines as handles only: no tensor, no scheduler,
//! no model loading and no terminal. The listener, the configuration and the shutdown signal are arguments, and so are the
//! [`Dialects`]: the public modules are what those are made of.

#![forbid(unsafe_code)]

mod access;
mod alignment_format;
mod bare_errors;
pub mod chunking;
mod config;
pub mod connections;
mod dialect;
pub mod dto;
pub mod encoding;
mod error;
pub mod extract;
mod graceful_close;
mod held_body;
pub mod ignored;
mod jobs;
mod json_size;
pub mod late_key;
pub mod lexicons;
pub mod live;
pub mod metrics;
mod middleware;
mod net;
pub mod openapi;
mod page;
mod peer;
mod pulls;
pub mod record;
mod registry;
pub mod routes;
mod serve;
mod slow_body;
pub mod speakers;
pub mod speech;
mod state;
pub mod stats_headers;
mod traces;
mod transcript_format;
pub mod transcription;
pub mod turns;
pub mod upload;
pub mod voices;
mod worker;
pub mod ws;

pub use access::{
    BindError, ClientSecrets, Granted, HostError, KeyError, OriginError, check_allowed_host,
    check_allowed_origin, check_bind, check_key,
};
pub use alignment_format::AlignmentFormat;
pub use config::{FilesError, InstanceError, ServerConfig, check_instance};
pub use dialect::{Dialect, Dialects, TcpService};
pub use error::ApiError;
pub use metrics::{Recorder, RecorderError};
pub use registry::{
    ASR_ALIASES, BLENDING, Lease, Loader, Offer, Registry, RegistryConfig, RestartPolicy, Slot, TTS_ALIASES,
};
pub use routes::{openapi_json, router, routes};
pub use serve::{Listeners, ServeError, serve};
pub use state::AppState;
pub use traces::{Traces, TracesError};
pub use transcript_format::{AsrTask, FinishedTranscript, JsonExtras, TokenUsage, TranscriptFormat};
pub use voices::OPENAI_VOICES;
#[doc(hidden)]
pub use ws::fuzzing;
