//! `POST /v1/audio/speech`: bodies, headers, trailers, events, refusals.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Gate, Setup, TestServer, exchange, guarded};
use serde_json::{Value, json};

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "tts-1", "input": SENTENCE, "seed": 5});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn wav_and_pcm_hold_the_same_samples() -> Result<()> {
    let server = Setup::units("labels").start().await?;
    let wav = server.speech(&body(json!({"response_format": "wav"}))).await?;
    assert_eq!(wav.status(), 200);
    assert_eq!(wav.headers()["content-type"], "audio/wav");
    assert_eq!(wav.headers()["x-sample-rate"], "24000");
    assert!(wav.headers()["x-request-id"].to_str()?.starts_with("req-"));
    assert!(wav.headers().get("content-length").is_none(), "the length of a stream is not known");
    let wav = wav.bytes().await?;
    let pcm = server.speech(&body(json!({"response_format": "pcm"}))).await?;
    assert_eq!(pcm.headers()["content-type"], "audio/pcm");
    let pcm = pcm.bytes().await?;
    assert_eq!(pcm.len(), SENTENCE.len() * 100 * 2);
    assert_eq!(wav[..44], izwi_audio::wav::streaming_header(24_000));
    assert!(wav[44..] == pcm[..]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_is_mp3_and_headers_tell_what_is_sent() -> Result<()> {
    let server = Setup::units("default-format").start().await?;
    let mp3 = server.speech(&body(json!({}))).await?;
    assert_eq!(mp3.headers()["content-type"], "audio/mpeg");
    assert_eq!(mp3.headers()["x-sample-rate"], "24000");
    let mp3 = mp3.bytes().await?;
    assert!(mp3 == server.speech(&body(json!({"response_format": "mp3"}))).await?.bytes().await?);
    let small = server.speech(&body(json!({"bit_rate": 32_000}))).await?.bytes().await?;
    assert!(small.len() * 2 < mp3.len(), "{} and {} bytes", small.len(), mp3.len());
    for (format, sample_rate, kind, rate) in [
        ("opus", None, "audio/ogg", "48000"),
        ("flac", None, "audio/flac", "24000"),
        ("flac", Some(8_000), "audio/flac", "8000"),
        ("ulaw", None, "audio/basic", "8000"),
        ("alaw", Some(8_000), "audio/x-alaw-basic", "8000"),
        ("pcm", Some(16_000), "audio/pcm", "16000"),
        ("mp3", Some(44_100), "audio/mpeg", "44100"),
    ] {
        let extra = json!({"response_format": format, "sample_rate": sample_rate});
        let response = server.speech(&body(extra)).await?;
        assert_eq!(response.headers()["content-type"], kind);
        assert_eq!(response.headers()["x-sample-rate"], rate, "{format}");
        let length = response.bytes().await?.len();
        // 24 samples of the model are 16 of the client.
        let expected = (SENTENCE.len() * 100 * 16 + 12) / 24 * 2;
        assert!(length == expected || format != "pcm", "{length} bytes, expected {expected}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_starts_before_generation_ends() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("chunked").script(script).start().await?;
    let text = format!("{SENTENCE} {SENTENCE}");
    let mut response =
        server.speech(&json!({"model": "tts-1", "input": text, "response_format": "pcm"})).await?;
    let mut received = 0;
    while received < 9_600 {
        received += guarded(response.chunk()).await??.context("the body goes on")?.len();
    }
    gate.open();
    while let Some(bytes) = guarded(response.chunk()).await?? {
        received += bytes.len();
    }
    assert_eq!(received, 2 * SENTENCE.len() * 100 * 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_sent_as_trailers() -> Result<()> {
    let server = Setup::units("trailers").start().await?;
    let json = body(json!({"response_format": "pcm"})).to_string();
    let request = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nHost: {}\r\nTE: trailers\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
        server.address,
        json.len()
    );
    let response = exchange(server.address, request.as_bytes()).await?;
    assert!(response.head.starts_with("http/1.1 200"), "{}", response.head);
    assert!(response.head.contains("trailer: x-rtf,"), "{}", response.head);
    assert!(response.is_complete);
    assert_eq!(response.body.len(), SENTENCE.len() * 200);
    assert!(response.trailers.contains("x-finish-reason: stop"), "{}", response.trailers);
    let seconds = format!("x-audio-duration-seconds: {:.3}", SENTENCE.len() as f64 * 100.0 / 24_000.0);
    assert!(response.trailers.contains(&seconds), "{}", response.trailers);
    assert!(response.trailers.contains("x-rtf: ") && response.trailers.contains("x-generation-time-ms: "));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sse_events_carry_the_same_bytes() -> Result<()> {
    let server = Setup::units("events").start().await?;
    for format in ["pcm", "wav", "mp3"] {
        let plain = server.speech(&body(json!({"response_format": format}))).await?.bytes().await?;
        let events = server.speech(&body(json!({"response_format": format, "stream_format": "sse"}))).await?;
        assert_eq!(events.headers()["content-type"], "text/event-stream");
        let text = events.text().await?;
        let mut audio = Vec::new();
        let mut usage = None;
        for event in text.split_terminator("\n\n") {
            let event: Value =
                serde_json::from_str(event.strip_prefix("data: ").context("an event has data")?)?;
            ensure!(usage.is_none(), "something follows speech.audio.done");
            match event["type"].as_str() {
                Some("speech.audio.delta") => {
                    audio.extend(base64(event["audio"].as_str().context("audio")?)?)
                }
                Some("speech.audio.done") => usage = Some(event["usage"].clone()),
                other => anyhow::bail!("event {other:?}"),
            }
        }
        assert!(audio == plain);
        let tokens = SENTENCE.len();
        let expected = json!({"input_tokens": tokens, "output_tokens": tokens, "total_tokens": 2 * tokens});
        assert_eq!(usage, Some(expected));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_when_words_are_spoken_where_the_client_asks() -> Result<()> {
    let mut setup = Setup::units("word-events");
    setup.model.times_words = true;
    let server = setup.start().await?;
    let events = |extra: Value| {
        let server = &server;
        async move {
            let response = server.speech(&body(extra)).await?;
            let text = guarded(response.text()).await??;
            let event =
                |event: &str| Ok(serde_json::from_str(event.strip_prefix("data: ").context("data")?)?);
            text.split_terminator("\n\n").map(event).collect::<Result<Vec<Value>>>()
        }
    };
    let told = events(json!({"stream_format": "sse", "response_format": "pcm", "word_times": true})).await?;
    let (mut samples, mut words) = (0, Vec::new());
    for event in &told {
        match event["type"].as_str() {
            Some("speech.audio.word") => {
                // 100 samples for each byte, chunks of 4,800 samples.
                let start = event["start_ms"].as_u64().context("start")?;
                ensure!(start * 24 + 24 > samples && start * 24 < samples + 4_800, "{event} at {samples}");
                words.push(event["text"].as_str().context("text")?.to_owned());
            }
            Some("speech.audio.delta") => {
                samples += base64(event["audio"].as_str().context("audio")?)?.len() as u64 / 2;
            }
            _ => {}
        }
    }
    assert_eq!(words.join(" "), SENTENCE);
    let silent = events(json!({"stream_format": "sse", "response_format": "pcm"})).await?;
    assert_eq!(silent.len(), told.len() - words.len());
    let refused = server.speech(&body(json!({"word_times": true}))).await?;
    assert_eq!(refused.status(), 400);
    let refused: Value = refused.json().await?;
    assert_eq!(refused["error"]["param"], "word_times");
    Ok(())
}

/// Decodes standard base64 independently of the server's encoder.
fn base64(text: &str) -> Result<Vec<u8>> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for symbol in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|&known| known == symbol).context("a symbol of base64")?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_openai_clients_are_accepted() -> Result<()> {
    let server = Setup::units("compatible").start().await?;
    let extras = [
        json!({}),
        json!({"model": null, "instructions": "Speak softly."}),
        json!({"model": "compatible"}),
        json!({"model": "tts-1-hd", "voice": "alloy"}),
        json!({"model": "gpt-4o-mini-tts", "voice": {"id": "cedar"}}),
        json!({"voice": "two", "instructions": "", "speed": 1.0, "user": "someone", "whatever": [1, {"a": 2}]}),
        json!({"voice": null, "seed": null, "response_format": "wav", "stream_format": "audio"}),
        json!({"language": "en", "temperature": 0.5, "top_p": 0.8, "top_k": 20, "max_tokens": 900, "priority": "high"}),
        json!({"ref_audio": null, "ref_text": "", "x_vector_only_mode": false}),
        json!({"speed": 0.25}),
        json!({"speed": 4.0, "priority": "low"}),
    ];
    for extra in extras {
        let response = server.speech(&body(extra.clone())).await?;
        assert_eq!(response.status(), 200, "{extra}");
        assert!(!response.bytes().await?.is_empty());
    }
    let voices = izwi_server::OPENAI_VOICES;
    for voice in voices {
        assert_eq!(server.speech(&body(json!({"voice": voice}))).await?.status(), 200, "{voice}");
    }
    Ok(())
}

async fn refused(server: &TestServer, extra: Value, status: u16, param: &str, word: &str) -> Result<()> {
    let response = server.speech(&body(extra.clone())).await?;
    ensure!(response.status() == status, "{extra}: {}", response.status());
    ensure!(response.headers().contains_key("x-request-id"));
    let body: Value = response.json().await?;
    let error = &body["error"];
    ensure!(error["param"] == param, "{extra}: {body}");
    ensure!(error["message"].as_str().is_some_and(|text| text.contains(word)), "{extra}: {body}");
    ensure!(error["type"] == "invalid_request_error" && error["code"].is_string(), "{extra}: {body}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_values_are_refused_by_field() -> Result<()> {
    let server = Setup::units("refuses").start().await?;
    let cases = [
        (json!({"model": "refuse"}), 404, "model", "'refuses'"),
        (json!({"model": 7}), 400, "model", "string"),
        (json!({"input": null}), 400, "input", "required"),
        (json!({"input": " \n"}), 400, "input", "empty"),
        (json!({"input": "a".repeat(4_097)}), 400, "input", "4096"),
        (json!({"voice": "ome"}), 404, "voice", "'one'"),
        (json!({"voice": {"name": "one"}}), 400, "voice", "id"),
        (
            json!({"response_format": "aac"}),
            400,
            "response_format",
            "'aac' is not supported; use one of mp3, opus",
        ),
        (json!({"response_format": "pcm_f32"}), 400, "response_format", "wav, pcm"),
        (json!({"response_format": "WAV"}), 400, "response_format", "wav, pcm"),
        (json!({"response_format": 7}), 400, "response_format", "string"),
        (
            json!({"response_format": "wav", "sample_rate": 12_000}),
            400,
            "sample_rate",
            "8000, 16000, 22050, 24000",
        ),
        (json!({"response_format": "opus", "sample_rate": 24_000}), 400, "sample_rate", "one of 48000"),
        (json!({"response_format": "ulaw", "sample_rate": 16_000}), 400, "sample_rate", "one of 8000"),
        (json!({"sample_rate": "high"}), 400, "sample_rate", "string"),
        (json!({"bit_rate": 1}), 400, "bit_rate", "8000 to 320000"),
        (json!({"response_format": "pcm", "bit_rate": 64_000}), 400, "bit_rate", "leave it out"),
        (json!({"stream_format": "websocket"}), 400, "stream_format", "sse"),
        (json!({"speed": 0.24}), 400, "speed", "0.25"),
        (json!({"speed": 4.01}), 400, "speed", "4"),
        (json!({"speed": 1e300}), 400, "speed", "4"),
        (json!({"speed": "fast"}), 400, "speed", "string"),
        (json!({"priority": "urgent"}), 400, "priority", "urgent"),
        (json!({"max_tokens": 0}), 400, "max_tokens", "at least 1"),
        (json!({"max_tokens": -1}), 400, "max_tokens", "-1"),
        (json!({"seed": 1.5}), 400, "seed", "1.5"),
        (json!({"temperature": 1e300}), 400, "temperature", "between 0 and 2"),
        (json!({"temperature": 2.1}), 400, "temperature", "is 2.1; it must be between 0 and 2"),
        (json!({"top_p": 0}), 400, "top_p", "above 0"),
        (json!({"repetition_penalty": 9}), 400, "repetition_penalty", "between 0.5 and 2"),
        (json!({"voice": ["one"]}), 400, "voice", "expected the name of a voice"),
        (json!({"top_k": "all"}), 400, "top_k", "string"),
        (
            json!({"ref_audio": "data:audio/wav;base64,AAAA"}),
            400,
            "ref_audio",
            "does not support voice cloning",
        ),
        (json!({"ref_text": "Hello."}), 400, "ref_text", "does not support voice cloning"),
        (json!({"x_vector_only_mode": true}), 400, "x_vector_only_mode", "does not support voice cloning"),
    ];
    for (extra, status, param, word) in cases {
        refused(&server, extra, status, param, word).await?;
    }
    server.assert_balanced().await
}

/// The simulated model, which has the voices `one` and `two`, does not look at them: a blend has to reach it.
#[tokio::test(flavor = "multi_thread")]
async fn a_blend_of_voices_reaches_the_model() -> Result<()> {
    let server = Setup::units("blends").start().await?;
    for (voice, status) in [("one", 200), ("one(2)+two(1)", 200), ("one(2)+three(1)", 404), ("one+", 404)] {
        let response = server.speech(&body(json!({"voice": voice}))).await?;
        ensure!(response.status() == status, "{voice}: {}", response.status());
        response.bytes().await?;
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_http_refusal_uses_the_error_envelope() -> Result<()> {
    let server = Setup::units("edges").server(|server| server.max_body_bytes = 10_000).start().await?;
    let client = reqwest::Client::new();
    let url = server.url("/v1/audio/speech");
    let json_body = body(json!({})).to_string();
    let typed = |kind: &str, body: &str| {
        client.post(&url).header("content-type", kind.to_owned()).body(body.to_owned())
    };
    let cases = [
        (typed("application/json", "{"), 400, "invalid_json"),
        (typed("application/json", ""), 400, "invalid_json"),
        (typed("text/plain", &json_body), 415, "unsupported_media_type"),
        (client.post(&url).body(json_body.clone()), 415, "unsupported_media_type"),
        (typed("application/json", &format!("\"{}\"", "a".repeat(20_000))), 413, "too_large"),
        (client.get(&url), 405, "method_not_allowed"),
        (client.delete(server.url("/readyz")), 405, "method_not_allowed"),
        (client.get(server.url("/v1/audio/speech/stream")), 426, "upgrade_required"),
        (client.get(server.url("/v1/nothing")), 404, "unknown_route"),
        (client.get(server.url("/v1/models/%FF")), 400, "invalid_value"),
        (client.get(server.url("/v1/models/none")), 404, "model_not_found"),
        (client.get(server.url("/v1/audio/voices/none")), 404, "voice_not_found"),
        (client.get(server.url("/v1/audio/voices?model=none")), 404, "model_not_found"),
    ];
    for (request, status, code) in cases {
        let response = guarded(request.send()).await??;
        let shown = format!("{} {}", response.url(), response.status());
        ensure!(response.status() == status, "{shown}, expected {status}");
        if status == 405 {
            ensure!(response.headers().contains_key("allow"), "{shown} without Allow");
        }
        let body: Value = response.json().await.with_context(|| shown.clone())?;
        ensure!(body["error"]["code"] == code, "{shown}: {body}");
        ensure!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{shown}: {body}");
        ensure!(body["error"].get("param").is_some(), "{shown}: {body}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_body_times_out() -> Result<()> {
    let server = Setup::units("slow-body")
        .server(|server| server.body_timeout = std::time::Duration::from_millis(50))
        .start()
        .await?;
    let request = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        server.address
    );
    let response = exchange(server.address, request.as_bytes()).await?;
    assert!(response.head.starts_with("http/1.1 408"), "{}", response.head);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn models_and_voices_are_listed() -> Result<()> {
    let server = Setup::units("listed").start().await?;
    let models: Value = server.get("/v1/models").await?.json().await?;
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("listed")));
    let model: Value = server.get("/v1/models/tts-1").await?.json().await?;
    assert_eq!(
        (&model["id"], &model["state"], &model["tasks"]),
        (&json!("listed"), &json!("ready"), &json!(["tts"]))
    );
    let voices: Value = server.get("/v1/audio/voices").await?.json().await?;
    let ids: Vec<_> =
        voices["voices"].as_array().context("a list")?.iter().map(|voice| &voice["id"]).collect();
    assert_eq!(ids, ["one", "two"]);
    let voice: Value = server.get("/v1/audio/voices/two").await?.json().await?;
    assert_eq!((&voice["model"], &voice["default"]), (&json!("listed"), &json!(false)));
    assert_eq!(server.get("/v1/audio/voices/nova").await?.status(), 200);
    let version: Value = server.get("/version").await?.json().await?;
    assert!(version["version"].is_string());
    Ok(())
}
