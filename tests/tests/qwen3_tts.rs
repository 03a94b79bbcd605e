//! The Qwen3-TTS models end to end: the real executor on tiny checkpoints, behind the real server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use izwi_core::engine::EngineCoreConfig;
use izwi_core::engine::Precision;
use izwi_tests::{Form, Session, TestServer, Utterance, base64, exchange, guarded};
use serde_json::{Value, json};

const OWN: &str = "qwen3-tts-0.6b-customvoice";
const STYLED: &str = "qwen3-tts-1.7b-customvoice";
const DESIGNED: &str = "qwen3-tts-1.7b-voicedesign";
const CLONING: &str = "qwen3-tts-1.7b-base";
const RATE: usize = 24_000;
/// PCM bytes of one frame.
const FRAME: usize = 1_920 * 2;
const TEXT: &str = "What did they say about the weather?";
const SAID: &str = "Perform TTS.";

/// The folder of a tiny checkpoint.
fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/qwen3_tts").join(name)
}

fn config(model: &str) -> EngineCoreConfig {
    let dtype = Precision::F32;
    EngineCoreConfig { model: model.to_owned(), dtype, max_blocks: 512, ..Default::default() }
}

/// A server with one tiny checkpoint.
async fn serve(model: &str) -> Result<TestServer> {
    let name = match model {
        OWN => "cv06",
        STYLED => "cv17",
        DESIGNED => "vd17",
        _ => "base17",
    };
    TestServer::with_weights(config(model), &checkpoint(name)).await
}

fn body(extra: &Value) -> Value {
    let mut body = json!({"model": "tts-1", "input": TEXT, "seed": 5, "response_format": "pcm"});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

/// The audio of a request with `extra`.
async fn spoken(server: &TestServer, extra: Value) -> Result<Vec<u8>> {
    let response = server.speech(&body(&extra)).await?;
    let status = response.status();
    let bytes = guarded(response.bytes()).await??;
    ensure!(status == 200, "{extra}: {status} {}", String::from_utf8_lossy(&bytes));
    ensure!(!bytes.is_empty(), "{extra}: no audio");
    Ok(bytes.to_vec())
}

/// The audio and the trailers of a request with `extra`.
async fn spoken_to_the_end(server: &TestServer, extra: Value) -> Result<(Vec<u8>, String)> {
    let json = body(&extra).to_string();
    let request = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nHost: {}\r\nTE: trailers\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
        server.address,
        json.len()
    );
    let response = exchange(server.address, request.as_bytes()).await?;
    ensure!(response.is_complete, "{}", response.head);
    Ok((response.body, response.trailers))
}

/// The message of a refusal; checks status and field.
async fn refused(response: reqwest::Response, status: u16, param: &str) -> Result<String> {
    let found = response.status();
    let body: Value = response.json().await?;
    ensure!(found == status && body["error"]["param"] == param, "{found} {body}");
    body["error"]["message"].as_str().map(str::to_owned).context("a message")
}

/// A session that has sent `text`.
async fn speaking(server: &TestServer, text: &str, seed: u64) -> Result<Session> {
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": text, "seed": seed})).await?;
    session.expect("session.created").await?;
    Ok(session)
}

