//! Errors of an engine.
//!
//! Must not know status codes or wire formats.

use std::time::Duration;

use izwi_audio::decode::DecodeError;
use izwi_types::InputError;

use super::memory::MemoryFull;

/// Why another server gives no answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// It refuses the request.
    #[error("{0}")]
    Refused(String),
    /// It, or the limit of this model, allows no further request now.
    #[error("{message}")]
    Busy {
        /// The limit and the remedy.
        message: String,
        /// Suggested time until a retry.
        retry_after: Duration,
    },
    /// None of the model's servers can be asked now.
    #[error("{message}")]
    Unavailable {
        /// What failed.
        message: String,
        /// Suggested time until a retry.
        retry_after: Duration,
    },
    /// It failed, or did not answer as the protocol says.
    #[error("{0}")]
    Failed(String),
}

/// An engine call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A field of the request is invalid.
    #[error("{message}")]
    InvalidRequest {
        /// The field, by its public name.
        param: String,
        /// What is wrong, with the value and the remedy.
        message: String,
    },
    /// The recording cannot be decoded.
    #[error("{0}")]
    Audio(#[from] DecodeError),
    /// The reference recording for voice cloning cannot be decoded.
    #[error("ref_audio: {0}")]
    ReferenceAudio(#[source] DecodeError),
    /// A setting is invalid.
    #[error("configuration: {field} = {value}: {message}")]
    Config {
        /// The setting.
        field: String,
        /// Its value.
        value: String,
        /// Valid values.
        message: String,
    },
    /// The model does not support the task.
    #[error("model '{model}' does not support {task}; choose a model that does, see `izwi list`")]
    UnsupportedTask {
        /// The model.
        model: String,
        /// The task.
        task: &'static str,
    },
    /// The waiting queue is full.
    #[error("{waiting} requests are waiting already; try again in {:.0} s", retry_after.as_secs_f64().ceil())]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
        /// Suggested time until a retry.
        retry_after: Duration,
    },
    /// Another live stream would interrupt those that play.
    #[error("the device is busy with live streams; try again in {:.0} s", retry_after.as_secs_f64().ceil())]
    Saturated {
        /// Predicted time until the request would be accepted.
        retry_after: Duration,
    },
    /// The open recordings take all memory that they may.
    #[error(transparent)]
    MemoryFull(#[from] MemoryFull),
    /// The model was not found or did not load.
    #[error("{0}")]
    Load(String),
    /// The executor failed in a step of this request.
    #[error("execution failed: {0}")]
    Execution(String),
    /// The servers that run a remote model give no answer.
    #[error("{0}")]
    Remote(#[from] RemoteError),
    /// The request was aborted before it finished.
    #[error("request was aborted")]
    Aborted,
    /// The engine is draining and rejects new requests.
    #[error("engine is draining and rejects new requests")]
    Draining,
    /// The engine has stopped.
    #[error("engine has stopped: {0}")]
    Stopped(String),
    /// Another open request has this id.
    #[error("request id '{0}' is in use; give another or none")]
    DuplicateId(String),
}

impl From<InputError> for EngineError {
    fn from(error: InputError) -> Self {
        Self::invalid(error.param, error.message)
    }
}

impl EngineError {
    pub(crate) fn config(field: &str, value: &str, message: &str) -> Self {
        Self::Config { field: field.to_owned(), value: value.to_owned(), message: message.to_owned() }
    }

    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { param: param.to_owned(), message: message.into() }
    }
}

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// The `reason` label of the rejection metric.
    pub(crate) fn rejection_reason(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } | Self::DuplicateId(_) => "invalid",
            Self::Audio(_) | Self::ReferenceAudio(_) => "audio",
            Self::UnsupportedTask { .. } => "unsupported_task",
            Self::Overloaded { .. } | Self::MemoryFull(_) => "overloaded",
            Self::Saturated { .. } => "saturated",
            Self::Remote(RemoteError::Busy { .. }) => "overloaded",
            Self::Remote(RemoteError::Refused(_)) => "invalid",
            Self::Remote(_) => "upstream",
            Self::Draining => "draining",
            Self::Stopped(_) | Self::Aborted => "stopped",
            Self::Config { .. } | Self::Load(_) | Self::Execution(_) => "internal",
        }
    }
}
