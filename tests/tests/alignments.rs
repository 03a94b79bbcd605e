//! `POST /v1/audio/alignments`: request and response formats, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use anyhow::Result;
use izwi_tests::{Form, Setup, TestServer, base64, recording};
use serde_json::{Value, json};

const ALIGNMENTS: &str = "/v1/audio/alignments";

/// A JSON body with a recording of 2.5 s (three simulated words).
fn body(extra: Value) -> Value {
    let mut body = json!({"audio": base64(&recording(2.5)), "text": "word0 word1 word2"});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The same as a form.
fn form(fields: &[(&str, &str)]) -> Form {
    let form = Form::new().file("file", &recording(2.5)).text("text", "word0 word1 word2");
    fields.iter().fold(form, |form, (name, value)| form.text(name, value))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_format_works_with_json_and_form_requests() -> Result<()> {
    let server = Setup::listener("aligned").start().await?;
    for (format, content_type, part) in [
        (None, "application/json", r#""words":[{"word":"word0","start":0.0,"end":0.5,"#),
        (Some("json"), "application/json", r#"{"text":"word2","start":2.0,"end":3.0}"#),
        (Some("srt"), "application/x-subrip", "2\n00:00:01,000 --> 00:00:02,000\nword1\n\n"),
        (Some("vtt"), "text/vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nword0\n\n"),
        (
            Some("textgrid"),
            "text/plain; charset=utf-8",
            "xmin = 2\n            xmax = 2.5\n            text = \"word2\"",
        ),
    ] {
        let extra = format.map_or(json!({}), |format| json!({"response_format": format}));
        let fields: Vec<_> = format.map(|format| ("response_format", format)).into_iter().collect();
        for response in
            [server.post(ALIGNMENTS, &body(extra)).await?, server.post_form(ALIGNMENTS, form(&fields)).await?]
        {
            assert_eq!(response.status(), 200, "{format:?}");
            assert_eq!(response.headers()["content-type"], content_type);
            assert_eq!(response.headers()["x-audio-duration-seconds"], "2.500");
            let body = response.text().await?;
            assert!(body.contains(part), "{body}");
        }
    }
    let named = json!({"audio": null, "audio_base64": base64(&recording(2.5)), "model": "whisper-1", "priority": "high"});
    assert_eq!(server.post(ALIGNMENTS, &body(named)).await?.status(), 200);
    server.assert_balanced().await
}

async fn refused(server: &TestServer, extra: Value, status: u16, param: &str, part: &str) -> Result<()> {
    let response = server.post(ALIGNMENTS, &body(extra)).await?;
    let found = response.status();
    let error: Value = response.json().await?;
    assert_eq!((found.as_u16(), &error["error"]["param"]), (status, &json!(param)), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains(part), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_aligned_is_refused_by_field() -> Result<()> {
    let server = Setup::listener("refuses").start().await?;
    refused(&server, json!({"text": null}), 400, "text", "").await?;
    refused(&server, json!({"text": " \n"}), 400, "text", "text is empty").await?;
    refused(&server, json!({"response_format": "xml"}), 400, "response_format", "json, srt, vtt, textgrid")
        .await?;
    refused(&server, json!({"audio": ""}), 400, "audio", "").await?;
    refused(&server, json!({"audio": base64(b"noise")}), 415, "audio", "no supported format").await?;
    refused(&server, json!({"language": 7}), 400, "language", "").await?;
    let long = "word ".repeat(20_000);
    refused(&server, json!({"text": long}), 400, "text", "characters").await?;
    let missing = Form::new().file("file", &recording(1.0));
    assert_eq!(server.post_form(ALIGNMENTS, missing).await?.status(), 400);
    server.assert_balanced().await
}
