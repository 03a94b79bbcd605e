//! What a model says otherwise than it is written, as the server tells it: headers of every HTTP dialect, frames of sessions.

use anyhow::{Context, Result, ensure};
use izwi_hub::Store;
use izwi_tests::{Incoming, Setup};
use reqwest::header::HeaderMap;
use serde_json::json;

const TEXT: &str = "<speak><emphasis>Ready</emphasis> 你好 or not ☃.</speak>";

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_http_route_tells_them_in_headers() -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = Store::open(Some(home.path().to_owned()))?;
    let server = Setup::units("notes").server(|config| config.store = Some(store)).start().await?;
    let answers = [
        server.speech(&json!({"model": "notes", "input": TEXT, "response_format": "pcm"})).await?,
        server.post("/v1/text-to-speech/one", &json!({"model_id": "notes", "text": TEXT})).await?,
        server.post("/v1/speak?model=notes", &json!({"text": TEXT})).await?,
    ];
    for answer in answers {
        let url = answer.url().clone();
        ensure!(answer.status().is_success(), "{url}: {}", answer.text().await?);
        let headers = answer.headers().clone();
        assert_eq!(header(&headers, "x-unspoken-characters"), "%E2%98%83", "{url}");
        assert_eq!(header(&headers, "x-ignored-markup"), "%3Cemphasis%3E", "{url}");
        assert_eq!(header(&headers, "x-foreign-languages"), "zh", "{url}");
        assert_eq!(header(&headers, "x-suggested-model"), "qwen3-tts-0.6b-customvoice", "{url}");
    }
    let plain =
        server.speech(&json!({"model": "notes", "input": "Ready.", "response_format": "pcm"})).await?;
    for name in ["x-unspoken-characters", "x-ignored-markup", "x-foreign-languages", "x-suggested-model"] {
        assert!(!plain.headers().contains_key(name), "{name}");
    }
    let refused = server.speech(&json!({"model": "notes", "input": "[pause 2s]"})).await?;
    assert_eq!(refused.status(), 400);
    let message = refused.text().await?;
    assert!(message.contains("markup alone") && message.contains("[pause 2s]"), "{message}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_them_in_warnings_before_the_audio() -> Result<()> {
    let server = Setup::units("notes").start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    let mut told = Vec::new();
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "warning" => {
                let code = frame["code"].as_str().context("a code")?.to_owned();
                told.push((code, frame["characters"].clone()));
                ensure!(frame["message"].as_str().is_some_and(|message| !message.is_empty()), "{frame}");
            }
            Incoming::Frame(frame) if frame["type"] == "audio.start" => break,
            Incoming::Frame(frame) => ensure!(frame["type"] == "session.created", "{frame}"),
            other => anyhow::bail!("{other:?}"),
        }
    }
    let expected = [
        ("unspoken_characters", json!("☃")),
        ("ignored_markup", json!("<emphasis>")),
        ("foreign_language", json!("zh")),
    ];
    assert_eq!(told, expected.map(|(code, subject)| (code.to_owned(), subject)));
    Ok(())
}
