//! Models that other servers run: a client of the OpenAI audio API (vLLM-Omni, SGLang-Omni, speaches, another Izwi) behind an
//! [`Engine`](izwi_core::engine::Engine).
//!
//! [`RemoteClient`] is the [`RemoteModel`](izwi_core::engine::RemoteModel) of the engine: `text → speech` and
//! `recording → text`. It chooses among several servers, retries before the first byte, and stops asking a server that
//! fails. [`Pipeline`] is a chat model of three: what the user says is transcribed, a language model at a server answers, and the
//! answer is spoken while it is written. Must not know routes, sessions or tensors.
#![forbid(unsafe_code)]

mod answer;
mod client;
mod config;
mod pipeline;
mod shared;
mod speech;
mod transcription;
mod upstreams;

pub use client::{LOCAL_LLMS, RemoteClient, listed_models, plain_client};
pub use config::{ConfigError, RemoteConfig, Secret};
pub use pipeline::{LanguageModel, Pipeline, PipelineConfig, PipelineError};
