//! The beta of the Realtime API (`OpenAI-Beta: realtime=v1`), which many clients still speak: flat settings and other names.
//! Its messages are translated to those of the final API and back at the edge of a session, which knows only the latter.
//!
//! Names and members are those of `openai.types.beta.realtime` of the `openai` package for Python 1.109.

use axum::http::HeaderMap;
use izwi_types::excerpt;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;

/// Members of `session` and `response` that only the beta has, and where they stand in the final API.
const MOVED: [(&str, &[&str]); 9] = [
    ("modalities", &["output_modalities"]),
    ("input_audio_format", &["audio", "input", "format"]),
    ("input_audio_transcription", &["audio", "input", "transcription"]),
    ("input_audio_noise_reduction", &["audio", "input", "noise_reduction"]),
    ("turn_detection", &["audio", "input", "turn_detection"]),
    ("output_audio_format", &["audio", "output", "format"]),
    ("voice", &["audio", "output", "voice"]),
    ("speed", &["audio", "output", "speed"]),
    ("max_response_output_tokens", &["max_output_tokens"]),
];
/// Formats of the beta, and those of the final API.
const FORMATS: [(&str, &str); 3] =
    [("pcm16", "audio/pcm"), ("g711_ulaw", "audio/pcmu"), ("g711_alaw", "audio/pcma")];
/// Rate of `pcm16`, in Hz.
const PCM16_RATE_HZ: u32 = 24_000;
/// Types of events that have another name in the beta: of the final API, and of the beta.
const EVENTS: [(&str, &str); 7] = [
    ("conversation.item.added", "conversation.item.created"),
    ("response.output_audio.delta", "response.audio.delta"),
    ("response.output_audio.done", "response.audio.done"),
    ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
    ("response.output_audio_transcript.done", "response.audio_transcript.done"),
    ("response.output_text.delta", "response.text.delta"),
    ("response.output_text.done", "response.text.done"),
];
/// An event of the final API that the beta lacks.
const ITEM_DONE: &str = "conversation.item.done";
/// The temperature that clients of the beta expect to be told: its default.
const TEMPERATURE: f64 = 0.8;

/// Whether a client asks for the beta: in a header or, from a browser, among the subprotocols.
pub(super) fn is_asked_for(headers: &HeaderMap) -> bool {
    let has = |name: &str, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim() == wanted)
    };
    has("openai-beta", "realtime=v1") || has("sec-websocket-protocol", "openai-beta.realtime-v1")
}

/// The settings of a client in the shape of the final API, and whether they had that of the beta. Members of the final API
/// that are there stay.
///
/// # Errors
/// A format is unknown.
pub(super) fn settings(mut settings: Value, of: &str) -> Result<(Value, bool), Refusal> {
    let Some(members) = settings.as_object_mut() else { return Ok((settings, false)) };
    let mut has_moved = false;
    for (name, path) in MOVED {
        let Some(value) = members.remove(name) else { continue };
        has_moved = true;
        let value = match name {
            "modalities" => modalities(value),
            "input_audio_format" | "output_audio_format" => format(&format!("{of}.{name}"), value)?,
            _ => value,
        };
        put(members, path, value);
    }
    let is_beta = has_moved && !members.contains_key("type");
    Ok((settings, is_beta))
}

/// Sets a member of nested objects, unless it is there.
fn put(members: &mut Map<String, Value>, path: &[&str], value: Value) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        members.entry(*first).or_insert(value);
        return;
    }
    let inner = members.entry(*first).or_insert_with(|| json!({}));
    if inner.is_null() {
        *inner = json!({});
    }
    // Something else than an object is refused where it is read.
    if let Some(inner) = inner.as_object_mut() {
        put(inner, rest, value);
    }
}

/// The beta has text alongside audio, which the final API implies.
fn modalities(value: Value) -> Value {
    let has_audio = value.as_array().is_some_and(|names| names.iter().any(|name| name == "audio"));
    let are_known =
        value.as_array().is_some_and(|names| names.iter().all(|name| name == "audio" || name == "text"));
    if has_audio && are_known { json!(["audio"]) } else { value }
}

