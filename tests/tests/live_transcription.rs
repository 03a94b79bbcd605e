//! Transcription of audio while it is spoken, over a simulated model: the frames of a session.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::{Writer, WriterOptions};
use izwi_tests::synthetic::{RATE_HZ, noise};
use izwi_tests::{Session, Setup, TestServer};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// The first seconds of a recording of speech after a second of silence, and two of silence after them.
fn speech(seconds: usize) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path).unwrap(), RATE_HZ as u32, &limits).unwrap();
    [&vec![0.0; RATE_HZ][..], &speech[..seconds * RATE_HZ], &vec![0.0; 2 * RATE_HZ]].concat()
}

async fn open(server: &TestServer) -> Session {
    Session::open(&format!("ws://{}/v1/audio/transcriptions/stream", server.address)).await.unwrap()
}

async fn send(session: &mut Session, samples: &[f32]) {
    for piece in samples.chunks(RATE_HZ / 10) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send_raw(Message::binary(bytes)).await.unwrap();
    }
}

fn of<'a>(frames: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    frames.iter().filter(move |frame| frame["type"] == kind)
}

#[tokio::test]
async fn what_is_committed_is_the_transcript_of_the_turn() {
    let server = Setup::listener("listener").start().await.unwrap();
    let mut session = open(&server).await;
    session.send(json!({"type": "session.config", "word_times": true})).await.unwrap();
    let created = session.expect("session.created").await.unwrap();
    assert_eq!((&created["model"], &created["sample_rate"]), (&json!("listener"), &json!(16_000)));
    send(&mut session, &speech(3)).await;
    session.send(json!({"type": "input.done"})).await.unwrap();
    let frames = session.rest().await.unwrap();
    let turns: Vec<&Value> = of(&frames, "turn.end").collect();
    assert!(!turns.is_empty(), "{frames:?}");
    assert_eq!(of(&frames, "speech.started").count(), turns.len());
    for (number, turn) in turns.iter().enumerate() {
        assert_eq!(turn["turn"], number);
        let committed: Vec<&Value> =
            of(&frames, "committed").filter(|frame| frame["turn"] == turn["turn"]).collect();
        let text: String = committed.iter().filter_map(|frame| frame["text"].as_str()).collect();
        assert_eq!(text.trim(), turn["text"].as_str().unwrap());
        let words: Vec<&Value> =
            committed.iter().flat_map(|frame| frame["words"].as_array().unwrap()).collect();
        let ms = |word: &Value, key: &str| word[key].as_u64().unwrap();
        assert!(words.iter().all(|word| ms(word, "start_ms") <= ms(word, "end_ms")), "{words:?}");
        assert_eq!(words.len(), text.split_whitespace().count());
    }
    assert!(turns.iter().any(|turn| turn["text"].as_str().unwrap().starts_with("word0")), "{turns:?}");
    let done = frames.last().unwrap();
    assert_eq!((&done["type"], &done["duration_s"]), (&json!("session.done"), &json!(6.0)));
}

#[tokio::test]
async fn a_session_without_speech_has_no_text_and_no_configuration_is_needed() {
    let server = Setup::listener("listener").start().await.unwrap();
    let mut session = open(&server).await;
    send(&mut session, &noise(4, 0.01)).await;
    session.send(json!({"type": "ping"})).await.unwrap();
    session.send(json!({"type": "input.done"})).await.unwrap();
    let frames = session.rest().await.unwrap();
    let kinds: Vec<&str> = frames.iter().filter_map(|frame| frame["type"].as_str()).collect();
    assert!(kinds.iter().all(|kind| ["session.created", "pong", "session.done"].contains(kind)), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"session.done"));
}

#[tokio::test]
async fn a_flush_ends_the_turn_that_goes_on() {
    let server = Setup::listener("listener").start().await.unwrap();
    let mut session = open(&server).await;
    let speech = speech(3);
    send(&mut session, &speech[..3 * RATE_HZ]).await;
    session.expect("session.created").await.unwrap();
    session.expect("speech.started").await.unwrap();
    session.send(json!({"type": "input.flush"})).await.unwrap();
    loop {
        let frame = session.frame().await.unwrap();
        if frame["type"] == "turn.end" {
            assert!(frame["end_ms"].as_u64().unwrap() <= 3_000, "{frame}");
            break;
        }
    }
}

