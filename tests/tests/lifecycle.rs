//! Loading, overload and shutdown.

use std::time::Duration;

use anyhow::{Result, ensure};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Gate, Session, Setup, TestServer, Utterance, eventually, guarded};
use serde_json::{Value, json};

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";
/// Two sentences that complete a chunk, and a third. No clause is long enough to be cut early.
const HELD: &str = "Hi. This has words enough to fill more than one whole chunk, and so on. Go.";

async fn readiness(server: &TestServer) -> Result<(u16, String)> {
    let response = server.get("/readyz").await?;
    let status = response.status().as_u16();
    let body: Value = response.json().await?;
    Ok((status, body["error"]["code"].as_str().unwrap_or("ready").to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_responds_while_its_model_loads() -> Result<()> {
    let registry_config =
        RegistryConfig { load_timeout: Duration::from_millis(100), ..RegistryConfig::new("late") };
    let registry = Registry::new(registry_config);
    let server = TestServer::listen(ServerConfig::default(), registry.clone(), Recorder::install()?).await?;
    assert_eq!(readiness(&server).await?, (503, "loading".to_owned()));
    assert_eq!(server.get("/livez").await?.status(), 200);
    let speak = json!({"model": "tts-1", "input": SENTENCE});
    let response = server.speech(&speak).await?;
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(response.json::<Value>().await?["error"]["code"], "model_loading");
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": SENTENCE})).await?;
    session.expect_error("model_loading").await?;

    registry.set("late", Slot::Failed("weights are missing".to_owned()));
    assert_eq!(readiness(&server).await?, (503, "failed".to_owned()));
    assert!(server.page("/readyz").await?.contains("weights are missing"));
    assert_eq!(server.speech(&speak).await?.status(), 503);

    let config = EngineCoreConfig { model: "late".to_owned(), ..Default::default() };
    let executor =
        SimulatedExecutor::new(&config, SimulatedModel { autoregressive: false, ..Default::default() });
    let engine = Engine::with_executor(config, Box::new(executor))?;
    engine.ready().await?;
    registry.set("late", Slot::Ready(engine.clone()));
    assert_eq!(readiness(&server).await?, (200, "ready".to_owned()));
    assert_eq!(server.speech(&speak).await?.status(), 200);
    // The refused session stays open.
    session.send(json!({"type": "speak", "text": SENTENCE})).await?;
    session.expect("session.created").await?;
    session.utterance().await?;

    engine.stop();
    eventually("the engine to stop", || async {
        Ok(readiness(&server).await? == (503, "stopped".to_owned()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_texts_are_not_told_in_the_open_where_a_key_is_set() -> Result<()> {
    let registry = Registry::new(RegistryConfig::new("broken"));
    registry.set("broken", Slot::Failed("/home/ann/models has no weights".to_owned()));
    let config = ServerConfig { api_key: Some("open-sesame-1234".to_owned()), ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    for path in ["/readyz", "/livez", "/health"] {
        let answer = server.page(path).await?;
        ensure!(!answer.contains("ann"), "{path} answers {answer}");
    }
    assert_eq!(readiness(&server).await?, (503, "failed".to_owned()));
    Ok(())
}

/// A session that received its first chunk while its third sentence waits at the gate.
async fn mid_utterance(server: &TestServer) -> Result<(Session, Utterance)> {
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config"})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "input.text", "text": HELD})).await?;
    session.send(json!({"type": "input.flush"})).await?;
    let start = session.expect("audio.start").await?;
    let chunks = vec![session.chunk().await?];
    Ok((session, Utterance { start, chunks, done: Value::Null }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_utterances_and_refuses_new_ones() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 1));
    let mut server = Setup::units("drains").script(script).start().await?;
    let (mut session, utterance) = mid_utterance(&server).await?;
    let mut silent = server.session().await?;
    session.send(json!({"type": "input.text", "text": "Never spoken."})).await?;
    session.send(json!({"type": "ping"})).await?;
    session.expect("pong").await?;
    server.stop();
    eventually("readiness to turn red", || async {
        Ok(readiness(&server).await? == (503, "draining".to_owned()))
    })
    .await?;
    silent.expect_done(1001).await?;
    session.expect_error("draining").await?;
    let response = server.speech(&json!({"model": "tts-1", "input": SENTENCE})).await?;
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(response.json::<Value>().await?["error"]["code"], "draining");
    assert!(server.session().await.is_err(), "no new session while draining");
    session.send(json!({"type": "input.text", "text": "Too late."})).await?;
    session.expect_error("out_of_order").await?;
    gate.open();
    let utterance = session.rest_of(utterance).await?;
    assert_eq!(utterance.done["finish_reason"], "stop");
    session.expect_done(1001).await?;
    server.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_response_bodies() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let mut server = Setup::units("drains-http").script(script).start().await?;
    let text = format!("{SENTENCE} {SENTENCE}");
    let mut response =
        server.speech(&json!({"model": "tts-1", "input": text, "response_format": "pcm"})).await?;
    let mut received = guarded(response.chunk()).await??.map_or(0, |bytes| bytes.len());
    server.stop();
    eventually("readiness to turn red", || async { Ok(readiness(&server).await?.0 == 503) }).await?;
    gate.open();
    while let Some(bytes) = guarded(response.chunk()).await?? {
        received += bytes.len();
    }
    assert_eq!(received, 2 * SENTENCE.len() * 200);
    server.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_after_its_timeout() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 1));
    let mut server = Setup::units("drains-hard")
        .script(script)
        .server(|server| server.drain_timeout = Duration::from_millis(50))
        .start()
        .await?;
    let (session, _) = mid_utterance(&server).await?;
    server.stop();
    server.ended().await?;
    drop((session, gate));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limits_are_refused() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("full")
        .script(script)
        .server(|server| (server.max_requests, server.max_sessions) = (1, 1))
        .start()
        .await?;
    let speak = json!({"model": "tts-1", "input": format!("{SENTENCE} {SENTENCE}")});
    let open = server.speech(&speak).await?;
    let response = server.speech(&speak).await?;
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(response.json::<Value>().await?["error"]["type"], "rate_limit_error");
    assert_eq!(server.get("/readyz").await?.status(), 200, "probes are answered by a full server");
    gate.open();
    open.bytes().await?;
    eventually("the first place to be free", || async {
        Ok(server.get("/v1/models").await?.status() == 200)
    })
    .await?;
    let mut session = server.session().await?;
    ensure!(server.session().await.is_err(), "a second session was opened");
    session.send(json!({"type": "input.done"})).await?;
    session.expect_done(1000).await?;
    drop(session);
    server.assert_no_sessions().await?;
    server.session().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_with_retry_after() -> Result<()> {
    let (gate, script) = Gate::new(|_| true);
    let server = Setup::units("queue")
        .script(script)
        .engine(|engine| (engine.max_running_requests, engine.max_waiting_requests) = (1, 1))
        .start()
        .await?;
    let long = "Words. ".repeat(500);
    let body = json!({"model": "tts-1", "input": long});
    let ask = || server.speech(&body);
    let mut asked: futures::stream::FuturesUnordered<_> = (0..4).map(|_| ask()).collect();
    let feeding = async {
        loop {
            gate.admit(1);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let refused = async {
        use futures::StreamExt;
        while let Some(response) = asked.next().await {
            let response = response?;
            if response.status() == 429 {
                ensure!(response.headers().contains_key("retry-after"));
                return Ok(());
            }
        }
        anyhow::bail!("nothing was refused")
    };
    tokio::select! {
        () = feeding => {}
        refused = guarded(refused) => refused??,
    }
    gate.open();
    drop(asked);
    server.assert_balanced().await
}