/// The audio of an utterance; checks that its chunks are exact.
fn audio(utterance: &Utterance) -> Result<Vec<u8>> {
    let mut audio = Vec::new();
    let last = utterance.chunks.len() - 1;
    for (index, (chunk, bytes)) in utterance.chunks.iter().enumerate() {
        ensure!(chunk["seq"] == index && chunk["sample_offset"] == audio.len() / 2, "{chunk}");
        ensure!(chunk["samples"] == bytes.len() / 2 && chunk["is_final"] == (index == last), "{chunk}");
        ensure!(index == last || bytes.len() == RATE / 5 * 2, "{chunk} is not 200 ms long");
        audio.extend_from_slice(bytes);
    }
    ensure!(utterance.done["samples"] == audio.len() / 2, "{}", utterance.done);
    Ok(audio)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seed_determines_the_output_and_max_tokens_counts_frames() -> Result<()> {
    let server = serve(OWN).await?;
    let once = spoken(&server, json!({})).await?;
    assert!(once.len() > 8 * FRAME && once.len().is_multiple_of(FRAME), "{} bytes", once.len());
    assert!(once == spoken(&server, json!({})).await?, "the same seed");
    let wav = spoken(&server, json!({"response_format": "wav"})).await?;
    assert!(wav[..44] == izwi_audio::wav::streaming_header(RATE as u32) && wav[44..] == once[..]);
    for extra in [json!({"seed": 6}), json!({"voice": "ryan"}), json!({"language": "de"})] {
        assert!(once != spoken(&server, extra.clone()).await?, "{extra} changes nothing");
    }
    assert!(
        spoken(&server, json!({"voice": "ryan", "language": "English"})).await?
            == spoken(&server, json!({"voice": "ryan", "language": "en-GB"})).await?
    );
    let (short, trailers) = spoken_to_the_end(&server, json!({"max_tokens": 4})).await?;
    assert!(short[..] == once[..4 * FRAME], "four frames of the same, not {} bytes", short.len());
    assert!(trailers.contains("x-finish-reason: length"), "{trailers}");
    for (extra, status, param) in [
        (json!({"voice": "nobody"}), 404, "voice"),
        (json!({"language": "klingon"}), 400, "language"),
        (json!({"ref_audio": base64(&clip(1.0)?)}), 400, "ref_audio"),
        (json!({"speed": 1.5}), 400, "speed"),
    ] {
        let message = refused(server.speech(&body(&extra)).await?, status, param).await;
        message.with_context(|| extra.to_string())?;
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_equals_the_whole_in_exact_chunks() -> Result<()> {
    let server = serve(OWN).await?;
    let whole = spoken(&server, json!({})).await?;
    let mut session = speaking(&server, TEXT, 5).await?;
    let utterance = session.utterance().await?;
    session.expect_done(1000).await?;
    assert!(audio(&utterance)? == whole, "as over HTTP");
    server.assert_balanced().await
}

/// Minutes of audio, in several passes.
fn long_text() -> String {
    "This is one sentence of very many, and the last of them is never played. ".repeat(40)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_chunk_is_early_and_disconnects_abort() -> Result<()> {
    let server = serve(OWN).await?;
    let mut session = speaking(&server, &long_text(), 5).await?;
    let start = session.expect("audio.start").await?;
    let first = session.chunk().await?;
    session.send(json!({"type": "interrupt"})).await?;
    let utterance = session.rest_of(Utterance { start, chunks: vec![first], done: Value::Null }).await?;
    assert_eq!(utterance.done["finish_reason"], "interrupted");
    assert_eq!(utterance.chunks[0].0["samples"], RATE / 5);
    server.assert_balanced().await?;

    // Disconnects during prefill, during generation over a socket, and over HTTP.
    drop(speaking(&server, &long_text(), 7).await?);
    let mut leaver = speaking(&server, &long_text(), 6).await?;
    leaver.expect("audio.start").await?;
    leaver.chunk().await?;
    drop(leaver);
    let mut response = server.speech(&body(&json!({"input": long_text()}))).await?;
    guarded(response.chunk()).await??.context("the beginning")?;
    drop(response);
    server.assert_no_sessions().await?;
    server.assert_balanced().await?;
    // Later requests are not affected.
    assert!(spoken(&server, json!({})).await? == spoken(&serve(OWN).await?, json!({})).await?);
    Ok(())
}

const TEXTS: [&str; 8] = [
    "Yes.",
    TEXT,
    "One, two, three.",
    "It is late.",
    "Who goes there at this hour?",
    "A cup of tea, please.",
    "Nobody knows.",
    "The end of the line.",
];

const VOICES: [&str; 3] = ["ryan", "vivian", "eric"];

/// Streams all texts at once in several voices; each must equal its result alone.
async fn check_together(server: &TestServer, alone: &[Vec<u8>]) -> Result<()> {
    let streams = TEXTS.iter().enumerate().map(|(seed, text)| async move {
        let mut session = server.session().await?;
        let voice = VOICES[seed % VOICES.len()];
        session.send(json!({"type": "speak", "text": text, "seed": seed, "voice": voice})).await?;
        session.expect("session.created").await?;
        let utterance = session.utterance().await?;
        session.expect_done(1000).await?;
        audio(&utterance)
    });
    for (text, (batched, alone)) in
        TEXTS.iter().zip(futures::future::try_join_all(streams).await?.iter().zip(alone))
    {
        ensure!(batched == alone, "'{text}' differs in a batch");
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_streams_equal_each_alone_under_preemption() -> Result<()> {
    let server = serve(OWN).await?;
    let mut alone = Vec::new();
    for (seed, text) in TEXTS.iter().enumerate() {
        let voice = VOICES[seed % VOICES.len()];
        alone.push(spoken(&server, json!({"input": text, "seed": seed, "voice": voice})).await?);
    }
    check_together(&server, &alone).await?;
    assert_eq!(server.metric("izwi_num_preemptions_total", &[]).await?, 0.0);
    let tight = EngineCoreConfig {
        max_blocks: 26,
        chunked_prefill_threshold: 7,
        admission_lookahead: 0,
        ..config(OWN)
    };
    let tight = TestServer::with_weights(tight, &checkpoint("cv06")).await?;
    check_together(&tight, &alone).await?;
    assert!(tight.metric("izwi_num_preemptions_total", &[]).await? > 0.0, "no sequence was preempted");
    Ok(())
}

/// A WAV file of a frequency sweep.
fn clip(seconds: f64) -> Result<Vec<u8>> {
    let count = (seconds * RATE as f64) as usize;
    let sample = |n: usize| {
        let t = n as f32 / RATE as f32;
        0.2 * (700.0 * t + 300.0 * t * t).sin() + 0.1 * (2_000.0 * t).sin() * (9.0 * t).sin()
    };
    Ok(izwi_audio::wav::to_bytes(&(0..count).map(sample).collect::<Vec<_>>(), RATE as u32)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloned_voice_is_used_and_saved() -> Result<()> {
    let server = serve(CLONING).await?;
    let recording = base64(&clip(1.5)?);
    let timbre = spoken(&server, json!({"ref_audio": recording})).await?;
    let with_text = json!({"ref_audio": recording, "ref_text": SAID});
    let cloned = spoken(&server, with_text.clone()).await?;
    assert!(timbre != cloned, "the transcript adds to the timbre");
    let both = json!({"ref_audio": recording, "ref_text": SAID, "x_vector_only_mode": true});
    assert!(timbre == spoken(&server, both).await?);
    assert!(timbre != spoken(&server, json!({"ref_audio": base64(&clip(1.2)?)})).await?);

    for name in ["me", "timbre"] {
        let form = Form::new().text("name", name).text("ref_text", SAID).file("audio_sample", &clip(1.5)?);
        let form = if name == "timbre" { form.text("x_vector_only_mode", "true") } else { form };
        let made = server.post_form("/v1/audio/voices", form).await?;
        assert_eq!(made.status(), 200);
        assert_eq!(made.json::<Value>().await?["models"], json!([CLONING]));
    }
    assert!(cloned == spoken(&server, json!({"voice": "me"})).await?, "the saved voice");
    assert!(timbre == spoken(&server, json!({"voice": "timbre"})).await?, "the saved timbre");
    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    let ids: Vec<_> = listed["voices"].as_array().context("a list")?.iter().map(|v| &v["id"]).collect();
    assert_eq!(ids, ["me", "timbre"]);
    assert_eq!(server.get("/v1/models").await?.json::<Value>().await?["data"][0]["id"], CLONING);

    for extra in [json!({}), json!({"voice": "alloy"})] {
        let message = refused(server.speech(&body(&extra)).await?, 400, "ref_audio").await?;
        assert!(message.contains("the voice of a recording"), "{message}");
    }
    let short = json!({"ref_audio": base64(&clip(0.01)?)});
    refused(server.speech(&body(&short)).await?, 400, "ref_audio").await?;
    check_another_checkpoint(server.voices()?).await?;

    assert_eq!(server.delete("/v1/audio/voices/me").await?.status(), 200);
    refused(server.speech(&body(&json!({"voice": "me"}))).await?, 404, "voice").await?;
    server.assert_balanced().await
}

/// A voice pack of another checkpoint is refused.
async fn check_another_checkpoint(voices: &Path) -> Result<()> {
    let changed = tempfile::tempdir()?;
    let files = changed.path().join("base");
    izwi_tests::copy(&checkpoint("base17"), &files)?;
    let text = std::fs::read_to_string(files.join("config.json"))?;
    std::fs::write(files.join("config.json"), format!("{text}\n"))?;
    let other = TestServer::with_weights(config("qwen3-tts-0.6b-base"), &files).await?;
    std::fs::copy(voices.join("me.safetensors"), other.voices()?.join("me.safetensors"))?;
    let message = refused(other.speech(&body(&json!({"voice": "me"}))).await?, 400, "voice").await?;
    ensure!(message.contains("another model"), "{message}");
    let shown: Value = other.get("/v1/audio/voices/me").await?.json().await?;
    ensure!(shown["models"] == json!([CLONING]), "{shown}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_is_designed_from_instructions() -> Result<()> {
    let server = serve(DESIGNED).await?;
    let low = spoken(&server, json!({"instructions": "A low, hoarse voice."})).await?;
    assert!(low == spoken(&server, json!({"instructions": " A low, hoarse voice. "})).await?);
    for extra in [json!({}), json!({"instructions": "A high, clear voice."})] {
        assert!(low != spoken(&server, extra.clone()).await?, "{extra}");
    }
    let message =
        refused(server.speech(&body(&json!({"ref_audio": base64(&clip(1.0)?)}))).await?, 400, "ref_audio")
            .await?;
    assert!(message.contains(DESIGNED), "{message}");
    let own = serve(OWN).await?;
    let plain = spoken(&own, json!({})).await?;
    assert!(plain == spoken(&own, json!({"instructions": "Low."})).await?, "it takes none");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_instructions_are_computed_once() -> Result<()> {
    let style = "Speak slowly, in a low voice, as if it were late and everybody else were asleep.";
    let server = serve(STYLED).await?;
    let hits = async || server.metric("izwi_prefix_cache_hits_total", &[]).await;
    let asked = |text: &str| json!({"input": text, "instructions": style});
    spoken(&server, asked(TEXT)).await?;
    let before = hits().await?;
    let second = spoken(&server, asked("It is late.")).await?;
    assert!(hits().await? > before, "the instructions were computed twice");
    let plain = EngineCoreConfig { enable_prefix_caching: false, ..config(STYLED) };
    let plain = TestServer::with_weights(plain, &checkpoint("cv17")).await?;
    assert!(second == spoken(&plain, asked("It is late.")).await?);
    assert!(
        second != spoken(&server, json!({"input": "It is late."})).await?,
        "the instructions change the audio"
    );
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_and_voices_are_listed() -> Result<()> {
    let server = serve(OWN).await?;
    let mut session = speaking(&server, TEXT, 5).await?;
    let reason = session.utterance().await?.done["finish_reason"].as_str().context("a reason")?.to_owned();
    spoken(&server, json!({"max_tokens": 3})).await?;
    server.assert_balanced().await?;
    let model = format!("model=\"{OWN}\"");
    for reason in [reason.as_str(), "length"] {
        let labels = [model.as_str(), "task=\"tts\"", &format!("finish_reason=\"{reason}\"")];
        assert_eq!(server.metric("izwi_requests_total", &labels).await?, 1.0, "{reason}");
    }
    let model: Value = server.get("/v1/models/tts-1").await?.json().await?;
    assert_eq!((&model["id"], &model["clones_voices"]), (&json!(OWN), &json!(false)));
    let listed: Value = server.get("/v1/audio/voices").await?.json().await?;
    let voices = listed["voices"].as_array().context("a list")?;
    assert!(voices.iter().any(|voice| voice["id"] == "ryan") && voices.len() == 9, "{listed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runaway_generation_is_cut_and_reported() -> Result<()> {
    // At temperature 0 tiny random weights never end: the budget is 60 frames and 12 per text token.
    let server = serve(OWN).await?;
    let (babble, trailers) = spoken_to_the_end(&server, json!({"input": "Hi.", "temperature": 0})).await?;
    assert_eq!(babble.len(), 96 * FRAME);
    assert!(trailers.contains("x-finish-reason: runaway_trimmed"), "{trailers}");
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": "Hi.", "temperature": 0})).await?;
    session.expect("session.created").await?;
    let utterance = session.utterance().await?;
    assert_eq!(utterance.done["finish_reason"], "runaway_trimmed");
    assert!(audio(&utterance)? == babble);
    let reason = "finish_reason=\"runaway_trimmed\"";
    server.assert_balanced().await?;
    assert_eq!(server.metric("izwi_requests_total", &["task=\"tts\"", reason]).await?, 2.0);
    Ok(())
}