#[tokio::test]
async fn fields_are_refused_by_name_and_the_session_goes_on() {
    let server = Setup::listener("listener").start().await.unwrap();
    let mut session = open(&server).await;
    for (field, value) in [
        ("encoding", json!("opus")),
        ("sample_rate", json!(7_999)),
        ("latency_ms", json!(10)),
        ("threshold", json!(1.5)),
        ("prefix_padding_ms", json!(2_001)),
        ("silence_duration_ms", json!(199)),
        ("language", json!("klingon")),
        ("priority", json!("urgent")),
        ("prompt", json!("a".repeat(100_000))),
        ("word_times", json!("yes")),
    ] {
        session.send(json!({"type": "session.config", field: value})).await.unwrap();
        let error = session.expect("error").await.unwrap();
        assert_eq!(error["param"], field, "{error}");
    }
    session.send(json!({"type": "input.text"})).await.unwrap();
    assert_eq!(session.expect("error").await.unwrap()["code"], "unknown_type");
    session.send(json!({"type": "session.config"})).await.unwrap();
    session.expect("session.created").await.unwrap();
    session.send(json!({"type": "session.config"})).await.unwrap();
    assert_eq!(session.expect("error").await.unwrap()["code"], "out_of_order");
    session.send(json!({"type": "input.done"})).await.unwrap();
    session.expect("session.done").await.unwrap();
}

/// What a writer makes of words at once.
fn written(text: &str, options: WriterOptions) -> String {
    let mut writer = Writer::new(options);
    let words = text.split_whitespace().map(|word| format!(" {word}"));
    let settled = writer.push(words, Some("en")).concat();
    (settled + &writer.finish().concat()).trim_matches(' ').to_owned()
}

#[tokio::test]
async fn figures_and_commands_are_written_before_they_are_committed() {
    const SAYS: [&str; 4] =
        ["twenty five", "thousand dollars comma so new line and", "twenty one full stop", "it is"];
    let server = Setup::listener_of("sayer", &SAYS).start().await.unwrap();
    let turns = async |config: Value| {
        let mut session = open(&server).await;
        session.send(config).await.unwrap();
        session.expect("session.created").await.unwrap();
        send(&mut session, &speech(5)).await;
        session.send(json!({"type": "input.done"})).await.unwrap();
        let frames = session.rest().await.unwrap();
        for turn in of(&frames, "turn.end") {
            let committed = of(&frames, "committed").filter(|frame| frame["turn"] == turn["turn"]);
            let text: String = committed.filter_map(|frame| frame["text"].as_str()).collect();
            assert_eq!(text.trim_matches(' '), turn["text"].as_str().unwrap());
        }
        let texts = of(&frames, "turn.end").map(|turn| turn["text"].as_str().unwrap().to_owned());
        texts.collect::<Vec<String>>()
    };
    let said = turns(json!({"type": "session.config"})).await;
    assert!(said[0].starts_with("twenty five thousand dollars comma so new line"), "{said:?}");
    for (numbers, commands) in [(true, true), (true, false), (false, true)] {
        let config = json!({
            "type": "session.config", "inverse_normalization": numbers, "spoken_commands": commands, "word_times": true,
        });
        let options = WriterOptions { numbers, commands };
        let expected: Vec<String> = said.iter().map(|text| written(text, options)).collect();
        assert_eq!(turns(config).await, expected, "{options:?}");
    }
    assert!(
        written(&said[0], WriterOptions { numbers: true, commands: true }).starts_with("$25,000, so\nAnd")
    );
}

#[tokio::test]
async fn a_language_is_detected_among_those_that_are_given() {
    let server = Setup::listener("listener").start().await.unwrap();
    let mut session = open(&server).await;
    session.send(json!({"type": "session.config", "languages": ["German", "en-GB"]})).await.unwrap();
    session.expect("session.created").await.unwrap();
    for (param, config) in [
        ("languages", json!({"languages": ["de", "fr"]})),
        ("languages", json!({"languages": ["de"], "language": "de"})),
        ("languages", json!({"languages": vec!["de"; 33]})),
    ] {
        let mut session = open(&server).await;
        let mut frame = json!({"type": "session.config"});
        frame.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        session.send(frame).await.unwrap();
        let error = session.expect("error").await.unwrap();
        assert_eq!(error["param"], param, "{error}");
    }
}
