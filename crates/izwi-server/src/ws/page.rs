//! Checks `docs/protocol.md` against the types: every example is a message, and every message has an example.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::protocol::{ClientMessage, Protocol};
use super::{chat::Chat, frame, live::Live, speech::Speech};
use crate::dto::session::{AudioChunk, AudioPause, ChunkOf, ErrorFrame, Resumed};
use crate::dto::speech::WordTimes;
use crate::dto::{chat, live, session};
use crate::encoding::EncodedChunk;
use crate::error::ApiError;
use crate::live::Stretch;

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// The examples of a protocol and a direction, by type.
fn examples(of: &str) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let fence = format!("```json {of}\n");
    for block in PAGE.split(&fence).skip(1) {
        let json = block.split("```").next().unwrap();
        let example: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        found.entry(example["type"].as_str().unwrap().to_owned()).or_default().push(example);
    }
    found
}

fn members(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Every example parses, every member is one that the server reads, and every type has an example.
fn check_client<P: Protocol>(of: &str, types: &str) {
    let parse = |value: &Value| P::parse(ClientMessage::Text(value.to_string().into()));
    let examples = examples(of);
    let known: BTreeSet<&str> = types.split(", ").collect();
    assert_eq!(examples.keys().map(String::as_str).collect::<BTreeSet<_>>(), known, "types of {of}");
    for example in examples.values().flatten() {
        assert!(parse(example).is_ok(), "{example}: {}", parse(example).err().unwrap());
        for member in members(example) {
            let mut wrong = example.clone();
            wrong[member] = serde_json::json!({"wrong": [[]]});
            let error = parse(&wrong).err().unwrap_or_else(|| panic!("{member} of {example} is not read"));
            assert_eq!(error.param(), Some(member), "{wrong}: {error}");
        }
    }
}

/// Every frame has an example with the same members, and there are no others.
fn check_server(of: &str, frames: Vec<Value>) {
    let examples = examples(of);
    let sent: BTreeSet<&str> = frames.iter().filter_map(|frame| frame["type"].as_str()).collect();
    assert_eq!(examples.keys().map(String::as_str).collect::<BTreeSet<_>>(), sent, "types of {of}");
    for frame in frames {
        for example in &examples[frame["type"].as_str().unwrap()] {
            assert_eq!(members(example), members(&frame), "{example}");
        }
    }
}

fn json(frame: impl serde::Serialize) -> Value {
    serde_json::to_value(frame).unwrap()
}

/// Frames that both protocols send.
fn common(of: ChunkOf) -> Vec<Value> {
    let retry_after = ApiError::overloaded("x").retry_after_s();
    let chunk =
        EncodedChunk { seq: 0, sample_offset: 0, samples: 1, is_final: true, bytes: bytes::Bytes::new() };
    vec![
        json(AudioChunk::new(of, &chunk)),
        json(AudioPause::new(of, Duration::from_millis(1))),
        json(Resumed { kind: "session.resumed", session_id: "a", next_sample: 0 }),
        json(ErrorFrame { kind: "error", code: "a", message: String::new(), param: None, retry_after }),
    ]
}

#[test]
fn the_page_has_every_message_of_speech_sessions() {
    use session::ServerFrame as Frame;
    check_client::<Speech>("speech client", session::CLIENT_FRAMES);
    let frames = [
        Frame::Created {
            session_id: "a",
            resume_token: Some("b"),
            resume_window_s: 1,
            instance: Some("c"),
            sample_rate: 1,
            channels: 1,
            encoding: "c",
            ignored_fields: &[],
        },
        Frame::AudioStart { utterance: 0, voice: "a", model: "b", prebuffer_ms: 0, predicted_rtf: None },
        Frame::Word { utterance: 0, word: WordTimes { text: "a", start_ms: 0, end_ms: 1 } },
        Frame::Warning { utterance: 0, code: "a", message: "", characters: "" },
        Frame::AudioDone {
            utterance: 0,
            samples: 0,
            duration_s: 0.0,
            rtf: 0.0,
            ttfa_ms: None,
            finish_reason: "a",
        },
        Frame::Interrupted {
            utterance: None,
            played_ms: 0,
            text_spoken: "",
            text_remaining: "",
            approximate: false,
        },
        Frame::Done,
        Frame::Pong,
    ];
    for frame in &frames {
        // A new frame belongs into the list above.
        match frame {
            Frame::Created { .. } | Frame::AudioStart { .. } | Frame::AudioDone { .. } => {}
            Frame::Word { .. } => {}
            Frame::Warning { .. } | Frame::Interrupted { .. } | Frame::Done | Frame::Pong => {}
        }
    }
    check_server(
        "speech server",
        frames.into_iter().map(json).chain(common(ChunkOf::Utterance(0))).collect(),
    );
}

#[test]
fn the_page_has_every_message_of_conversations() {
    use chat::ServerFrame as Frame;
    check_client::<Chat>("chat client", chat::CLIENT_FRAMES);
    let frames = [
        Frame::Created {
            session_id: "a",
            resume_token: Some("b"),
            resume_window_s: 1,
            instance: Some("c"),
            model: "c",
            sample_rate: 1,
            input_sample_rate: 1,
            channels: 1,
            encoding: "d",
        },
        Frame::TextDelta { turn: 0, offset: 0, delta: "a" },
        Frame::Interrupted {
            turn: None,
            played_ms: 0,
            text_spoken: "",
            text_remaining: "",
            approximate: false,
        },
        Frame::TurnDone {
            turn: 0,
            text: "",
            samples: 0,
            duration_s: 0.0,
            rtf: 0.0,
            ttfa_ms: None,
            finish_reason: "a",
            forgotten_turns: 0,
        },
        Frame::Done,
        Frame::Pong,
    ];
    for frame in &frames {
        // A new frame belongs into the list above.
        match frame {
            Frame::Created { .. } | Frame::TextDelta { .. } | Frame::TurnDone { .. } => {}
            Frame::Interrupted { .. } | Frame::Done | Frame::Pong => {}
        }
    }
    check_server("chat server", frames.into_iter().map(json).chain(common(ChunkOf::Turn(0))).collect());
}

#[test]
fn the_page_has_every_message_of_live_transcriptions() {
    use live::{ServerFrame as Frame, Spoken};
    check_client::<Live>("live client", live::CLIENT_FRAMES);
    let words = Some(vec![WordTimes { text: "a", start_ms: 0, end_ms: 1 }]);
    let said = Stretch { speaker: "A".to_owned(), text: "a".to_owned(), start_ms: 0, end_ms: 1 };
    let frames = [
        Frame::Created {
            session_id: "a",
            model: "b",
            encoding: "c",
            sample_rate: 1,
            channels: 1,
            latency_ms: Some(1),
            turn_detection: "c",
            eagerness: Some("d"),
            silence_duration_ms: 1,
        },
        Frame::Started { turn: 0, at_ms: 0 },
        Frame::Partial { turn: 0, text: "a" },
        Frame::Committed { turn: 0, text: "a", words },
        Frame::TurnEnd { turn: 0, text: "a", language: None, start_ms: 0, end_ms: 1 },
        Frame::Speakers { turn: 0, segments: vec![Spoken::from(&said)] },
        Frame::Done { duration_s: 0.0 },
        Frame::Pong,
    ];
    for frame in &frames {
        // A new frame belongs into the list above.
        match frame {
            Frame::Created { .. } | Frame::Started { .. } | Frame::Partial { .. } => {}
            Frame::Speakers { .. }
            | Frame::Committed { .. }
            | Frame::TurnEnd { .. }
            | Frame::Done { .. }
            | Frame::Pong => {}
        }
    }
    let retry_after = ApiError::overloaded("x").retry_after_s();
    let error = ErrorFrame { kind: "error", code: "a", message: String::new(), param: None, retry_after };
    check_server("live server", frames.into_iter().map(json).chain([json(error)]).collect());
}

/// Members that the page names as left out are accepted, since sessions share their options, and have no effect.
#[test]
fn the_page_lists_what_a_conversation_ignores() {
    let listed =
        PAGE.split("without `voice`, `language`, `speed`, `lexicons` and\n`non_streaming_mode`").count();
    assert_eq!(listed, 2);
    for members in [
        r#""voice": "heart""#,
        r#""language": "en""#,
        r#""speed": 2.0"#,
        r#""lexicons": ["a"]"#,
        r#""non_streaming_mode": true"#,
    ] {
        let frame = format!(r#"{{"type": "session.config", {members}}}"#);
        assert!(Chat::parse(ClientMessage::Text(frame.clone().into())).is_ok(), "{frame}");
    }
}

#[test]
fn the_page_has_every_code_that_it_needs() {
    for error in [frame::RUNNING, frame::CONFIGURED, ApiError::ResumeRefused, ApiError::CutOff] {
        assert!(PAGE.contains(&format!("`{}`", error.code())), "{}", error.code());
    }
}
