//! Reading a client's text frame of a conversation.

use crate::dto::chat::{CLIENT_FRAMES, ClientFrame};
use crate::dto::session::TextFields;
use crate::error::ApiError;
use crate::extract::{parse_json, parse_with_options, required};
use crate::ws::frame::{interrupt, kind, playback_ack, resume};

/// Reads a frame; members it does not know are ignored.
pub(super) fn parse(text: &str) -> Result<ClientFrame, ApiError> {
    let bytes = text.as_bytes();
    Ok(match kind(bytes)?.as_str() {
        "session.config" => ClientFrame::Config(Box::new(parse_with_options(bytes)?)),
        "input.text" => ClientFrame::Text(required("text", parse_json::<TextFields>(bytes)?.text)?),
        "input.audio.commit" => ClientFrame::Commit,
        "input.audio.clear" => ClientFrame::Clear,
        "input.done" => ClientFrame::Done,
        "playback.ack" => ClientFrame::Ack(playback_ack(bytes)?),
        "interrupt" => ClientFrame::Interrupt(interrupt(bytes)?),
        "session.resume" => ClientFrame::Resume(resume(bytes)?),
        "ping" => ClientFrame::Ping,
        other => return Err(ApiError::unknown_frame(other, CLIENT_FRAMES)),
    })
}
