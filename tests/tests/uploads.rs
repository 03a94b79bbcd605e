//! Uploads: limits, slow and disconnecting clients, shutdown, two models on one device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::executor::simulated::{Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, MemoryBudget};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{
    Form, Gate, RawResponse, Setup, TestServer, base64, eventually, exchange, guarded, recording,
    transcript_events,
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

fn body(seconds: f64) -> Value {
    json!({"model": "whisper-1", "audio": base64(&recording(seconds))})
}

fn form(seconds: f64) -> Form {
    Form::new().text("model", "whisper-1").file("file", &recording(seconds))
}

/// A raw request head.
fn head(content_type: &str, more: &str) -> String {
    format!(
        "POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n{more}\r\n\r\n"
    )
}

fn error(response: &RawResponse) -> Result<Value> {
    let body: Value = serde_json::from_slice(&response.body).context(response.head.clone())?;
    ensure!(body["error"]["message"].is_string(), "{body}");
    Ok(body["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_uploads_are_refused_in_every_encoding() -> Result<()> {
    let server = Setup::listener("too-much")
        .server(|server| (server.max_upload_bytes, server.max_body_bytes) = (100_000, 10_000))
        .start()
        .await?;
    // 96,044 bytes fit.
    assert_eq!(server.post(TRANSCRIPTIONS, &body(3.0)).await?.status(), 200);
    assert_eq!(server.post_form(TRANSCRIPTIONS, form(3.0)).await?.status(), 200);
    for seconds in [3.2, 5.0, 60.0] {
        for (kind, bytes) in [
            ("application/json".to_owned(), body(seconds).to_string().into_bytes()),
            (Form::content_type(), form(seconds).finish()),
        ] {
            let mut whole = head(&kind, &format!("Content-Length: {}", bytes.len())).into_bytes();
            whole.extend_from_slice(&bytes);
            let mut chunked = head(&kind, "Transfer-Encoding: chunked").into_bytes();
            for chunk in bytes.chunks(7_000) {
                chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunked.extend_from_slice(chunk);
                chunked.extend_from_slice(b"\r\n");
            }
            chunked.extend_from_slice(b"0\r\n\r\n");
            for request in [whole, chunked] {
                let response = exchange(server.address, &request).await?;
                ensure!(response.head.starts_with("http/1.1 413"), "{kind} {seconds}: {}", response.head);
                assert_eq!(error(&response)?["code"], "too_large");
            }
        }
    }
    // A declared length over the limit is refused before the body is sent.
    let request = head("application/json", "Content-Length: 99999999999");
    assert!(exchange(server.address, request.as_bytes()).await?.head.starts_with("http/1.1 413"));
    let polite = head("application/json", "Content-Length: 999999\r\nExpect: 100-continue");
    let response = exchange(server.address, polite.as_bytes()).await?;
    assert!(response.head.starts_with("http/1.1 413"), "{}", response.head);
    assert_eq!(server.post(TRANSCRIPTIONS, &body(3.0)).await?.status(), 200);
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_all_uploads_is_bounded() -> Result<()> {
    // Room for four: each has a body of 128 kB, and 192 kB decoded.
    let server = Setup::listener("crowded")
        .engine(|engine| engine.memory = MemoryBudget::new(Some(1_300_000)))
        .start()
        .await?;
    server.engine()?.pause()?;
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let url = server.url(TRANSCRIPTIONS);
            tokio::spawn(async move { reqwest::Client::new().post(url).json(&body(3.0)).send().await })
        })
        .collect();
    eventually("all to be received", || async { Ok(server.engine()?.status().pending == 4) }).await?;
    let refused = server.post_form(TRANSCRIPTIONS, form(3.0)).await?;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    server.engine()?.resume()?;
    for answer in asked {
        assert_eq!(guarded(answer).await???.status(), 200);
    }
    assert_eq!(server.post_form(TRANSCRIPTIONS, form(3.0)).await?.status(), 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upload_times_out() -> Result<()> {
    let server = Setup::listener("dawdles")
        .server(|server| server.upload_timeout = Duration::from_millis(100))
        .start()
        .await?;
    for kind in ["application/json", &Form::content_type()] {
        let request = head(kind, "Content-Length: 1000") + "{\"model\": ";
        let response = exchange(server.address, request.as_bytes()).await?;
        assert!(response.head.starts_with("http/1.1 408"), "{}", response.head);
        assert_eq!(error(&response)?["code"], "request_timeout");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_aborts_the_transcription() -> Result<()> {
    for (kind, extra) in [("whole", json!({})), ("stream", json!({"stream": true}))] {
        let name = format!("left-{kind}");
        let (gate, script) = Gate::new(|_| true);
        let server = Setup::listener(&name).script(script).start().await?;
        let mut body = body(600.0);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let body = body.to_string();
        let mut client = TcpStream::connect(server.address).await?;
        let request = head("application/json", &format!("Content-Length: {}", body.len())) + &body;
        guarded(client.write_all(request.as_bytes())).await??;
        gate.admit(3);
        eventually("the transcription to run", || async { Ok(gate.arrived() == 4) }).await?;
        drop(client);
        eventually("the request to be dropped", || async {
            let health: Value = server.get("/health").await?.json().await?;
            Ok(health["requests_open"] == 0)
        })
        .await?;
        gate.open();
        server.assert_balanced().await?;
        assert_eq!(gate.arrived(), 4, "steps for a client that had left ({kind})");
        let model = format!("model=\"{name}\"");
        assert_eq!(server.metric("izwi_aborts_total", &[&model, "cause=\"disconnect\""]).await?, 1.0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_during_upload_frees_its_memory() -> Result<()> {
    let server = Setup::listener("left-early").start().await?;
    for kind in ["application/json", &Form::content_type()] {
        let mut client = TcpStream::connect(server.address).await?;
        let request = head(kind, "Content-Length: 100000") + "--a-boundary-that";
        guarded(client.write_all(request.as_bytes())).await??;
        drop(client);
    }
    eventually("the requests to be dropped", || async {
        let health: Value = server.get("/health").await?.json().await?;
        Ok(health["requests_open"] == 0)
    })
    .await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transcription_reports_an_error() -> Result<()> {
    let script = Box::new(|_: &izwi_core::engine::executor::StepPlan| Some(Fault::Step));
    let server = Setup::listener("fails").script(script).start().await?;
    let mut streamed = body(2.0);
    streamed["stream"] = json!(true);
    for body in [body(2.0), streamed] {
        let response = server.post(TRANSCRIPTIONS, &body).await?;
        assert_eq!(response.status(), 500);
        let error = response.json::<Value>().await?["error"].clone();
        assert_eq!(error["code"], "internal_error");
        assert!(!error.to_string().contains("made to fail"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_midway_reports_an_error() -> Result<()> {
    // 13 steps complete a segment; the steps after two segments fail.
    let mut segments = 0;
    let script = Box::new(move |plan: &izwi_core::engine::executor::StepPlan| {
        segments += plan.schedule.items().filter(|item| item.begins).count();
        (segments > 2).then_some(Fault::Step)
    });
    let server = Setup::listener("fails-middle").script(script).start().await?;
    let mut body = body(10.0);
    body["stream"] = json!(true);
    let response = server.post(TRANSCRIPTIONS, &body).await?;
    assert_eq!(response.status(), 200);
    let (events, text) = transcript_events(&response.text().await?)?;
    assert_eq!(text, "word0 word1");
    let last = events.last().context("an event")?;
    assert_eq!(last["error"]["code"], "internal_error", "{last}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_a_transcription_and_refuses_new_ones() -> Result<()> {
    let (gate, script) = Gate::new(|_| true);
    let mut server = Setup::listener("drains-asr").script(script).start().await?;
    let url = server.url(TRANSCRIPTIONS);
    let asked = tokio::spawn(async move {
        let response = reqwest::Client::new().post(url).json(&body(5.0)).send().await?;
        Ok::<_, reqwest::Error>((response.status(), response.text().await?))
    });
    eventually("the transcription to run", || async { Ok(gate.arrived() == 1) }).await?;
    server.stop();
    eventually("readiness to turn red", || async { Ok(server.page("/readyz").await?.contains("draining")) })
        .await?;
    let refused = server.post(TRANSCRIPTIONS, &body(1.0)).await?;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refused.json::<Value>().await?["error"]["code"], "draining");
    gate.open();
    let (status, text) = guarded(asked).await???;
    assert_eq!(status, 200);
    assert!(text.contains("word4"), "{text}");
    server.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_timeout_reports_waiting_requests() -> Result<()> {
    let mut setup = Setup::listener("drains-hard-asr").server(|server| server.drain_timeout = Duration::ZERO);
    setup.model.step_time = Duration::from_millis(5);
    let mut server = setup.start().await?;
    let url = server.url(TRANSCRIPTIONS);
    let asked = tokio::spawn(async move { reqwest::Client::new().post(url).json(&body(600.0)).send().await });
    eventually("the transcription to run", || async { Ok(server.engine()?.status().running == 1) }).await?;
    server.stop();
    let answer = guarded(asked).await???;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await?["error"]["code"], "draining");
    server.ended().await
}

/// An engine on a shared device.
async fn sharing(name: &str, model: SimulatedModel, arbiter: &Arc<DeviceArbiter>) -> Result<Engine> {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 2, ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    let engine = Engine::with_executor_on(config, Box::new(executor), arbiter)?;
    engine.ready().await?;
    Ok(engine)
}

#[tokio::test(flavor = "multi_thread")]
async fn tts_and_asr_models_share_one_device() -> Result<()> {
    let arbiter = DeviceArbiter::new();
    let step_time = Duration::from_micros(200);
    let speaks = SimulatedModel { step_time, ..Default::default() };
    let listens = SimulatedModel { transcribes: true, sample_rate: 16_000, step_time, ..Default::default() };
    let registry_config =
        RegistryConfig { default_asr: Some("shared-asr".to_owned()), ..RegistryConfig::new("shared-tts") };
    let registry = Registry::new(registry_config);
    let server = TestServer::listen(ServerConfig::default(), registry.clone(), Recorder::install()?).await?;
    assert_eq!(server.get("/readyz").await?.status(), 503);
    registry.set("shared-tts", Slot::Ready(sharing("shared-tts", speaks, &arbiter).await?));
    assert!(server.page("/readyz").await?.contains("'shared-asr' is loading"));
    registry.set("shared-asr", Slot::Ready(sharing("shared-asr", listens, &arbiter).await?));
    assert_eq!(server.get("/readyz").await?.status(), 200);

    let speech =
        json!({"model": "tts-1", "input": "Twenty-two characters.", "response_format": "pcm", "seed": 1});
    let alone = server.speech(&speech).await?.bytes().await?;
    let speaking = (0..6).map(|_| async { anyhow::Ok(server.speech(&speech).await?.bytes().await?) });
    let request = body(4.0);
    let listening = (0..6)
        .map(|_| async { anyhow::Ok(server.post(TRANSCRIPTIONS, &request).await?.json::<Value>().await?) });
    let (spoken, transcribed) = guarded(async {
        tokio::join!(futures::future::try_join_all(speaking), futures::future::try_join_all(listening))
    })
    .await?;
    assert!(spoken?.iter().all(|audio| *audio == alone));
    assert!(transcribed?.iter().all(|body| body["text"] == "word0 word1 word2 word3"));
    for (model, task) in [("shared-tts", "tts"), ("shared-asr", "asr")] {
        let labels = [&*format!("model=\"{model}\""), &format!("task=\"{task}\"")];
        assert!(server.metric("izwi_requests_total", &labels).await? >= 6.0, "{model}");
        assert_eq!(server.metric("izwi_models_loaded", &labels[..1]).await?, 1.0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_waits_for_its_model_and_keeps_frame_order() -> Result<()> {
    let registry = Registry::new(RegistryConfig::new("late-voice"));
    let server = TestServer::listen(ServerConfig::default(), registry.clone(), Recorder::install()?).await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "chunk_ms": 100})).await?;
    session.send(json!({"type": "input.text", "text": "Twenty-two characters."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    session.send(json!({"type": "ping"})).await?;
    session.expect("pong").await?;
    let setup = Setup::units("late-voice");
    let executor = SimulatedExecutor::new(&setup.engine, setup.model);
    registry.set("late-voice", Slot::Ready(Engine::with_executor(setup.engine, Box::new(executor))?));
    session.expect("session.created").await?;
    let utterance = session.utterance().await?;
    assert_eq!(utterance.done["samples"], 2_200);
    session.expect_done(1000).await?;
    server.assert_no_sessions().await
}
