//! Clients that disconnect or do not read; engines that fail.

use std::time::Duration;

use anyhow::{Result, ensure};
use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::Fault;
use izwi_tests::{Gate, Incoming, Session, Setup, TestServer, eventually, guarded};
use serde_json::{Value, json};

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";
/// Samples per token: a whole utterance is larger than any socket buffer.
const FLOOD: usize = 480_000;
/// Generates 23 tokens.
const TEXT: &str = "Twenty-two characters.";

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_aborts_within_one_step() -> Result<()> {
    for kind in ["websocket", "http"] {
        let name = format!("leaver-{kind}");
        let (gate, script) = Gate::new(|_| true);
        let setup = Setup::tokens(&name).script(script);
        // A session that may be resumed continues for a while.
        let setup = setup.server(|server| server.resume_window = Duration::ZERO);
        let server = setup.start().await?;
        // Three steps of 80 ms complete the first chunk; the fourth waits at the gate.
        gate.admit(3);
        if kind == "websocket" {
            let mut session = server.session().await?;
            session.send(json!({"type": "speak", "text": TEXT})).await?;
            session.expect("session.created").await?;
            session.expect("audio.start").await?;
            session.chunk().await?;
            drop(session);
            server.assert_no_sessions().await?;
        } else {
            let mut response = server.speech(&json!({"model": "tts-1", "input": TEXT})).await?;
            ensure!(response.chunk().await?.is_some());
            drop(response);
            eventually("the request to be dropped", || async {
                let health: Value = server.get("/health").await?.json().await?;
                Ok(health["requests_open"] == 0)
            })
            .await?;
        }
        // The step in flight may finish; no further step may start.
        gate.open();
        server.assert_balanced().await?;
        assert_eq!(gate.arrived(), 4, "steps of a {kind} client that had left");
        let model = format!("model=\"{name}\"");
        assert_eq!(server.metric("izwi_aborts_total", &[&model, "cause=\"disconnect\""]).await?, 1.0);
    }
    Ok(())
}

/// Opens a session that requests more than all buffers hold, and reads nothing.
async fn non_reading_session(server: &TestServer) -> Result<Session> {
    let mut session = Session::open_small(server.address).await?;
    session.send(json!({"type": "speak", "text": TEXT, "chunk_ms": 2000})).await?;
    Ok(session)
}

