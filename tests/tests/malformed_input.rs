//! A thousand malformed frames and requests: each gets an error answer, and the server continues.

use anyhow::{Context, Result, ensure};
use izwi_tests::{
    Dice, Form, Incoming, RawResponse, Session, Setup, TestServer, exchange, guarded, recording,
};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

fn bad_frame(dice: &mut Dice) -> Message {
    let config = [
        "model",
        "voice",
        "language",
        "instructions",
        "seed",
        "response_format",
        "sample_rate",
        "bit_rate",
        "chunk_ms",
        "priority",
    ];
    let types = ["session.config", "input.text", "speak"];
    let text = match dice.roll(9) {
        0 => return Message::binary(dice.text(60).into_bytes()),
        1 => format!("\u{1}{}", dice.text(200)),
        2 => dice.cut(r#"{"type":"input.text","text":"Hello there."}"#),
        3 => json!({"type": format!("x{}", dice.text(30))}).to_string(),
        4 => json!({"type": dice.wrong(), "text": "a"}).to_string(),
        5 => json!({"type": "session.config", dice.pick(&config): dice.wrong()}).to_string(),
        6 => json!({"type": dice.pick(&types[1..]), "text": dice.wrong()}).to_string(),
        7 => "[".repeat(1 + dice.roll(50_000)),
        _ => format!(r#"{{"type":"session.config","seed":{}e{}}}"#, dice.roll(99), 20 + dice.roll(900)),
    };
    Message::text(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_get_errors_and_the_session_continues() -> Result<()> {
    let server = Setup::units("bad-frames").start().await?;
    let mut dice = Dice::new(0x5eed);
    let mut session = server.session().await?;
    for _ in 0..600 {
        let frame = bad_frame(&mut dice);
        let shown = format!("{frame:?}").chars().take(200).collect::<String>();
        session.send_raw(frame).await?;
        let error = session.expect("error").await.with_context(|| shown.clone())?;
        ensure!(error["code"].is_string() && error["message"].is_string(), "{shown}: {error}");
    }
    session.speak("A normal sentence.").await?;
    server.assert_balanced().await
}

/// Random frames, some of them valid: the session answers the ping that follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_answers_after_any_frame() -> Result<()> {
    let server = Setup::units("any-frames").start().await?;
    let mut dice = Dice::new(0xfeed);
    let valid = [
        r#"{"type":"session.config","chunk_ms":200,"seed":1}"#,
        r#"{"type":"input.text","text":"Hello."}"#,
        r#"{"type":"input.flush"}"#,
        r#"{"type":"playback.ack","played_ms":5}"#,
    ];
    let mut session = server.session().await?;
    for _ in 0..400 {
        let mut frame: Vec<char> = dice.pick(&valid).chars().collect();
        for _ in 0..dice.roll(3) {
            let at = dice.roll(frame.len());
            let with = dice.text(4);
            frame.splice(at..(at + dice.roll(3)).min(frame.len()), with.chars());
            if frame.is_empty() {
                frame.push('x');
            }
        }
        session.send_raw(Message::text(frame.into_iter().collect::<String>())).await?;
        session.send(json!({"type": "ping"})).await?;
        while let other = session.next().await?
            && other != Incoming::Frame(json!({"type": "pong"}))
        {
            ensure!(!matches!(other, Incoming::Closed(_)), "the session was closed");
        }
    }
    drop(session);
    server.assert_balanced().await?;
    server.session().await?.speak("A normal sentence.").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_frames_are_refused() -> Result<()> {
    let server = Setup::units("big-frames").server(|server| server.max_frame_bytes = 10_000).start().await?;
    let mut session = server.session().await?;
    session.send_raw(Message::text("x".repeat(10_001))).await?;
    session.expect_error("too_large").await?;
    session.send(json!({"type": "ping"})).await?;
    session.expect("pong").await?;
    session.send_raw(Message::text("x".repeat(100_000))).await?;
    session.expect_error("broken_frame").await?;
    assert!(matches!(session.next().await?, Incoming::Closed(_)));
    server.assert_no_sessions().await?;
    server.session().await?.speak("A normal sentence.").await?;
    Ok(())
}

fn bad_body(dice: &mut Dice) -> String {
    let fields =
        ["model", "input", "voice", "response_format", "stream_format", "speed", "seed", "temperature"];
    let whole = r#"{"model":"tts-1","input":"Hello there.","voice":"alloy"}"#;
    let with = |field: &str, value: Value| {
        let mut body = json!({"model": "tts-1", "input": "Hello."});
        body[field] = value;
        body.to_string()
    };
    match dice.roll(7) {
        0 => dice.cut(whole),
        1 => format!("{whole}{}", dice.pick(&["}", "1", "null", "\u{0}"])),
        2 => with(dice.pick(&fields), dice.wrong()),
        3 => with("response_format", json!(format!("x{}", dice.text(9)))),
        4 => with("input", json!(" ".repeat(dice.roll(50)))),
        5 => with("speed", json!(4.01 + dice.roll(1_000) as f64)),
        _ => format!("{{\"a\":{}", "[".repeat(1 + dice.roll(10_000))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_get_the_error_envelope() -> Result<()> {
    let server = Setup::units("bad-requests").start().await?;
    let client = reqwest::Client::new();
    let mut dice = Dice::new(0xbad);
    for _ in 0..400 {
        let body = bad_body(&mut dice);
        let shown = body.chars().take(200).collect::<String>();
        let request =
            client.post(server.url("/v1/audio/speech")).header("content-type", "application/json").body(body);
        let response = guarded(request.send()).await??;
        ensure!(response.status().as_u16() == 400, "{shown}: {}", response.status());
        let body: Value = response.json().await?;
        let error = &body["error"];
        ensure!(error["message"].is_string() && error["code"].is_string(), "{shown}: {body}");
        ensure!(error["type"] == "invalid_request_error", "{shown}: {body}");
    }
    normal(&server).await
}

/// Forms with changed, removed, duplicated or inserted bytes: each gets an answer.
#[tokio::test(flavor = "multi_thread")]
async fn any_form_gets_an_answer() -> Result<()> {
    let server = Setup::listener("any-forms").start().await?;
    let mut dice = Dice::new(0xf0f0);
    let form = Form::new().text("model", "whisper-1").text("stream", "false");
    let whole = form.text("timestamp_granularities[]", "segment").file("file", &recording(0.1)).finish();
    let interesting =
        [b"\r\n".as_slice(), b"--", b"\r\n--a-boundary-that-no-recording-holds", b"\"", b"\0", b"\xff"];
    for _ in 0..400 {
        let mut form = whole.clone();
        // Half of all changes hit the bytes before the samples.
        let reach = if dice.roll(2) == 0 { form.len() } else { 700 };
        for _ in 0..1 + dice.roll(4) {
            let at = dice.roll(reach.min(form.len()));
            let end = (at + dice.roll(40)).min(form.len());
            match dice.roll(4) {
                0 => form.truncate(at + 1),
                1 => drop(form.drain(at..end)),
                2 => drop(form.splice(at..at, interesting[dice.roll(interesting.len())].iter().copied())),
                _ => form[at] = dice.roll(256) as u8,
            }
            form.resize(form.len().max(1), b'x');
        }
        let request = reqwest::Client::new().post(server.url("/v1/audio/transcriptions"));
        let request = request.header("content-type", Form::content_type()).body(form.clone());
        let response = guarded(request.send()).await??;
        let status = response.status().as_u16();
        let shown = String::from_utf8_lossy(&form).chars().take(700).collect::<String>();
        ensure!([200, 400, 404, 413, 415, 422].contains(&status), "{status}: {shown}");
        let body: Value = response.json().await.with_context(|| shown.clone())?;
        ensure!(body["text"].is_string() || body["error"]["message"].is_string(), "{body}: {shown}");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_survives_bytes_that_are_not_http() -> Result<()> {
    let server = Setup::units("no-http").start().await?;
    let mut dice = Dice::new(0xf00d);
    for _ in 0..50 {
        let bytes = format!("{}\r\n\r\n", dice.text(300));
        let response = exchange(server.address, bytes.as_bytes()).await?;
        if !response.head.is_empty() {
            ensure!(response.head.starts_with("http/1.1 4"), "{}", response.head);
            enveloped(&response)?;
        }
    }
    let long = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(70_000));
    let response = exchange(server.address, long.as_bytes()).await?;
    assert!(response.head.starts_with("http/1.1 431"));
    assert_eq!(enveloped(&response)?["code"], "headers_too_large");
    let response = exchange(server.address, b"GET /livez HTTP/1.1\r\nHost localhost\r\n\r\n").await?;
    assert!(response.head.starts_with("http/1.1 400"));
    assert_eq!(enveloped(&response)?["code"], "malformed_request");
    normal(&server).await
}

/// The error in a response, which must be the envelope.
fn enveloped(response: &RawResponse) -> Result<Value> {
    let body: Value = serde_json::from_slice(&response.body).context(response.head.clone())?;
    ensure!(body["error"]["message"].is_string() && body["error"]["code"].is_string(), "{body}");
    Ok(body["error"].clone())
}

async fn normal(server: &TestServer) -> Result<()> {
    let response = server.speech(&json!({"model": "tts-1", "input": "A normal sentence."})).await?;
    ensure!(response.status() == 200);
    ensure!(response.bytes().await?.len() > 44);
    let mut session: Session = server.session().await?;
    session.speak("A normal sentence.").await?;
    server.assert_balanced().await
}
