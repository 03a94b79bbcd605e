//! What clients send over a data channel: as over a WebSocket, but for formats of audio, which WebRTC agrees on by itself.

use serde_json::Value;

/// A client's event.
pub(super) enum ClientMessage {
    /// For the session.
    Session(String),
    /// `output_audio_buffer.clear`: what is to be played is not wanted any more.
    Clear,
}

/// Members of formats: the path of their object, and their names.
const FORMATS: [(&str, &[&str]); 6] = [
    ("/session/audio/input", &["format"]),
    ("/session/audio/output", &["format"]),
    ("/response/audio/output", &["format"]),
    ("/session", &["input_audio_format", "output_audio_format"]),
    ("/response", &["output_audio_format"]),
    ("/session/audio/input/transcription", &["format"]),
];

/// Reads an event; what is none goes to the session as it is, which tells what is wrong.
pub(super) fn read(text: &str) -> ClientMessage {
    let Ok(mut event) = serde_json::from_str::<Value>(text) else {
        return ClientMessage::Session(text.to_owned());
    };
    if event["type"] == "output_audio_buffer.clear" {
        return ClientMessage::Clear;
    }
    let mut has_formats = false;
    for (path, names) in FORMATS {
        if let Some(object) = event.pointer_mut(path).and_then(Value::as_object_mut) {
            for name in names {
                has_formats |= object.remove(*name).is_some();
            }
        }
    }
    ClientMessage::Session(if has_formats { event.to_string() } else { text.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_are_left_out_and_the_rest_stays() {
        let format = json!({"type": "audio/pcmu"});
        let update = json!({
            "type": "session.update",
            "session": {"audio": {"input": {"format": format, "transcription": {"model": "m"}}, "output": {"format": format, "voice": "v"}}},
        });
        let ClientMessage::Session(kept) = read(&update.to_string()) else { panic!() };
        let expected = json!({
            "type": "session.update",
            "session": {"audio": {"input": {"transcription": {"model": "m"}}, "output": {"voice": "v"}}},
        });
        assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), expected);
        for text in ["", "{", "[]", "7", r#"{"type":"response.cancel"}"#] {
            assert!(matches!(read(text), ClientMessage::Session(kept) if kept == text), "{text}");
        }
        assert!(matches!(read(r#"{"type":"output_audio_buffer.clear"}"#), ClientMessage::Clear));
    }
}
