//! The error type of all routes, and its translation into statuses and the error envelope.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use izwi_audio::decode::DecodeError;
use izwi_core::engine::{EngineError, RemoteError, RequestId, metrics};
use izwi_hub::{SavedError, VoiceError};
use izwi_types::{bounded, excerpt};

use crate::dto::error::{ErrorBody, ErrorEnvelope};

/// `Retry-After` while a model loads, in seconds.
const LOADING_RETRY_S: u64 = 5;
/// `Retry-After` while too many recordings are open.
const AUDIO_RETRY: Duration = Duration::from_secs(10);
/// `Retry-After` while the server drains: another instance may take over.
const DRAINING_RETRY_S: u64 = 5;

/// Codes of what cannot be done with lexicons.
pub(crate) const NO_LEXICON: &str = "lexicon_not_found";
pub(crate) const LEXICON_EXISTS: &str = "lexicon_exists";
pub(crate) const LEXICON_LIMIT: &str = "lexicon_limit";

/// Codes of what cannot be done with jobs.
pub(crate) const NO_JOB: &str = "job_not_found";
pub(crate) const JOB_LIMIT: &str = "job_limit";
pub(crate) const NO_RESULT: &str = "job_not_completed";

/// The most characters of a message, whatever it repeats. Messages cut what they repeat with [`izwi_types::excerpt`].
const MAX_MESSAGE_CHARS: usize = 1_000;

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A field cannot be used.
    #[error("{message}")]
    Invalid {
        /// The field, by its wire name.
        param: String,
        /// What is wrong, the value and the remedy.
        message: String,
    },
    /// The recording cannot be used.
    #[error("{error}")]
    Audio {
        /// The field it came in, by its wire name.
        param: &'static str,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// The body is not JSON.
    #[error("body is not valid JSON: {0}")]
    MalformedJson(String),
    /// The body is not a valid form.
    #[error("body is not a valid multipart form: {0}")]
    MalformedForm(String),
    /// The content type is not supported by the route.
    #[error("content type {found} is not supported here; send {supported}")]
    UnsupportedMediaType {
        /// The content type.
        found: String,
        /// The supported types.
        supported: &'static str,
    },
    /// The body, a frame or a recording is larger than allowed.
    #[error("{0}")]
    TooLarge(String),
    /// The body could not be read.
    #[error("body could not be read: {0}")]
    UnreadableBody(String),
    /// The client took too long to send its request.
    #[error("request was not complete in time; send it again")]
    RequestTimeout,
    /// A WebSocket route was requested without an upgrade.
    #[error("this route accepts WebSocket connections only: {0}")]
    UpgradeRequired(String),
    /// No such route.
    #[error("no route {0}")]
    UnknownRoute(String),
    /// The route exists, but not for this method.
    #[error("method {method} is not allowed for {path}")]
    MethodNotAllowed {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// The key is missing or wrong.
    #[error(
        "api key is missing or wrong; send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`, or open a WebSocket with a ticket of /v1/tickets"
    )]
    Unauthorized,
    /// The key is a client secret that opens nothing here.
    #[error("the client secret has expired, or does not open this route; create another")]
    ClientSecretRefused,
    /// The peer has sent too many wrong keys.
    #[error("too many wrong api keys from this address; wait, and send the right one")]
    TooManyWrongKeys {
        /// Value of `Retry-After`.
        retry_after: Duration,
    },
    /// A page of another site sent the request.
    #[error("a page of another site sent this request; allow its origin in the configuration if it may")]
    CrossSite,
    /// The `Host` header names another host.
    #[error("host '{0}' is not served here; allow it in the configuration if it should be")]
    ForbiddenHost(String),
    /// The origin is not allowed.
    #[error("origin '{0}' is not allowed; allow it in the configuration if it should be")]
    ForbiddenOrigin(String),
    /// No such model.
    #[error("model '{id}' is unknown; {hint}")]
    ModelNotFound {
        /// The requested model.
        id: String,
        /// Suggested names.
        hint: String,
    },
    /// No such voice.
    #[error("voice '{id}' is unknown to model '{model}'; {hint}")]
    VoiceNotFound {
        /// The requested voice.
        id: String,
        /// The requested model.
        model: String,
        /// Suggested names.
        hint: String,
    },
    /// No such saved voice.
    #[error("{message}")]
    NoSavedVoice {
        /// The requested voice, with suggested names.
        message: String,
    },
    /// No lexicon has the name, one has it already, or there are too many.
    #[error("{message}")]
    Lexicon {
        /// The name and the remedy.
        message: String,
        /// The machine-readable code.
        code: &'static str,
    },
    /// There is no such job, it has no result, or there is no room for it.
    #[error("{message}")]
    Job {
        /// The job or the limit, and the remedy.
        message: String,
        /// The machine-readable code.
        code: &'static str,
    },
    /// Another process works on the jobs.
    #[error("{0}")]
    JobsElsewhere(&'static str),
    /// A voice of this name exists.
    #[error("{message}")]
    VoiceExists {
        /// The name and the remedy.
        message: String,
    },
    /// The limit of saved voices is reached.
    #[error("{message}")]
    VoicesFull {
        /// The limit and the remedy.
        message: String,
    },
    /// The model is being loaded.
    #[error("model '{0}' is loading; try again shortly")]
    ModelLoading(String),
    /// The model could not be loaded, or its engine is dead.
    #[error("model '{0}' is not available; see the server's log")]
    ModelUnavailable(String),
    /// The engine of the model failed, and the model is loaded again.
    #[error("model '{id}' failed and is loaded again; try again shortly")]
    ModelRestarting {
        /// The model.
        id: String,
        /// When it is loaded again.
        retry_after: Duration,
    },
    /// The engine of the model failed too often.
    #[error("model '{0}' failed repeatedly and is given up; restart the service, see its log")]
    ModelGivenUp(String),
    /// Clients may not have models pulled or deleted.
    #[error(
        "clients may pull and delete no models here; run `izwi pull {0}` or `izwi rm {0}` on the server's machine, or set allow_pull"
    )]
    PullForbidden(String),
    /// The model cannot be unloaded now.
    #[error("model '{id}' cannot be unloaded: {reason}")]
    ModelInUse {
        /// The model.
        id: String,
        /// Why, and the remedy.
        reason: &'static str,
    },
    /// The request loads no model, and this one is not in memory.
    #[error("model '{0}' is not loaded; this route loads no model, a request for speech does")]
    ModelNotLoaded(String),
    /// The model does not fit into the memory budget next to the models in use.
    #[error("model '{id}' needs {need} bytes; {used} of the memory budget of {budget} bytes are in use; {}",
        if *.may_fit_later { "try again later" } else { "raise memory_budget_mib or choose a smaller model" })]
    NoRoom {
        /// The model.
        id: String,
        /// Its expected memory.
        need: u64,
        /// The memory budget of all models.
        budget: u64,
        /// Memory of models that cannot be unloaded now.
        used: u64,
        /// Whether it fits once others are unused.
        may_fit_later: bool,
    },
    /// A limit of concurrent work is reached.
    #[error("{message}")]
    Overloaded {
        /// The limit and the remedy.
        message: String,
        /// Value of `Retry-After`.
        retry_after: Duration,
        /// Whether the engine refused the request, and counted it.
        by_engine: bool,
    },
    /// The server that runs a remote model refuses the request.
    #[error("{0}")]
    UpstreamRefused(String),
    /// No server of a remote model can be asked now.
    #[error("{message}")]
    UpstreamDown {
        /// What failed.
        message: String,
        /// Value of `Retry-After`.
        retry_after: Duration,
    },
    /// A server of a remote model failed, or did not keep to the protocol.
    #[error("{0}")]
    UpstreamFailed(String),
    /// The first audio did not come in time.
    #[error("no audio within {0} s; the service is overloaded, try again later")]
    FirstAudioTimeout(u64),
    /// The server is shutting down.
    #[error("server is shutting down and takes no new requests")]
    Draining,
    /// Why the server is not ready for traffic; the answer to a probe.
    #[error("not ready: {reason}")]
    NotReady {
        /// One of a fixed set of codes.
        code: &'static str,
        /// The reason.
        reason: String,
    },
    /// A WebSocket frame of no known type.
    #[error("frame type '{kind}' is unknown; use one of {known}")]
    UnknownFrame {
        /// The type.
        kind: String,
        /// The known types.
        known: &'static str,
    },
    /// A binary WebSocket frame, where only text is accepted.
    #[error("binary frames are not accepted here; send JSON in text frames")]
    BinaryFrame,
    /// The connection violates its protocol.
    #[error("protocol error: {0}")]
    BrokenFrame(String),
    /// A WebSocket frame that is not allowed in the session's state.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// There is no session to continue with this id and token.
    #[error("no session has this session_id and resume_token, or it has ended; open a new session")]
    ResumeRefused,
    /// A session cannot be continued at this sample.
    #[error("next_sample is {next_sample}, but the session can continue from sample {from} to {to}")]
    ResumeOutOfWindow {
        /// The requested sample.
        next_sample: u64,
        /// First sample that is kept.
        from: u64,
        /// End of what was sent.
        to: u64,
    },
    /// A WebSocket session without a message for too long.
    #[error("no message was received for {} s; send ping to keep the session open", .0.as_secs_f32())]
    IdleTimeout(Duration),
    /// The text of an utterance that is spoken as it arrives did not go on; the message names the time and the remedy.
    #[error("{0}")]
    TextTimeout(String),
    /// The engine's stream ended without its last chunk.
    #[error("audio was cut off: it was not read in time, or the engine ended")]
    CutOff,
    /// Anything else; the details are in the log under the id.
    #[error("internal error; the server's log has the details under id {0}")]
    Internal(RequestId),
}