fn format(param: &str, value: Value) -> Result<Value, Refusal> {
    if value.is_null() {
        return Ok(value);
    }
    match FORMATS.iter().find(|(beta, _)| value == *beta) {
        Some((_, "audio/pcm")) => Ok(json!({"type": "audio/pcm", "rate": PCM16_RATE_HZ})),
        Some((_, name)) => Ok(json!({"type": name})),
        None => {
            let message = format!("{param} is {}; use pcm16, g711_ulaw or g711_alaw", excerpt(&value));
            Err(Refusal::invalid(param, message))
        }
    }
}

/// An event of the server as the beta has it; `None` if it lacks it.
pub(super) fn event(mut event: Value) -> Option<Value> {
    let kind = event["type"].as_str().unwrap_or_default();
    if kind == ITEM_DONE {
        return None;
    }
    let is_transcription = event["session"]["type"] == "transcription";
    let renamed = match kind {
        "session.created" if is_transcription => Some("transcription_session.created"),
        "session.updated" if is_transcription => Some("transcription_session.updated"),
        kind => EVENTS.iter().find(|(name, _)| *name == kind).map(|(_, beta)| *beta),
    };
    if let Some(renamed) = renamed {
        event["type"] = renamed.into();
    }
    if let Some(session) = event.get_mut("session") {
        flatten(session);
        session["temperature"] = TEMPERATURE.into();
    }
    if let Some(response) = event.get_mut("response") {
        flatten(response);
        response["temperature"] = TEMPERATURE.into();
        let output = response.get_mut("output").and_then(Value::as_array_mut);
        output.into_iter().flatten().for_each(item);
    }
    if let Some(told) = event.get_mut("item") {
        item(told);
    }
    Some(event)
}

/// Gives the settings that a client is shown the shape of the beta.
fn flatten(settings: &mut Value) {
    let Some(members) = settings.as_object_mut() else { return };
    let is_response = members.get("object").is_some_and(|object| object == "realtime.response");
    members.remove("type");
    let audio = members.remove("audio").unwrap_or_default();
    for (name, path) in MOVED {
        let value = match path {
            ["audio", rest @ ..] => rest.iter().try_fold(&audio, |value, name| value.get(name)).cloned(),
            // A response tells its limit under the name of the final API.
            ["max_output_tokens"] if is_response => None,
            [single] => members.remove(*single),
            _ => None,
        };
        let value = match (name, value) {
            (_, None) => continue,
            ("modalities", Some(value)) if value == json!(["audio"]) => json!(["text", "audio"]),
            ("input_audio_format" | "output_audio_format", Some(value)) => {
                let found = FORMATS.iter().find(|(_, name)| value["type"] == *name);
                found.map_or(Value::Null, |(beta, _)| (*beta).into())
            }
            (_, Some(value)) => value,
        };
        members.insert(name.to_owned(), value);
    }
}

