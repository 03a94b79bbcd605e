//! The conversation protocol over a simulated model: turns, interrupts, limits, malformed frames.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Gate, Incoming, Session, Setup, TestServer, Turn};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

/// Bytes of 200 ms of PCM.
const CHUNK: usize = 4_800 * 2;

/// One second of a tone at 8 kHz, as PCM.
fn tone() -> Vec<u8> {
    let sample = |n: usize| (8_000.0 * (n as f32 * 0.3).sin()) as i16;
    (0..8_000).flat_map(|n| sample(n).to_le_bytes()).collect()
}

async fn begin(server: &TestServer) -> Result<Session> {
    let mut session = server.chat().await?;
    session.send(json!({"type": "session.config", "seed": 4, "input_sample_rate": 8_000})).await?;
    let created = session.expect("session.created").await?;
    ensure!(created["input_sample_rate"] == 8_000 && created["sample_rate"] == 24_000, "{created}");
    Ok(session)
}

async fn say(session: &mut Session, text: &str) -> Result<Turn> {
    session.send(json!({"type": "input.text", "text": text})).await?;
    session.rest_of_turn(Turn::default()).await
}

fn check_exact(turn: &Turn, number: u64) -> Result<()> {
    let last = turn.chunks.len() - 1;
    let mut offset = 0;
    for (index, (chunk, bytes)) in turn.chunks.iter().enumerate() {
        ensure!(
            chunk["turn"] == number && chunk["seq"] == index && chunk["sample_offset"] == offset,
            "{chunk}"
        );
        ensure!(chunk["samples"] == bytes.len() / 2 && chunk["is_final"] == (index == last), "{chunk}");
        ensure!(index == last || bytes.len() == CHUNK, "{chunk} is not 200 ms long");
        offset += bytes.len() / 2;
    }
    let done = &turn.done;
    ensure!(done["turn"] == number && done["samples"] == offset && done["text"] == turn.text, "{done}");
    ensure!(done["finish_reason"] == "stop" && done["duration_s"] == offset as f64 / 24_000.0, "{done}");
    ensure!(done["ttfa_ms"].is_number() && done["rtf"].is_number(), "{done}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_are_answered_in_order_with_text_and_exact_chunks() -> Result<()> {
    let server = Setup::converser("chat-turns").start().await?;
    let mut session = begin(&server).await?;
    let pcm = tone();
    for piece in pcm.chunks(1_000) {
        session.send_raw(Message::binary(piece.to_vec())).await?;
    }
    session.send(json!({"type": "input.audio.commit"})).await?;
    session.send(json!({"type": "input.text", "text": "And what is this?"})).await?;
    let mut answers = Vec::new();
    for number in 0..2 {
        let turn = session.rest_of_turn(Turn::default()).await?;
        check_exact(&turn, number)?;
        answers.push(turn);
    }
    ensure!(answers[0].text != answers[1].text && answers[0].audio() != answers[1].audio(), "the same twice");
    session.send(json!({"type": "input.done"})).await?;
    session.expect_done(1000).await?;
    // A second session with the same input gets the same output; an extra turn changes it.
    let mut again = begin(&server).await?;
    again.send_raw(Message::binary(vec![1, 0])).await?;
    again.send(json!({"type": "input.audio.clear"})).await?;
    again.send_raw(Message::binary(pcm)).await?;
    again.send(json!({"type": "input.audio.commit"})).await?;
    let first = again.rest_of_turn(Turn::default()).await?;
    ensure!((&first.text, first.audio()) == (&answers[0].text, answers[0].audio()), "{}", first.done);
    say(&mut again, "By the way.").await?;
    ensure!(say(&mut again, "And what is this?").await?.text != answers[1].text, "it remembers nothing");
    let labels = ["task=\"chat\"", "model=\"chat-turns\"", "finish_reason=\"stop\""];
    server.assert_balanced().await?;
    assert_eq!(server.metric("izwi_requests_total", &labels).await?, 5.0);
    assert!(server.metric("izwi_prefix_cache_hits_total", &["model=\"chat-turns\""]).await? > 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_after_an_interrupt() -> Result<()> {
    let (gate, script) = Gate::new(|_| true);
    let server = Setup::converser("chat-interrupt").script(script).start().await?;
    let mut session = begin(&server).await?;
    session.send(json!({"type": "input.text", "text": "a long question, ".repeat(20)})).await?;
    session.send(json!({"type": "input.text", "text": "that is never answered"})).await?;
    gate.admit(24);
    let mut turn = Turn::default();
    while turn.chunks.len() < 3 {
        session.more_of(&mut turn).await?;
    }
    session.send(json!({"type": "interrupt"})).await?;
    session.send(json!({"type": "ping"})).await?;
    // Chunks in flight may still arrive; the end may arrive before or after the pong.
    let mut done = None;
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "pong" => break,
            Incoming::Frame(frame) if frame["type"] == "turn.done" => done = Some(frame),
            Incoming::Frame(_) | Incoming::Audio(_) => ensure!(done.is_none(), "something after the end"),
            other => anyhow::bail!("{other:?}"),
        }
    }
    gate.open();
    let done = match done {
        Some(done) => done,
        None => session.expect("turn.done").await?,
    };
    ensure!(done["finish_reason"] == "interrupted" && done["turn"] == 0, "{done}");
    let next = say(&mut session, "Wait.").await?;
    check_exact(&next, 1)?;
    server.assert_balanced().await?;
    // A client disconnects during an answer.
    session.send(json!({"type": "input.text", "text": "a long question, ".repeat(20)})).await?;
    session.send_raw(Message::Close(None)).await?;
    drop(session);
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_turn_does_not_end_the_conversation() -> Result<()> {
    let setup = Setup::converser("chat-limits").server(|server| server.max_input_chars = 2_000);
    let setup = setup.engine(|engine| {
        engine.max_turn_duration = std::time::Duration::from_secs(1);
        engine.max_conversation_turns = 4;
        engine.max_seq_len = 500;
    });
    let server = setup.start().await?;
    let mut session = server.chat().await?;
    for (frame, code, param) in [
        (json!({"type": "session.config", "chunk_ms": 5}), "invalid_value", "chunk_ms"),
        (json!({"type": "session.config", "input_sample_rate": 7}), "invalid_value", "input_sample_rate"),
        (json!({"type": "session.config", "priority": "x"}), "invalid_value", "priority"),
        (json!({"type": "session.config", "response_format": "aac"}), "invalid_value", "response_format"),
        (json!({"type": "session.config", "model": "nobody"}), "model_not_found", "model"),
        (json!({"type": "input.audio.commit"}), "invalid_value", "audio"),
        (json!({"type": "input.text", "text": " "}), "invalid_value", "text"),
        (json!({"type": "input.text", "text": "a".repeat(2_001)}), "invalid_value", "text"),
        (json!({"type": "input.text"}), "invalid_value", "text"),
        (json!({"type": "speak", "text": "a"}), "unknown_type", "type"),
        (json!({"type": 7}), "invalid_value", "type"),
    ] {
        session.send(frame.clone()).await?;
        let error = session.expect_error(code).await.with_context(|| frame.to_string())?;
        ensure!(error["param"] == param, "{frame}: {error}");
    }
    session.send_raw(Message::text("nonsense")).await?;
    session.expect_error("invalid_json").await?;
    session.send_raw(Message::binary(vec![0; 3])).await?;
    session.expect("session.created").await?;
    session.expect_error("invalid_value").await?;
    session.send_raw(Message::binary(vec![0; 32_000])).await?;
    session.send_raw(Message::binary(vec![0; 2])).await?;
    session.expect_error("too_large").await?;
    session.send(json!({"type": "input.audio.commit"})).await?;
    session.expect_error("too_large").await?;
    session.send_raw(Message::binary(vec![0; 300_000])).await?;
    session.expect_error("too_large").await?;
    session.send(json!({"type": "session.config"})).await?;
    session.expect_error("out_of_order").await?;
    // Longer than the context: the turn is refused and does not enter the history.
    session.send(json!({"type": "input.text", "text": "b".repeat(1_000)})).await?;
    session.expect_error("invalid_value").await?;
    let mut forgotten = 0;
    for number in 1..10 {
        let turn = say(&mut session, "Something to say.").await?;
        check_exact(&turn, number)?;
        forgotten = turn.done["forgotten_turns"].as_u64().context("a number")?;
    }
    ensure!(forgotten > 0 && forgotten < 9, "{forgotten} turns are forgotten");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_get_errors_and_affect_no_other_session() -> Result<()> {
    let server = Setup::converser("chat-garbage").start().await?;
    let mut session = server.chat().await?;
    let mut state = 0x5eed_u64;
    for round in 0..400_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let junk: Vec<u8> = (0..state >> 56).map(|at| (state >> (at % 57)) as u8 | 1).collect();
        let frame = match round % 5 {
            0 => Message::text(String::from_utf8_lossy(&junk).into_owned() + "\u{1}"),
            1 => Message::text(json!({"type": "session.config", "seed": [round]}).to_string()),
            2 => Message::text(json!({"type": format!("x{state}")}).to_string()),
            3 => Message::text("[".repeat(1 + (state >> 50) as usize)),
            _ => Message::text(json!({"type": "input.text", "text": {"a": round}}).to_string()),
        };
        session.send_raw(frame).await?;
        session.expect("error").await?;
    }
    session.send(json!({"type": "session.config"})).await?;
    session.expect("session.created").await?;
    check_exact(&say(&mut session, "A normal sentence.").await?, 0)?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_the_chat_task_is_refused() -> Result<()> {
    let server = Setup::tokens("chat-mute").start().await?;
    let mut session = server.chat().await?;
    session.send(json!({"type": "session.config", "model": "chat-mute"})).await?;
    let error = session.expect_error("invalid_value").await?;
    let message = error["message"].as_str().context("a message")?;
    ensure!(
        error["param"] == "model" && message.contains("'chat-mute' does not support the task chat"),
        "{error}"
    );
    session.send(json!({"type": "input.text", "text": "Hello?"})).await?;
    let error = session.expect_error("invalid_value").await?;
    ensure!(error["param"] == "model", "{error}");
    let upgrade = server.get("/v1/audio/chat/stream").await?;
    ensure!(upgrade.status() == 426, "{}", upgrade.status());

    let talker = Setup::converser("chat-both").start().await?;
    let listed: serde_json::Value = talker.get("/v1/models/chat-both").await?.json().await?;
    ensure!(listed["tasks"] == json!(["tts", "chat"]), "{listed}");
    talker.session().await?.speak("It also speaks.").await?;
    check_exact(&say(&mut begin(&talker).await?, "And converses.").await?, 0)
}
