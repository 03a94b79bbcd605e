//! Reading a client's text frame.

use crate::dto::session::{CLIENT_FRAMES, ClientFrame, TextFields};
use crate::error::ApiError;
use crate::extract::{parse_json, parse_with_options, required};
use crate::ws::frame::{interrupt, kind, playback_ack, resume};

/// Reads a frame; members it does not know are ignored.
pub(super) fn parse(text: &str) -> Result<ClientFrame, ApiError> {
    let bytes = text.as_bytes();
    Ok(match kind(bytes)?.as_str() {
        "session.config" => ClientFrame::Config(parse_with_options(bytes)?),
        "input.text" => ClientFrame::Text(required("text", parse_json::<TextFields>(bytes)?.text)?),
        "input.flush" => ClientFrame::Flush,
        "input.done" => ClientFrame::Done,
        "speak" => ClientFrame::Speak {
            text: required("text", parse_json::<TextFields>(bytes)?.text)?,
            config: parse_with_options(bytes)?,
        },
        "playback.ack" => ClientFrame::Ack(playback_ack(bytes)?),
        "interrupt" => ClientFrame::Interrupt(interrupt(bytes)?),
        "session.resume" => ClientFrame::Resume(resume(bytes)?),
        "ping" => ClientFrame::Ping,
        other => return Err(ApiError::unknown_frame(other, CLIENT_FRAMES)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speak_carries_its_configuration() {
        let frame = parse(r#"{"type":"speak","text":"Hi.","voice":{"id":"two"},"chunk_ms":50,"extra":[1]}"#);
        let Ok(ClientFrame::Speak { text, config }) = frame else { panic!("{frame:?}") };
        assert_eq!((text.as_str(), config.chunk_ms), ("Hi.", Some(50)));
        assert_eq!(config.voice.map(|voice| voice.into_id()).as_deref(), Some("two"));
    }

    #[test]
    fn errors_name_the_member() {
        let check = |text: &str, code: &str, param: Option<&str>| {
            let error = parse(text).unwrap_err();
            assert_eq!((error.code(), error.param()), (code, param), "{text}: {error}");
        };
        check("", "invalid_json", None);
        check("[1]", "invalid_json", None);
        check(r#"["session.config"]"#, "invalid_json", None);
        check(r#"{"type":"session.config","voice":["heart"]}"#, "invalid_value", Some("voice"));
        check("7", "invalid_json", None);
        check("{}", "invalid_value", Some("type"));
        check(r#"{"type":3}"#, "invalid_value", Some("type"));
        check(r#"{"type":"sing"}"#, "unknown_type", Some("type"));
        check(r#"{"type":"playback.ack"}"#, "invalid_value", Some("played_ms"));
        check(r#"{"type":"interrupt","played_ms":-1}"#, "invalid_value", Some("played_ms"));
        check(
            r#"{"type":"session.resume","session_id":"a","next_sample":1}"#,
            "invalid_value",
            Some("resume_token"),
        );
        check(r#"{"type":"input.text"}"#, "invalid_value", Some("text"));
        check(r#"{"type":"input.text","text":7}"#, "invalid_value", Some("text"));
        check(r#"{"type":"session.config","seed":"x"}"#, "invalid_value", Some("seed"));
        check(r#"{"type":"session.config","speed":"fast"}"#, "invalid_value", Some("speed"));
        check(r#"{"type":"session.config","ref_audio":7}"#, "invalid_value", Some("ref_audio"));
        check(
            r#"{"type":"speak","text":"a","x_vector_only_mode":"x"}"#,
            "invalid_value",
            Some("x_vector_only_mode"),
        );
        check(r#"{"type":"session.config","voice":7}"#, "invalid_value", Some("voice"));
        check(r#"{"type":"speak","text":"a","top_p":"x"}"#, "invalid_value", Some("top_p"));
        check(r#"{"type":"input.text","text":"a"} trailing"#, "invalid_json", None);
    }
}
