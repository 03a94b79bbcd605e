//! What can go wrong in an engine, as values. Status codes and wire forms belong to the server.

use std::time::Duration;

use izwi_audio::decode::DecodeError;

/// An engine call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A field of the request cannot be used.
    #[error("{message}")]
    InvalidRequest {
        /// The field, by its public name.
        param: String,
        /// What is wrong, the value and the remedy.
        message: String,
    },
    /// The recording cannot be used.
    #[error("{0}")]
    Audio(#[from] DecodeError),
    /// The recording of a voice to speak in cannot be used.
    #[error("ref_audio: {0}")]
    ReferenceAudio(#[source] DecodeError),
    /// A setting cannot be used.
    #[error("configuration: {field} = {value}: {message}")]
    Config {
        /// The setting.
        field: String,
        /// Its value.
        value: String,
        /// What would be right.
        message: String,
    },
    /// The model cannot do what was asked.
    #[error("model '{model}' cannot do {task}; choose a model that does, see `izwi list`")]
    UnsupportedTask {
        /// The model.
        model: String,
        /// The task.
        task: &'static str,
    },
    /// Too many requests wait already.
    #[error("{waiting} requests are waiting already; try again in {} s", retry_after.as_secs())]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
        /// When to come back.
        retry_after: Duration,
    },
    /// Too much audio waits to be heard already.
    #[error("recordings of {} s in all are taken at once, and too many are open already; try again later", limit.as_secs())]
    AudioOverload {
        /// The limit.
        limit: Duration,
    },
    /// The model could not be found or loaded.
    #[error("{0}")]
    Load(String),
    /// The executor failed on a step that this request was part of.
    #[error("execution failed: {0}")]
    Execution(String),
    /// The request was aborted before it finished.
    #[error("request was aborted")]
    Aborted,
    /// The engine is finishing its last requests and takes no new ones.
    #[error("engine is draining and takes no new requests")]
    Draining,
    /// The engine has stopped.
    #[error("engine has stopped: {0}")]
    Stopped(String),
    /// A request with this id is already there.
    #[error("request id '{0}' is in use; give another or none")]
    DuplicateId(String),
}

impl EngineError {
    pub(crate) fn config(field: &str, value: &str, message: &str) -> Self {
        Self::Config { field: field.to_owned(), value: value.to_owned(), message: message.to_owned() }
    }

    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { param: param.to_owned(), message: message.into() }
    }
}

/// Shorthand of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// One of a fixed set of words, for the metric of rejections.
    pub(crate) fn rejection_reason(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } | Self::DuplicateId(_) => "invalid",
            Self::Audio(_) | Self::ReferenceAudio(_) => "audio",
            Self::UnsupportedTask { .. } => "unsupported_task",
            Self::Overloaded { .. } | Self::AudioOverload { .. } => "overloaded",
            Self::Draining => "draining",
            Self::Stopped(_) | Self::Aborted => "stopped",
            Self::Config { .. } | Self::Load(_) | Self::Execution(_) => "internal",
        }
    }
}