impl ApiError {
    /// A parameter that cannot be used.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::Invalid { param: param.to_owned(), message: message.into() }
    }

    /// A frame of a type that is none of `known`.
    pub fn unknown_frame(kind: &str, known: &'static str) -> Self {
        Self::UnknownFrame { kind: excerpt(kind), known }
    }

    /// Too much work; the client may try again.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::Overloaded { message: message.into(), retry_after: Duration::from_secs(1), by_engine: false }
    }

    /// Translates an engine's error. Internal details go to the log, under the request's id.
    pub fn from_engine(error: EngineError, model: &str, request: &RequestId) -> Self {
        match error {
            EngineError::InvalidRequest { param, message } => Self::Invalid { param, message },
            EngineError::Audio(error) => Self::Audio { param: "audio", error },
            EngineError::ReferenceAudio(error) => Self::Audio { param: "ref_audio", error },
            EngineError::UnsupportedTask { .. } => Self::invalid("model", error.to_string()),
            EngineError::Overloaded { retry_after, .. } => {
                Self::Overloaded { message: error.to_string(), retry_after, by_engine: true }
            }
            EngineError::Saturated { retry_after } => {
                Self::Overloaded { message: error.to_string(), retry_after, by_engine: true }
            }
            EngineError::MemoryFull(_) => {
                Self::Overloaded { message: error.to_string(), retry_after: AUDIO_RETRY, by_engine: true }
            }
            EngineError::Remote(error) => Self::from_remote(error),
            // Only a server that shuts down aborts a request whose caller still waits.
            EngineError::Draining | EngineError::Aborted => Self::Draining,
            EngineError::Stopped(reason) => {
                tracing::warn!(model, request = %request, reason, "engine has stopped");
                Self::ModelUnavailable(model.to_owned())
            }
            EngineError::Config { .. }
            | EngineError::Load(_)
            | EngineError::Execution(_)
            | EngineError::DuplicateId(_) => Self::internal(&error.to_string(), request),
        }
    }

    /// Translates the failure of a request that had begun, as [`Self::from_engine`] does.
    pub(crate) fn from_failure(error: Option<EngineError>, model: &str, request: &RequestId) -> Self {
        match error {
            Some(error) => Self::from_engine(error, model, request),
            None => Self::internal("(no details)", request),
        }
    }

    fn from_remote(error: RemoteError) -> Self {
        match error {
            RemoteError::Refused(message) => Self::UpstreamRefused(message),
            RemoteError::Busy { message, retry_after } => {
                Self::Overloaded { message, retry_after, by_engine: true }
            }
            RemoteError::Unavailable { message, retry_after } => Self::UpstreamDown { message, retry_after },
            RemoteError::Failed(message) => Self::UpstreamFailed(message),
        }
    }

    /// The same error about a recording, under the name of the field that carried it.
    pub fn about_recording(self, field: &'static str) -> Self {
        match self {
            Self::Audio { error, .. } => Self::Audio { param: field, error },
            Self::Invalid { param, message } if matches!(param.as_str(), "audio" | "ref_audio") => {
                Self::invalid(field, message)
            }
            other => other,
        }
    }

    /// Translates an error of the saved voices, under the name of the field that names the voice. Internal details go to
    /// the log.
    pub(crate) fn from_voices(error: VoiceError, param: &str) -> Self {
        let message = error.to_string();
        match error {
            VoiceError::Unknown { .. } => Self::NoSavedVoice { message },
            VoiceError::Exists { .. } => Self::VoiceExists { message },
            VoiceError::Full { .. } => Self::VoicesFull { message },
            VoiceError::Name { .. } | VoiceError::Damaged { .. } | VoiceError::NoFile { .. } => {
                Self::invalid(param, message)
            }
            VoiceError::Io(_) => Self::internal(&message, &RequestId::random()),
        }
    }

    /// Translates an error of the saved lexicons. Internal details go to the log.
    pub(crate) fn from_lexicons(error: &SavedError) -> Self {
        let message = error.to_string();
        match error {
            SavedError::Unknown { .. } => Self::Lexicon { message, code: NO_LEXICON },
            SavedError::Exists { .. } => Self::Lexicon { message, code: LEXICON_EXISTS },
            SavedError::Full { .. } => Self::Lexicon { message, code: LEXICON_LIMIT },
            SavedError::Name { .. } | SavedError::Damaged { .. } => Self::invalid("name", message),
            SavedError::Io(_) => Self::internal(&message, &RequestId::random()),
        }
    }

    /// Logs details that must not leave the process, and keeps the id.
    pub fn internal(details: &str, request: &RequestId) -> Self {
        tracing::error!(request = %request, details, "request failed");
        Self::Internal(request.clone())
    }

    /// Status, `type` and `code`.
    fn class(&self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            Self::Invalid { .. } => (StatusCode::BAD_REQUEST, INVALID, "invalid_value"),
            Self::Audio { error, .. } => audio_class(error),
            Self::MalformedJson(_) => (StatusCode::BAD_REQUEST, INVALID, "invalid_json"),
            Self::UnreadableBody(_) => (StatusCode::BAD_REQUEST, INVALID, "unreadable_body"),
            Self::MalformedForm(_) => (StatusCode::BAD_REQUEST, INVALID, "invalid_form"),
            Self::UnsupportedMediaType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type")
            }
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "too_large"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, INVALID, "request_timeout"),
            Self::UpgradeRequired(_) => (StatusCode::UPGRADE_REQUIRED, INVALID, "upgrade_required"),
            Self::UnknownRoute(_) => (StatusCode::NOT_FOUND, INVALID, "unknown_route"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
            Self::Unauthorized | Self::ClientSecretRefused => {
                (StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key")
            }
            Self::TooManyWrongKeys { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "authentication_error", "too_many_wrong_keys")
            }
            Self::CrossSite => (StatusCode::FORBIDDEN, "permission_error", "cross_site"),
            Self::ForbiddenHost(_) => (StatusCode::FORBIDDEN, "permission_error", "forbidden_host"),
            Self::PullForbidden(_) => (StatusCode::FORBIDDEN, "permission_error", "pull_forbidden"),
            Self::ForbiddenOrigin(_) => (StatusCode::FORBIDDEN, "permission_error", "forbidden_origin"),
            Self::ModelNotFound { .. } => (StatusCode::NOT_FOUND, INVALID, "model_not_found"),
            Self::VoiceNotFound { .. } | Self::NoSavedVoice { .. } => {
                (StatusCode::NOT_FOUND, INVALID, "voice_not_found")
            }
            Self::Lexicon { code: NO_LEXICON, .. } => (StatusCode::NOT_FOUND, INVALID, NO_LEXICON),
            Self::Lexicon { code, .. } => (StatusCode::CONFLICT, INVALID, code),
            Self::Job { code: NO_JOB, .. } => (StatusCode::NOT_FOUND, INVALID, NO_JOB),
            Self::Job { code: JOB_LIMIT, .. } => (StatusCode::INSUFFICIENT_STORAGE, SERVER, JOB_LIMIT),
            Self::Job { code, .. } => (StatusCode::CONFLICT, INVALID, code),
            Self::JobsElsewhere(_) => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "jobs_elsewhere"),
            Self::VoiceExists { .. } => (StatusCode::CONFLICT, INVALID, "voice_exists"),
            Self::VoicesFull { .. } => (StatusCode::CONFLICT, INVALID, "voice_limit"),
            Self::Overloaded { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "overloaded"),
            Self::ModelLoading(_) => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_loading"),
            Self::ModelUnavailable(_) | Self::ModelGivenUp(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_unavailable")
            }
            Self::ModelRestarting { .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_restarting"),
            Self::ModelNotLoaded(_) => (StatusCode::CONFLICT, INVALID, "model_not_loaded"),
            Self::ModelInUse { .. } => (StatusCode::CONFLICT, INVALID, "model_in_use"),
            Self::NoRoom { may_fit_later: true, .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, SERVER, "memory_budget")
            }
            Self::NoRoom { .. } => (StatusCode::INSUFFICIENT_STORAGE, SERVER, "memory_budget"),
            Self::UpstreamRefused(_) => (StatusCode::BAD_REQUEST, INVALID, "upstream_refused"),
            Self::UpstreamDown { .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "upstream_unavailable"),
            Self::UpstreamFailed(_) => (StatusCode::BAD_GATEWAY, SERVER, "upstream_failed"),
            Self::FirstAudioTimeout(_) => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "overloaded"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "draining"),
            Self::NotReady { code, .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, code),
            Self::UnknownFrame { .. } => (StatusCode::BAD_REQUEST, INVALID, "unknown_type"),
            Self::BinaryFrame => (StatusCode::BAD_REQUEST, INVALID, "binary_frame"),
            Self::BrokenFrame(_) => (StatusCode::BAD_REQUEST, INVALID, "broken_frame"),
            Self::OutOfOrder(_) => (StatusCode::BAD_REQUEST, INVALID, "out_of_order"),
            Self::ResumeRefused => (StatusCode::FORBIDDEN, "permission_error", "resume_refused"),
            Self::ResumeOutOfWindow { .. } => (StatusCode::GONE, INVALID, "resume_out_of_window"),
            Self::IdleTimeout(_) => (StatusCode::REQUEST_TIMEOUT, INVALID, "idle_timeout"),
            Self::TextTimeout(_) => (StatusCode::REQUEST_TIMEOUT, INVALID, "text_timeout"),
            Self::CutOff => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "cut_off"),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error"),
        }
    }

    /// The status of its response.
    pub(crate) fn status(&self) -> StatusCode {
        self.class().0
    }

    /// The machine-readable code.
    pub fn code(&self) -> &'static str {
        self.class().2
    }

    /// The field it is about, by its wire name.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => Some(param),
            Self::Audio { param, .. } => Some(param),
            Self::ModelNotFound { .. } | Self::NoRoom { .. } | Self::ModelNotLoaded(_) => Some("model"),
            Self::ModelLoading(_) | Self::ModelUnavailable(_) | Self::ModelInUse { .. } => Some("model"),
            Self::VoiceNotFound { .. } | Self::NoSavedVoice { .. } => Some("voice"),
            Self::VoiceExists { .. } | Self::Lexicon { .. } => Some("name"),
            Self::UnknownFrame { .. } => Some("type"),
            Self::ResumeOutOfWindow { .. } => Some("next_sample"),
            _ => None,
        }
    }

    /// The message for clients, of bounded length.
    pub fn message(&self) -> String {
        bounded(self, MAX_MESSAGE_CHARS)
    }

    /// The body of the response, of bounded length.
    pub fn envelope(&self) -> ErrorEnvelope {
        let (_, kind, code) = self.class();
        let param = self.param().map(excerpt);
        ErrorEnvelope { error: ErrorBody { message: self.message(), kind, param, code } }
    }

    /// Seconds after which the same request may succeed.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after, .. }
            | Self::ModelRestarting { retry_after, .. }
            | Self::UpstreamDown { retry_after, .. }
            | Self::TooManyWrongKeys { retry_after } => {
                Some((retry_after.as_secs_f64().ceil() as u64).max(1))
            }
            // A failed load is tried again, and so is a failed engine.
            Self::ModelUnavailable(_) | Self::JobsElsewhere(_) => Some(LOADING_RETRY_S),
            Self::ModelLoading(_) | Self::NotReady { .. } => Some(LOADING_RETRY_S),
            Self::NoRoom { may_fit_later: true, .. } => Some(LOADING_RETRY_S),
            Self::FirstAudioTimeout(seconds) => Some(*seconds),
            Self::Draining => Some(DRAINING_RETRY_S),
            _ => None,
        }
    }

    /// Counts it in `izwi_requests_rejected_total`, unless the engine counted it or it rejects no request.
    pub fn count(&self) {
        let reason = match self {
            Self::NotReady { .. } | Self::Internal(_) => return,
            Self::ModelUnavailable(_) | Self::ModelGivenUp(_) => return,
            Self::FirstAudioTimeout(_) | Self::IdleTimeout(_) | Self::TextTimeout(_) | Self::CutOff => return,
            Self::Overloaded { by_engine: true, .. } => return,
            Self::UpstreamRefused(_) | Self::UpstreamDown { .. } | Self::UpstreamFailed(_) => return,
            Self::Overloaded { .. } | Self::NoRoom { .. } => "overloaded",
            Self::Job { code: JOB_LIMIT, .. } | Self::JobsElsewhere(_) => "overloaded",
            Self::Job { code: NO_JOB, .. } => "not_found",
            Self::Draining => "draining",
            Self::ModelLoading(_) | Self::ModelRestarting { .. } | Self::ModelNotLoaded(_) => "loading",
            Self::Unauthorized
            | Self::ClientSecretRefused
            | Self::ResumeRefused
            | Self::TooManyWrongKeys { .. } => "unauthorized",
            Self::ForbiddenHost(_) | Self::ForbiddenOrigin(_) | Self::CrossSite | Self::PullForbidden(_) => {
                "forbidden"
            }
            Self::UnknownRoute(_) | Self::ModelNotFound { .. } => "not_found",
            Self::VoiceNotFound { .. } | Self::NoSavedVoice { .. } => "not_found",
            Self::Lexicon { code: NO_LEXICON, .. } => "not_found",
            _ => "malformed",
        };
        metrics::count_rejection(reason);
    }
}

