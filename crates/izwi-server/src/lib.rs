//! The HTTP and WebSocket service over the engine.
//!
//! Owns routes, wire types, limits, access rules and shutdown. Knows engines as handles only: no tensor, no scheduler,
//! no model loading and no terminal. The listener, the settings and the shutdown signal are arguments.
#![forbid(unsafe_code)]

mod config;
mod dto;
mod encoding;
mod error;
mod extract;
mod limits;
mod linger;
mod listening;
mod metrics;
mod near;
mod net;
mod numbers;
mod registry;
mod routes;
mod security;
mod serve;
mod speech;
mod state;
mod upload;
mod voices;
mod ws;

pub use config::ServerConfig;
pub use error::ApiError;
pub use metrics::{Recorder, RecorderError};
pub use registry::{DEFAULT_ALIASES, FleetConfig, LISTENING_ALIASES, Loader, Offer, Registry, Slot};
pub use routes::router;
pub use security::{BindError, check_bind};
pub use serve::{ServeError, serve};
pub use state::AppState;
pub use voices::OPENAI_VOICES;
