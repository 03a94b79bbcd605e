//! The HTTP and WebSocket service over the engine.
//!
//! Owns routes, wire types, limits, access rules and shutdown. Knows engines as handles only: no tensor, no scheduler,
//! no model loading and no terminal. The listener, the configuration and the shutdown signal are arguments.

#![forbid(unsafe_code)]

mod access;
mod bare_errors;
mod chunking;
mod config;
mod connections;
mod dialects;
mod dto;
mod encoding;
mod error;
mod extract;
mod graceful_close;
mod held_body;
mod ignored;
mod json_size;
mod late_key;
mod live;
mod metrics;
mod middleware;
mod net;
mod openapi;
mod page;
mod peer;
mod pulls;
mod record;
mod registry;
mod routes;
mod serve;
mod slow_body;
mod speech;
mod state;
mod stats_headers;
mod traces;
mod transcript_format;
mod transcription;
mod turns;
mod upload;
mod voices;
mod ws;

pub use access::{
    BindError, HostError, KeyError, OriginError, check_allowed_host, check_allowed_origin, check_bind,
    check_key,
};
pub use config::{FilesError, InstanceError, ServerConfig, check_instance};
pub use error::ApiError;
pub use metrics::{Recorder, RecorderError};
pub use registry::{ASR_ALIASES, Loader, Offer, Registry, RegistryConfig, RestartPolicy, Slot, TTS_ALIASES};
pub use routes::{openapi_json, router};
pub use serve::{Listeners, ServeError, serve};
pub use state::AppState;
pub use traces::{Traces, TracesError};
pub use transcript_format::{AsrTask, FinishedTranscript, JsonExtras, TokenUsage, TranscriptFormat};
pub use voices::OPENAI_VOICES;
#[doc(hidden)]
pub use ws::fuzzing;
