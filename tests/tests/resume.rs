//! Sessions that continue on a new connection after the first was lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_tests::{Gate, Incoming, Session, Setup, TestServer, eventually};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";

/// What a client has received of a session.
#[derive(Default)]
struct Received {
    audio: Vec<u8>,
    /// Joined `text.delta` frames.
    text: String,
    /// The frames that end an utterance or a turn.
    ends: Vec<Value>,
    is_done: bool,
}

impl Received {
    fn samples(&self) -> u64 {
        self.audio.len() as u64 / 2
    }

    /// Reads until the end of the session, of `ends` utterances or turns, or until there are `samples` samples.
    async fn listen(&mut self, session: &mut Session, samples: u64, ends: usize) -> Result<()> {
        while self.samples() < samples && self.ends.len() < ends && !self.is_done {
            let frame = session.frame().await?;
            match frame["type"].as_str() {
                Some("audio.chunk") => match session.next().await? {
                    Incoming::Audio(bytes) => {
                        ensure!(frame["samples"] == bytes.len() / 2, "{frame} has {} bytes", bytes.len());
                        self.audio.extend_from_slice(&bytes);
                    }
                    other => anyhow::bail!("expected audio behind {frame}, got {other:?}"),
                },
                Some("text.delta") => {
                    let offset = frame["offset"].as_u64().context("an offset")? as usize;
                    let delta = frame["delta"].as_str().context("a delta")?;
                    // A delta may come again; its offset tells.
                    self.text.extend(delta.chars().skip(self.text.chars().count() - offset));
                }
                Some("audio.done" | "turn.done") => {
                    let is_new = self.ends.iter().all(|end| end["utterance"] != frame["utterance"])
                        || frame["turn"].is_u64() && self.ends.iter().all(|end| end["turn"] != frame["turn"]);
                    if is_new {
                        self.ends.push(frame);
                    }
                }
                Some("session.done") => self.is_done = true,
                Some("audio.start") => {}
                // An error near the break comes again.
                Some("error") if frame["code"] == "out_of_order" => {}
                _ => anyhow::bail!("unexpected {frame}"),
            }
        }
        Ok(())
    }
}

async fn begin(server: &TestServer, path: &str) -> Result<(Session, Value)> {
    let mut session = Session::open(&format!("ws://{}{path}", server.address)).await?;
    session.send(json!({"type": "session.config", "seed": 7, "chunk_ms": 100})).await?;
    let created = session.expect("session.created").await?;
    Ok((session, created))
}

fn resume_of(created: &Value, next_sample: u64) -> Value {
    json!({
        "type": "session.resume",
        "session_id": created["session_id"],
        "resume_token": created["resume_token"],
        "next_sample": next_sample,
    })
}

async fn resume(server: &TestServer, path: &str, created: &Value, next_sample: u64) -> Result<Session> {
    let mut session = Session::open(&format!("ws://{}{path}", server.address)).await?;
    session.send(resume_of(created, next_sample)).await?;
    let resumed = session.expect("session.resumed").await?;
    ensure!(resumed["next_sample"] == next_sample && resumed["session_id"] == created["session_id"]);
    Ok(session)
}

async fn speak(session: &mut Session) -> Result<()> {
    for text in [SENTENCE, "A second one."] {
        session.send(json!({"type": "input.text", "text": text})).await?;
        session.send(json!({"type": "input.flush"})).await?;
    }
    session.send(json!({"type": "input.done"})).await
}

const SPEECH: &str = "/v1/audio/speech/stream";
const CHAT: &str = "/v1/audio/chat/stream";