/// Gives the parts of an item the types of the beta.
fn item(item: &mut Value) {
    for part in item.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        let beta = match part["type"].as_str() {
            Some("output_text") => "text",
            Some("output_audio") => "audio",
            _ => continue,
        };
        part["type"] = beta.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::realtime::config::SessionConfig;

    #[test]
    fn settings_move_and_those_of_the_final_api_stay() {
        let flat = json!({
            "modalities": ["text", "audio"],
            "instructions": "Be kind.",
            "voice": "alloy",
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "pcm16",
            "input_audio_transcription": {"model": "whisper-1"},
            "turn_detection": null,
            "temperature": 0.8,
            "max_response_output_tokens": "inf",
        });
        let (moved, is_beta) = settings(flat, "session").unwrap();
        assert!(is_beta);
        assert_eq!(
            moved,
            json!({
                "output_modalities": ["audio"],
                "instructions": "Be kind.",
                "temperature": 0.8,
                "max_output_tokens": "inf",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcmu"},
                        "transcription": {"model": "whisper-1"},
                        "turn_detection": null,
                    },
                    "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "alloy"},
                },
            })
        );
        let final_shape = json!({"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcma"}}}});
        assert_eq!(settings(final_shape.clone(), "session").unwrap(), (final_shape, false));
        let mixed = json!({"type": "realtime", "input_audio_format": "pcm16", "audio": {"input": {"format": {"type": "audio/pcmu"}}}});
        let (moved, is_beta) = settings(mixed, "session").unwrap();
        assert_eq!((&moved["audio"]["input"]["format"]["type"], is_beta), (&json!("audio/pcmu"), false));
        let error = settings(json!({"input_audio_format": "opus"}), "session").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("session.input_audio_format"));
        for odd in [json!(null), json!([]), json!({"audio": 7, "voice": "alloy"}), json!({"modalities": 7})] {
            assert!(settings(odd, "session").is_ok());
        }
    }

    #[test]
    fn what_the_client_is_shown_has_the_shape_of_the_beta() {
        let (patch, _) =
            settings(json!({"input_audio_format": "g711_alaw", "modalities": ["text"]}), "session").unwrap();
        let config = SessionConfig::realtime().patched(&serde_json::from_value(patch).unwrap()).unwrap();
        let shown = json!({"type": "session.updated", "session": config.view("sess_1", Some("m"))});
        let shown = event(shown).unwrap();
        let session = &shown["session"];
        assert_eq!((&shown["type"], &session["id"]), (&json!("session.updated"), &json!("sess_1")));
        assert_eq!(
            (&session["input_audio_format"], &session["output_audio_format"], &session["modalities"]),
            (&json!("g711_alaw"), &json!("pcm16"), &json!(["text"]))
        );
        assert_eq!(session["turn_detection"]["type"], "server_vad");
        assert_eq!(session["max_response_output_tokens"], "inf");
        assert!(session.get("audio").is_none() && session.get("output_modalities").is_none(), "{session}");
        let config = SessionConfig::transcription(None);
        let shown = json!({"type": "session.created", "session": config.view("sess_1", None)});
        assert_eq!(event(shown).unwrap()["type"], "transcription_session.created");
    }

    #[test]
    fn events_and_parts_have_the_names_of_the_beta() {
        let renamed = |kind: &str| event(json!({"type": kind})).map(|event| event["type"].clone());
        assert_eq!(renamed("response.output_audio.delta"), Some(json!("response.audio.delta")));
        assert_eq!(renamed("response.content_part.added"), Some(json!("response.content_part.added")));
        assert_eq!(renamed("conversation.item.done"), None);
        let added = json!({"type": "conversation.item.added", "item": {"content": [{"type": "output_text", "text": "a"}, {"type": "input_text", "text": "b"}]}});
        let created = event(added).unwrap();
        assert_eq!(created["type"], "conversation.item.created");
        let kinds = created["item"]["content"].as_array().unwrap().iter().map(|part| part["type"].clone());
        assert_eq!(kinds.collect::<Vec<_>>(), ["text", "input_text"]);
        let done = json!({"type": "response.done", "response": {
            "object": "realtime.response", "output_modalities": ["audio"], "max_output_tokens": 7,
            "audio": {"output": {"format": {"type": "audio/pcmu"}, "voice": "default", "speed": 1.0}},
            "output": [{"content": [{"type": "output_audio", "transcript": "a"}]}],
        }});
        let response = event(done).unwrap()["response"].take();
        assert_eq!(response["modalities"], json!(["text", "audio"]));
        assert_eq!(
            (&response["max_output_tokens"], &response["output_audio_format"]),
            (&json!(7), &json!("g711_ulaw"))
        );
        assert_eq!(response["output"][0]["content"][0]["type"], "audio");
    }

    #[test]
    fn clients_ask_in_a_header_or_a_subprotocol() {
        let asked = |name: &'static str, value: &'static str| {
            is_asked_for(&HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                axum::http::HeaderValue::from_static(value),
            )]))
        };
        assert!(asked("openai-beta", "realtime=v1") && asked("openai-beta", "assistants=v2, realtime=v1"));
        assert!(asked(
            "sec-websocket-protocol",
            "realtime, openai-insecure-api-key.x, openai-beta.realtime-v1"
        ));
        assert!(!asked("openai-beta", "realtime=v2") && !asked("sec-websocket-protocol", "realtime"));
    }
}
