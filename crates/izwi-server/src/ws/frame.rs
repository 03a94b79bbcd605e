//! Parts of frames that Izwi's own protocols share: the type, required text, the error frame.

use serde_json::Value;

use super::outbox::Outbox;
use crate::dto::session::{ErrorFrame, Tag};
use crate::error::{ApiError, truncated};
use crate::extract::parse_json;

pub(super) const CONFIGURED: ApiError =
    ApiError::OutOfOrder("the session is configured already; open another session");
pub(super) const NO_MODEL: ApiError =
    ApiError::OutOfOrder("the session has no model yet; send session.config first");

/// The type of a client's frame.
pub(super) fn kind(frame: &[u8]) -> Result<String, ApiError> {
    match parse_json::<Tag>(frame)?.kind {
        Some(Value::String(kind)) => Ok(kind),
        _ => Err(ApiError::invalid("type", "type is missing or not a string; every frame needs one")),
    }
}

/// The refusal of a type that is none of `known`.
pub(super) fn unknown(kind: &str, known: &'static str) -> ApiError {
    ApiError::UnknownFrame { kind: truncated(kind), known }
}

pub(super) fn required_text(text: Option<String>) -> Result<String, ApiError> {
    text.ok_or_else(|| ApiError::invalid("text", "text is missing; it is required"))
}

pub(super) fn write_error(error: &ApiError, out: &mut Outbox) {
    out.frame(&ErrorFrame {
        kind: "error",
        code: error.code(),
        message: error.to_string(),
        param: error.param(),
    });
}