fn flood(name: &str) -> Setup {
    let mut setup = Setup::tokens(name);
    setup.model.samples_per_token = FLOOD;
    setup
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_pauses_only_itself() -> Result<()> {
    let (gate, script) = Gate::new(|_| false);
    let server = flood("non_reading_session-paused")
        .server(|server| server.resume_window = Duration::ZERO)
        .script(script)
        .start()
        .await?;
    let non_reading_session = non_reading_session(&server).await?;
    // Paused: admitted and not done, but no step runs for it.
    eventually("the non_reading_session client to be paused", || async {
        let before = (gate.arrived(), server.engine()?.status().running);
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(before.0 > 0 && before == (gate.arrived(), 1))
    })
    .await?;
    assert!(gate.arrived() < 23, "nothing held the generation back");
    let mut others = Vec::new();
    for _ in 0..3 {
        let mut session = server.session().await?;
        others.push(async move { session.speak("Short.").await });
    }
    for utterance in futures::future::try_join_all(others).await? {
        assert_eq!(utterance.done["finish_reason"], "stop");
    }
    assert_eq!(server.engine()?.status().running, 1, "the non_reading_session client is still there");
    drop(non_reading_session);
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_dropped_after_the_timeout() -> Result<()> {
    let server = flood("non_reading_session-dropped")
        .server(|server| {
            server.send_timeout = Duration::from_millis(200);
            server.resume_window = Duration::ZERO;
        })
        .engine(|engine| engine.slow_client_timeout = Duration::from_millis(400))
        .start()
        .await?;
    let session = non_reading_session(&server).await?;
    let url = server.url("/v1/audio/speech");
    let stuck = tokio::spawn(async move {
        let body = json!({"model": "tts-1", "input": TEXT});
        let response = reqwest::Client::new().post(url).json(&body).send().await;
        tokio::time::sleep(izwi_tests::GUARD).await;
        drop(response);
    });
    eventually("both to be dropped", || async {
        Ok(server.metric("izwi_aborts_total", &["model=\"non_reading_session-dropped\""]).await? >= 2.0)
    })
    .await?;
    server.assert_no_sessions().await?;
    server.assert_balanced().await?;
    let mut other = server.session().await?;
    assert_eq!(other.speak("Short.").await?.done["finish_reason"], "stop");
    stuck.abort();
    drop(session);
    Ok(())
}

fn failing_at(step: usize, fault: Fault) -> izwi_core::engine::executor::simulated::Script {
    let mut count = 0;
    Box::new(move |_: &StepPlan| {
        count += 1;
        (count == step).then_some(fault)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_before_the_first_byte_sets_the_status() -> Result<()> {
    let server = Setup::units("fails-first").script(failing_at(1, Fault::Step)).start().await?;
    let response = server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?;
    assert_eq!(response.status(), 500);
    let id = response.headers()["x-request-id"].to_str()?.to_owned();
    let body: Value = response.json().await?;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(&id) && !message.contains("made to fail"), "{message}");
    assert_eq!(body["error"]["type"], "server_error");
    let response = server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?;
    assert_eq!(response.status(), 200, "the next request is served");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_after_the_first_byte_cuts_the_body() -> Result<()> {
    for stream_format in ["audio", "sse"] {
        let (gate, mut wait) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
        let mut fail = failing_at(2, Fault::Step);
        let script = Box::new(move |plan: &StepPlan| wait(plan).or_else(|| fail(plan)));
        let server = Setup::units("fails-later").script(script).start().await?;
        let text = format!("{SENTENCE} {SENTENCE}");
        let body = json!({"model": "tts-1", "input": text, "stream_format": stream_format});
        let mut response = server.speech(&body).await?;
        assert_eq!(response.status(), 200);
        // Bytes written just before the cut may not arrive: wait for some first.
        ensure!(guarded(response.chunk()).await??.is_some());
        gate.open();
        let ended = loop {
            match response.chunk().await {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(ended.is_err(), "the body had a clean end");
        server.assert_balanced().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_utterance_is_reported_and_the_next_one_runs() -> Result<()> {
    let server = Setup::units("fails-session").script(failing_at(2, Fault::Step)).start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "input.text", "text": format!("{SENTENCE} {SENTENCE}")})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    session.send(json!({"type": "input.text", "text": "And on."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    session.expect("session.created").await?;
    // The first sentence is delivered; the second is a separate utterance and fails.
    assert_eq!(session.utterance().await?.done["finish_reason"], "stop");
    let error = session.expect_error("internal_error").await?;
    assert!(!error["message"].as_str().unwrap_or_default().contains("made to fail"), "{error}");
    let utterance = session.utterance().await?;
    assert_eq!(
        (&utterance.start["utterance"], &utterance.done["finish_reason"]),
        (&json!(2), &json!("stop"))
    );
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_utterance_that_fails_midway_reports_an_error() -> Result<()> {
    let server = Setup::units("fails-middle").script(failing_at(2, Fault::Step)).start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": format!("{SENTENCE} {SENTENCE}")})).await?;
    session.expect("session.created").await?;
    session.expect("audio.start").await?;
    let mut errors = 0;
    let done = loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "audio.done" => break frame,
            Incoming::Frame(frame) if frame["type"] == "error" => {
                errors += 1;
                assert_eq!(frame["code"], "internal_error");
            }
            Incoming::Closed(_) => panic!("closed before audio.done"),
            _ => {}
        }
    };
    assert_eq!((errors, &done["finish_reason"]), (1, &json!("error")));
    session.expect_done(1000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_engine_fails_readiness() -> Result<()> {
    let script = Box::new(|_: &StepPlan| Some(Fault::Panic));
    let server = Setup::units("dead").script(script).start().await?;
    assert_eq!(server.get("/readyz").await?.status(), 200);
    for _ in 0..3 {
        assert_eq!(server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?.status(), 500);
    }
    eventually("readiness to turn red", || async { Ok(server.get("/readyz").await?.status() == 503) })
        .await?;
    let body: Value = server.get("/readyz").await?.json().await?;
    assert_eq!(body["error"]["code"], "dead");
    let response = server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?;
    assert_eq!(response.status(), 503);
    assert_eq!(response.json::<Value>().await?["error"]["code"], "model_unavailable");
    assert_eq!(server.get("/livez").await?.status(), 200);
    let health: Value = server.get("/health").await?.json().await?;
    assert_eq!((&health["status"], &health["models"]["dead"]["state"]), (&json!("degraded"), &json!("dead")));
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": "Hello."})).await?;
    session.expect_error("model_unavailable").await?;
    Ok(())
}
