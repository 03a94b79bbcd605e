//! Reading a client's text frame of a live transcription.

use crate::dto::live::{CLIENT_FRAMES, ClientFrame};
use crate::error::ApiError;
use crate::extract::parse_json;
use crate::ws::frame::kind;

/// Reads a frame; members it does not know are ignored.
pub(super) fn parse(text: &str) -> Result<ClientFrame, ApiError> {
    let bytes = text.as_bytes();
    Ok(match kind(bytes)?.as_str() {
        "session.config" => ClientFrame::Config(Box::new(parse_json(bytes)?)),
        "input.flush" => ClientFrame::Flush,
        "input.done" => ClientFrame::Done,
        "ping" => ClientFrame::Ping,
        other => return Err(ApiError::unknown_frame(other, CLIENT_FRAMES)),
    })
}