#[tokio::test(flavor = "multi_thread")]
async fn a_speech_session_continues_at_any_sample_as_if_undisturbed() -> Result<()> {
    for setup in [Setup::units("resume-units"), Setup::tokens("resume-tokens")] {
        let server = setup.start().await?;
        let (mut session, created) = begin(&server, SPEECH).await?;
        ensure!(created["resume_token"].as_str().is_some_and(|token| token.len() >= 32), "{created}");
        ensure!(created["resume_window_s"] == 30, "{created}");
        speak(&mut session).await?;
        let mut whole = Received::default();
        whole.listen(&mut session, u64::MAX, usize::MAX).await?;
        let total = whole.samples();
        let mut dice = 0x5eed_u64;
        for _ in 0..8 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let lost_at = (dice >> 33) % total;
            let (mut session, created) = begin(&server, SPEECH).await?;
            speak(&mut session).await?;
            let mut received = Received::default();
            received.listen(&mut session, lost_at, usize::MAX).await?;
            drop(session);
            // The client has stored some of what it got.
            let kept = received.samples().min(lost_at);
            received.audio.truncate(kept as usize * 2);
            let mut session = resume(&server, SPEECH, &created, kept).await?;
            received.listen(&mut session, u64::MAX, usize::MAX).await?;
            ensure!(received.is_done && received.audio == whole.audio, "another stream from sample {kept}");
            ensure!(received.ends.len() == 2, "{:?}", received.ends);
            ensure!(session.next().await? == Incoming::Closed(Some(1000)));
        }
        server.assert_no_sessions().await?;
        server.assert_balanced().await?;
        assert!(server.metric("izwi_session_resumes_total", &["outcome=\"resumed\""]).await? >= 8.0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_replaced_before_the_server_knows_that_it_is_lost() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("resume-half-open").script(script).start().await?;
    let (mut first, created) = begin(&server, SPEECH).await?;
    let text = format!("{SENTENCE} {SENTENCE}");
    first.send(json!({"type": "speak", "text": text})).await?;
    let mut received = Received::default();
    received.listen(&mut first, 2_400, usize::MAX).await?;
    let mut second = resume(&server, SPEECH, &created, received.samples()).await?;
    // After what was sent already, the first connection ends.
    while first.next().await? != Incoming::Closed(None) {}
    gate.open();
    received.listen(&mut second, u64::MAX, usize::MAX).await?;
    ensure!(received.samples() as usize == (text.len() - 1) * 100, "{} samples", received.samples());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_with_its_answer_and_its_history() -> Result<()> {
    let server = Setup::converser("resume-chat").start().await?;
    let (mut session, _) = begin(&server, CHAT).await?;
    let mut whole = Received::default();
    for turn in 1..3 {
        session.send(json!({"type": "input.text", "text": "a question that has a long answer"})).await?;
        whole.listen(&mut session, u64::MAX, turn).await?;
    }
    for lost_at in [0, 1, 4_801, whole.samples() / 3] {
        let (mut session, created) = begin(&server, CHAT).await?;
        session.send(json!({"type": "input.text", "text": "a question that has a long answer"})).await?;
        let mut received = Received::default();
        received.listen(&mut session, lost_at, 1).await?;
        drop(session);
        received.audio.truncate(lost_at as usize * 2);
        let mut session = resume(&server, CHAT, &created, lost_at).await?;
        received.listen(&mut session, u64::MAX, 1).await?;
        session.send(json!({"type": "input.text", "text": "a question that has a long answer"})).await?;
        received.listen(&mut session, u64::MAX, 2).await?;
        ensure!(received.audio == whole.audio && received.text == whole.text, "lost at {lost_at}");
    }
    Ok(())
}

/// The answer to a resumption that must be refused.
async fn refused(server: &TestServer, path: &str, frame: Value, code: &str) -> Result<(Session, Value)> {
    let mut session = Session::open(&format!("ws://{}{path}", server.address)).await?;
    session.send(frame).await?;
    let error = session.expect_error(code).await?;
    Ok((session, error))
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_get_an_error_and_nothing_else() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("resume-foreign").script(script).start().await?;
    let (mut session, created) = begin(&server, SPEECH).await?;
    let (_other, foreign) = begin(&server, SPEECH).await?;
    let text = format!("{SENTENCE} {SENTENCE}");
    session.send(json!({"type": "speak", "text": text})).await?;
    let mut received = Received::default();
    received.listen(&mut session, 2_400, usize::MAX).await?;
    let with = |name: &str, value: &Value| {
        let mut frame = resume_of(&created, 0);
        frame[name] = value.clone();
        frame
    };
    let wrong = [
        (SPEECH, with("resume_token", &json!("0".repeat(64)))),
        (SPEECH, with("resume_token", &json!(""))),
        (SPEECH, with("resume_token", &foreign["resume_token"])),
        (SPEECH, with("session_id", &foreign["session_id"])),
        (SPEECH, with("session_id", &json!("req-unknown"))),
        (CHAT, with("next_sample", &json!(0))),
    ];
    for (path, frame) in wrong {
        let (mut stranger, _) = refused(&server, path, frame, "resume_refused").await?;
        ensure!(stranger.next().await? == Incoming::Closed(Some(1008)));
    }
    for name in ["session_id", "resume_token", "next_sample"] {
        let (_, error) = refused(&server, SPEECH, with(name, &Value::Null), "invalid_value").await?;
        ensure!(error["param"] == name, "{error}");
    }
    // The right token at a sample that was never sent: the error tells the range, and the connection stays.
    let (mut late, error) =
        refused(&server, SPEECH, with("next_sample", &json!(1_000_000)), "resume_out_of_window").await?;
    ensure!(error["param"] == "next_sample", "{error}");
    session.send(resume_of(&created, 0)).await?;
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "error" => {
                ensure!(frame["code"] == "out_of_order", "{frame}");
                break;
            }
            Incoming::Frame(_) | Incoming::Audio(_) => {}
            Incoming::Closed(code) => anyhow::bail!("closed with {code:?}"),
        }
    }
    drop(session);
    late.send(resume_of(&created, received.samples())).await?;
    late.expect("session.resumed").await?;
    gate.open();
    received.listen(&mut late, u64::MAX, usize::MAX).await?;
    ensure!(received.samples() as usize == (text.len() - 1) * 100, "{} samples", received.samples());
    assert_eq!(server.metric("izwi_session_resumes_total", &["outcome=\"refused\""]).await?, 7.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ring_pauses_the_generation_until_the_client_is_back() -> Result<()> {
    // 23 tokens of five seconds, a window of ten.
    const TEXT: &str = "Twenty-two characters.";
    // What is sent before the loss is noticed leaves the window: the generation waits until then.
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let mut setup = Setup::tokens("resume-full").script(script);
    setup.model.samples_per_token = 120_000;
    let server = setup.server(|server| server.resume_window = Duration::from_secs(10)).start().await?;
    let (mut session, created) = begin(&server, SPEECH).await?;
    let mut other = server.session().await?;
    other.send(json!({"type": "session.config", "seed": 7})).await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    let mut received = Received::default();
    received.listen(&mut session, 2_400, usize::MAX).await?;
    drop(session);
    eventually("the loss to be noticed", || async {
        Ok(server.metric("izwi_sessions_detached", &[]).await? == 1.0)
    })
    .await?;
    gate.open();
    eventually("the generation to be paused", || async {
        let before = gate.arrived();
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(before == gate.arrived())
    })
    .await?;
    ensure!(gate.arrived() < 23 && server.engine()?.status().running == 1, "{} steps", gate.arrived());
    let mut session = resume(&server, SPEECH, &created, received.samples()).await?;
    received.listen(&mut session, u64::MAX, usize::MAX).await?;
    ensure!(received.samples() == 23 * 120_000, "{} samples", received.samples());
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_client_stays_away_or_says_goodbye_frees_everything() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("resume-expired")
        .server(|server| server.resume_window = Duration::from_millis(300))
        .script(script)
        .start()
        .await?;
    let (mut session, created) = begin(&server, SPEECH).await?;
    session.send(json!({"type": "speak", "text": format!("{SENTENCE} {SENTENCE}")})).await?;
    Received::default().listen(&mut session, 2_400, usize::MAX).await?;
    drop(session);
    let expired = ["outcome=\"expired\""];
    eventually("the session to expire", || async {
        Ok(server.metric("izwi_session_resumes_total", &expired).await? == 1.0)
    })
    .await?;
    gate.open();
    server.assert_balanced().await?;
    assert_eq!(server.metric("izwi_sessions_detached", &[]).await?, 0.0);
    refused(&server, SPEECH, resume_of(&created, 0), "resume_refused").await?;
    // A client that closes the session has no use for it.
    let (mut session, created) = begin(&server, SPEECH).await?;
    session.send_raw(Message::Close(None)).await?;
    while session.next().await? != Incoming::Closed(None) {}
    server.assert_no_sessions().await?;
    refused(&server, SPEECH, resume_of(&created, 0), "resume_refused").await?;
    assert_eq!(server.metric("izwi_session_resumes_total", &expired).await?, 1.0);
    Ok(())
}
