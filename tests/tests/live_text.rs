//! Text that is spoken as it arrives: early audio, the samples of the whole text, pauses, timeouts, interrupts.

use std::time::Duration;

use anyhow::{Result, ensure};
use izwi_tests::{Session, Setup, TestServer, Utterance, eventually};
use serde_json::{Value, json};

const TEXT: &str = "The quick brown fox jumps over the lazy dog. And it goes on.";
/// The first words of [`TEXT`]: eight letters and a space between them are nine tokens of 80 ms, which are three chunks.
const BEGIN: &str = "The quick ";

/// A session whose utterance has spoken [`BEGIN`] and waits for more text.
async fn begin(server: &TestServer) -> Result<(Session, Utterance)> {
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "seed": 7})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": BEGIN})).await?;
    let start = session.expect("audio.start").await?;
    let mut utterance = Utterance { start, ..Default::default() };
    for _ in 0..3 {
        utterance.chunks.push(session.chunk().await?);
    }
    let engine = server.engine()?;
    eventually("the text has run out", || async move { Ok(engine.status().awaiting_input == 1) }).await?;
    Ok((session, utterance))
}

fn audio(utterance: &Utterance) -> Vec<u8> {
    utterance.chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
}

/// The audio of [`TEXT`], whole.
async fn whole(server: &TestServer) -> Result<Vec<u8>> {
    let body = json!({"model": "tts-1", "input": TEXT, "response_format": "pcm", "seed": 7, "non_streaming_mode": false});
    Ok(server.speech(&body).await?.bytes().await?.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn audio_leaves_after_the_first_words_and_is_that_of_the_whole_text() -> Result<()> {
    let server = Setup::reader("live-text").start().await?;
    let whole = whole(&server).await?;
    assert_eq!(whole.len(), (TEXT.len() + 1) * 1_920 * 2);
    let (mut session, utterance) = begin(&server).await?;
    for word in TEXT[BEGIN.len()..].split_inclusive(' ') {
        session.send(json!({"type": "input.text", "text": word})).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let utterance = session.rest_of(utterance).await?;
    assert_eq!((&utterance.done["finish_reason"], &utterance.done["utterance"]), (&json!("stop"), &json!(0)));
    assert!(audio(&utterance) == whole);
    session.expect_done(1000).await?;

    // A text that is complete when its utterance begins gives the same.
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "seed": 7})).await?;
    session.send(json!({"type": "input.text", "text": TEXT})).await?;
    session.send(json!({"type": "input.done"})).await?;
    session.expect("session.created").await?;
    assert!(audio(&session.utterance().await?) == whole);
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_ends_an_utterance_and_text_behind_it_begins_the_next() -> Result<()> {
    let server = Setup::reader("live-flush").start().await?;
    let (mut session, utterance) = begin(&server).await?;
    session.send(json!({"type": "input.text", "text": "fox"})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": " Next one"})).await?;
    let first = session.rest_of(utterance).await?;
    assert_eq!(first.done["samples"], (BEGIN.len() + "fox".len() + 1) * 1_920);
    session.send(json!({"type": "input.done"})).await?;
    let second = session.utterance().await?;
    assert_eq!(second.done["utterance"], 1);
    assert_eq!(second.done["samples"], ("Next one".len() + 1) * 1_920);
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_goes_on_in_a_next_utterance_behind_a_sentence() -> Result<()> {
    let server = Setup::reader("live-long").start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "chunk_ms": 2_000})).await?;
    session.expect("session.created").await?;
    let text = "These are exactly thirty bytes. ".repeat(20);
    for piece in text.as_bytes().chunks(7) {
        session.send(json!({"type": "input.text", "text": String::from_utf8_lossy(piece)})).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    let (first, second) = (session.utterance().await?, session.utterance().await?);
    let bytes = |utterance: &Utterance| utterance.done["samples"].as_u64().map(|samples| samples / 1_920 - 1);
    assert_eq!(
        bytes(&first),
        Some(13 * 32 - 1),
        "thirteen sentences with spaces between them reach 400 bytes"
    );
    assert_eq!(bytes(&second), Some(7 * 32 - 1), "the rest");
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_does_not_go_on_ends_with_an_error_and_the_session_stays() -> Result<()> {
    let setup =
        Setup::reader("live-timeout").engine(|engine| engine.text_timeout = Duration::from_millis(300));
    let server = setup.start().await?;
    let (mut session, _) = begin(&server).await?;
    let (last, _) = session.chunk().await?;
    assert_eq!((&last["is_final"], &last["samples"]), (&json!(true), &json!(9 * 1_920 - 3 * 4_800)));
    let error = session.expect_error("text_timeout").await?;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("0.3 s")), "{error}");
    assert_eq!(session.expect("audio.done").await?["finish_reason"], "text_timeout");
    session.send(json!({"type": "speak", "text": "It goes on."})).await?;
    assert_eq!(session.utterance().await?.done["finish_reason"], "stop");
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupts_and_disconnects_end_an_utterance_that_waits_for_text() -> Result<()> {
    let server = Setup::reader("live-interrupt").start().await?;
    let (mut session, _) = begin(&server).await?;
    session.send(json!({"type": "interrupt"})).await?;
    let mut frame = Value::Null;
    while frame["type"] != "audio.done" {
        frame = session.frame().await?;
    }
    ensure!(frame["finish_reason"] == "interrupted", "{frame}");
    session.send(json!({"type": "input.text", "text": "Another text"})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    let next = session.utterance().await?;
    assert_eq!(next.done["samples"], ("Another text".len() + 1) * 1_920);
    drop(session);

    let (session, _) = begin(&server).await?;
    drop(session);
    server.assert_no_sessions().await?;
    let engine = server.engine()?;
    eventually("the request is gone", || async move { Ok(engine.status().running == 0) }).await
}