/// Status, `type` and `code` of a recording that cannot be used.
fn audio_class(error: &DecodeError) -> (StatusCode, &'static str, &'static str) {
    const INVALID: &str = "invalid_request_error";
    match error {
        DecodeError::UnknownFormat(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_audio"),
        DecodeError::TooLarge { .. } | DecodeError::TooLong { .. } | DecodeError::TooComplex(_) => {
            (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "too_large")
        }
        DecodeError::Empty => (StatusCode::UNPROCESSABLE_ENTITY, INVALID, "empty_audio"),
        DecodeError::Base64(_) | DecodeError::Damaged(_) | DecodeError::Stopped => {
            (StatusCode::BAD_REQUEST, INVALID, "invalid_audio")
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.count();
        let status = self.class().0;
        let mut response = (status, Json(self.envelope())).into_response();
        // For dialects, whose errors have another shape.
        response.extensions_mut().insert(self.clone());
        if let Some(seconds) = self.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::UPGRADE_REQUIRED {
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_envelope_is_long() {
        let long = || "\u{7f}é\"".repeat(1 << 20);
        for error in [
            ApiError::invalid(&long(), long()),
            ApiError::MalformedJson(long()),
            ApiError::UnknownRoute(long()),
            ApiError::ModelNotFound { id: long(), hint: long() },
            ApiError::VoiceNotFound { id: long(), model: long(), hint: long() },
        ] {
            let body = serde_json::to_string(&error.envelope()).unwrap();
            assert!(body.len() < 8 << 10, "{} bytes", body.len());
        }
    }
}
