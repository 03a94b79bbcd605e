//! The access log: a line for each request and session at its end, with sizes and times and without texts.

use std::time::Duration;

use anyhow::{Context, Result};
use izwi_tests::{Form, Gate, Log, Setup, TestServer, eventually, guarded, recording};
use serde_json::{Value, json};

const KEY: &str = "open-sesame-1234";
/// Words that no log may hold.
const TEXT: &str = "Rhubarb custard tastes of secrets.";
const SECRETS: [&str; 6] = ["Rhubarb", "custard", "secrets", KEY, "word0", "marmalade"];

async fn send(request: reqwest::RequestBuilder) -> Result<(String, reqwest::Response)> {
    let response = guarded(request.header("authorization", format!("Bearer {KEY}")).send()).await??;
    let id = response.headers().get("x-request-id").context("a request id")?.to_str()?.to_owned();
    Ok((id, response))
}

async fn keyed(setup: Setup) -> Result<TestServer> {
    setup.server(|server| server.api_key = Some(KEY.to_owned())).start().await
}

#[track_caller]
fn check(line: &Value, expected: &Value) {
    for (name, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(&line[name], value, "{name} of {line}");
    }
    assert!(line["duration_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    assert_eq!((&line["level"], &line["target"]), (&json!("INFO"), &json!("izwi::access")), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_logged_with_their_sizes_and_without_texts() -> Result<()> {
    let log = Log::collect();
    izwi_tests::provide_tls();
    let client = reqwest::Client::new();
    let speaker = keyed(Setup::units("logged-speaker")).await?;
    let body = json!({"model": "tts-1", "input": TEXT, "response_format": "pcm"}).to_string();
    let request = client.post(speaker.url("/v1/audio/speech?note=marmalade"));
    let (id, response) = send(request.header("content-type", "application/json").body(body.clone())).await?;
    let bytes = response.bytes().await?.len();
    let line = log.access(&id).await?;
    check(
        &line,
        &json!({
            "method": "POST", "route": "/v1/audio/speech", "status": 200, "message": "request",
            "bytes_in": body.len(), "bytes_out": bytes, "model": "logged-speaker", "generations": 1,
            "finish_reason": "stop", "peer": "loopback", "close_code": null,
        }),
    );
    // PCM has two bytes for each sample, 24,000 in a second.
    let audio_s = bytes as f64 / 48_000.0;
    assert!(line["audio_s"].as_f64().is_some_and(|seconds| (seconds - audio_s).abs() < 1e-3), "{line}");

    let (id, response) = send(client.get(speaker.url("/v1/voices/marmalade/none"))).await?;
    assert_eq!(response.status(), 404);
    drop(response.bytes().await?);
    check(
        &log.access(&id).await?,
        &json!({"route": "unmatched", "status": 404, "model": null, "generations": null}),
    );
    let (id, response) = send(client.request("MARMALADE".parse()?, speaker.url("/v1/audio/speech"))).await?;
    drop(response.bytes().await?);
    check(&log.access(&id).await?, &json!({"method": "_OTHER", "route": "/v1/audio/speech", "status": 405}));

    let listener = keyed(Setup::listener("logged-listener")).await?;
    for stream in ["false", "true"] {
        let form = Form::new().file("file", &recording(2.5)).text("model", "whisper-1");
        let form = form.text("stream", stream).text("prompt", "marmalade");
        let request = client.post(listener.url("/v1/audio/transcriptions"));
        let (id, response) =
            send(request.header("content-type", Form::content_type()).body(form.finish())).await?;
        assert!(response.text().await?.contains("word0"));
        check(
            &log.access(&id).await?,
            &json!({
                "route": "/v1/audio/transcriptions", "status": 200, "model": "logged-listener",
                "audio_s": 2.5, "finish_reason": "stop",
            }),
        );
    }
    let text = log.text();
    for secret in SECRETS {
        assert!(!text.contains(secret), "'{secret}' is in the log");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_logged_once_with_their_close_code() -> Result<()> {
    let log = Log::collect();
    let server = Setup::units("logged-sessions")
        .server(|server| server.resume_window = Duration::ZERO)
        .start()
        .await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    let id = session.expect("session.created").await?["session_id"].as_str().context("an id")?.to_owned();
    let utterance = session.utterance().await?;
    session.expect_done(1000).await?;
    let audio: usize = utterance.chunks.iter().map(|(_, bytes)| bytes.len()).sum();
    let line = log.access(&id).await?;
    check(
        &line,
        &json!({
            "message": "session", "method": "GET", "route": "/v1/audio/speech/stream", "status": 101,
            "close_code": 1000, "finish_reason": "stop", "generations": 1, "model": "logged-sessions",
        }),
    );
    assert_eq!(line["bytes_in"], json!({"type": "speak", "text": TEXT}).to_string().len());
    assert!(line["bytes_out"].as_u64().is_some_and(|bytes| bytes > audio as u64), "{line}");

    let mut session = server.session().await?;
    session.send(json!({"type": "ping"})).await?;
    session.expect("pong").await?;
    drop(session);
    server.assert_no_sessions().await?;
    let lost = |line: &str| line.contains("\"close_code\":1006") && line.contains("/v1/audio/speech/stream");
    eventually("the line of the lost session", || async { Ok(log.text().lines().any(lost)) }).await?;
    let text = log.text();
    for secret in SECRETS {
        assert!(!text.contains(secret), "'{secret}' is in the log");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_logged_as_cancelled() -> Result<()> {
    let log = Log::collect();
    let (gate, script) = Gate::new(|_| true);
    let server = Setup::tokens("logged-leaver").script(script).start().await?;
    gate.admit(3);
    let mut response = server.speech(&json!({"model": "tts-1", "input": "Twenty-two characters."})).await?;
    let id = response.headers()["x-request-id"].to_str()?.to_owned();
    assert!(response.chunk().await?.is_some());
    drop(response);
    let line = log.access(&id).await?;
    gate.open();
    check(&line, &json!({"status": 200, "finish_reason": "cancelled", "generations": null}));
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_have_the_level_debug_and_the_log_can_be_turned_off() -> Result<()> {
    let log = Log::collect();
    let server = Setup::units("logged-probes").start().await?;
    let response = server.get("/livez").await?;
    let id = response.headers()["x-request-id"].to_str()?.to_owned();
    drop(response.bytes().await?);
    let line = log.access(&id).await?;
    assert_eq!((&line["level"], &line["route"]), (&json!("DEBUG"), &json!("/livez")));

    let silent = Setup::units("not-logged").server(|server| server.access_log = false).start().await?;
    let response = silent.get("/v1/models").await?;
    let id = response.headers()["x-request-id"].to_str()?.to_owned();
    drop(response.bytes().await?);
    silent.ended().await?;
    assert!(!log.text().contains(&id), "{}", log.text());
    Ok(())
}
