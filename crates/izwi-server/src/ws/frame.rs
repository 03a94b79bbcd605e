//! Parts of frames that Izwi's own protocols share: the type, required text, the error frame.

use izwi_types::excerpt;
use serde_json::Value;

use super::outbox::Outbox;
use crate::dto::session::{ErrorFrame, Interrupt, PlaybackAck, PlayedFields, Resume, ResumeFields, Tag};
use crate::error::ApiError;
use crate::extract::{parse_json, required};

pub(super) const CONFIGURED: ApiError =
    ApiError::OutOfOrder("the session is configured already; open another session");
pub(super) const RUNNING: ApiError =
    ApiError::OutOfOrder("the session has begun; send session.resume as the first message of a connection");
pub(super) const NO_MODEL: ApiError =
    ApiError::OutOfOrder("the session has no model yet; send session.config first");

/// Refuses input after the end.
pub(super) fn check_open(is_closed: bool) -> Result<(), ApiError> {
    match is_closed {
        false => Ok(()),
        true => Err(ApiError::OutOfOrder("the session has ended already; open another session")),
    }
}

/// The type of a client's frame.
pub(super) fn kind(frame: &[u8]) -> Result<String, ApiError> {
    match parse_json::<Tag>(frame)?.kind {
        Some(Value::String(kind)) => Ok(kind),
        _ => Err(ApiError::invalid("type", "type is missing or not a string; every frame needs one")),
    }
}

/// Reads `playback.ack`.
pub(super) fn playback_ack(frame: &[u8]) -> Result<PlaybackAck, ApiError> {
    let PlayedFields { utterance, turn, played_ms, gap_ms } = parse_json(frame)?;
    Ok(PlaybackAck { number: utterance.or(turn), played_ms: required("played_ms", played_ms)?, gap_ms })
}

/// Reads `interrupt`.
pub(super) fn interrupt(frame: &[u8]) -> Result<Interrupt, ApiError> {
    let PlayedFields { utterance, turn, played_ms, gap_ms: _ } = parse_json(frame)?;
    Ok(Interrupt { number: utterance.or(turn), played_ms })
}

/// Reads `session.resume`.
pub(super) fn resume(frame: &[u8]) -> Result<Resume, ApiError> {
    let ResumeFields { session_id, resume_token, next_sample } = parse_json(frame)?;
    Ok(Resume {
        session_id: required("session_id", session_id)?,
        resume_token: required("resume_token", resume_token)?,
        next_sample: required("next_sample", next_sample)?,
    })
}

pub(super) fn write_error(error: &ApiError, out: &mut Outbox) {
    out.frame(&ErrorFrame {
        kind: "error",
        code: error.code(),
        message: error.message(),
        param: error.param().map(excerpt),
        retry_after: error.retry_after_s(),
    });
}
