//! Models that other servers run: in front of a second Izwi, and in front of vLLM-Omni's published protocol with faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{EngineCoreConfig, Task};
use izwi_remote::{RemoteClient, RemoteConfig, Secret};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{
    Form, Incoming, Reply, Setup, TestServer, Upstream, eventually, guarded, recording, transcript_events,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const TEXT: &str = "This sentence has just enough words to fill more than a chunk. So has this one, of course. \
                    A third one makes more than three chunks of two hundred milliseconds.";
/// Samples of a chunk of 200 ms.
const CHUNK: usize = 4_800;

/// A server whose only model is `config`.
async fn front(config: RemoteConfig) -> Result<TestServer> {
    let (name, task) = (config.name.clone(), config.task);
    let base = EngineCoreConfig { num_threads: 2, ..EngineCoreConfig::default() };
    let engine = RemoteClient::new(config)?.with_listed_voices().await.into_engine(base)?;
    let registry = match task {
        Task::Asr => {
            let registry =
                RegistryConfig { default_asr: Some(name.clone()), ..RegistryConfig::new("no-speaker") };
            let registry = Registry::new(registry);
            registry.set("no-speaker", Slot::Failed("this test has none".to_owned()));
            registry
        }
        _ => Registry::new(RegistryConfig::new(&name)),
    };
    registry.set(&name, Slot::Ready(engine));
    // A session that may be resumed continues for a while.
    let server = ServerConfig { resume_window: Duration::ZERO, ..ServerConfig::default() };
    TestServer::listen(server, registry, Recorder::install()?).await
}

fn speaks(name: &str, urls: &[String]) -> RemoteConfig {
    RemoteConfig::new(name, Task::Tts, urls.to_vec(), "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
}

/// A server in front of one upstream.
async fn in_front_of(name: &str, upstream: &Upstream) -> Result<TestServer> {
    front(speaks(name, &[upstream.url()])).await
}

fn pcm() -> Value {
    json!({"model": "tts-1", "input": TEXT, "response_format": "pcm", "seed": 7})
}

/// Bytes of samples that differ from each other.
fn audio(samples: usize) -> Vec<u8> {
    (0..samples).flat_map(|index| ((index * 37 % 32_767) as i16).to_le_bytes()).collect()
}

/// The status, `Retry-After`, and the error of a refusal.
async fn refusal(response: reqwest::Response) -> Result<(u16, Option<u64>, Value)> {
    let retry_after =
        response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    let status = response.status().as_u16();
    let body: Value = response.json().await?;
    Ok((status, retry_after, body["error"].clone()))
}

async fn counted(server: &TestServer, name: &str, outcome: &str) -> Result<f64> {
    let labels = [format!("model=\"{name}\""), format!("outcome=\"{outcome}\"")];
    server.metric("izwi_upstream_requests_total", &[&labels[0], &labels[1]]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_through_a_second_izwi_has_its_samples() -> Result<()> {
    let near = Setup::units("remote-near").start().await?;
    let config = RemoteConfig::new("remote-far", Task::Tts, vec![near.url("/v1")], "remote-near");
    let far = front(config).await?;
    let own = near.speech(&pcm()).await?.bytes().await?;
    ensure!(own.len() > 3 * 2 * CHUNK, "the utterance is too short to stream");
    let response = far.speech(&pcm()).await?;
    ensure!(response.status() == 200, "{:?}", response.text().await);
    assert_eq!(response.headers()["x-sample-rate"], "24000");
    assert!(response.bytes().await? == own, "HTTP has other samples than the upstream");

    let wav = |model: &str| json!({"model": model, "input": TEXT, "response_format": "wav", "seed": 7});
    let own_wav = near.speech(&wav("tts-1")).await?.bytes().await?;
    assert!(
        far.speech(&wav("remote-far")).await?.bytes().await? == own_wav,
        "another format has other bytes"
    );

    let mut session = far.session().await?;
    session.send(json!({"type": "session.config", "seed": 7})).await?;
    session.expect("session.created").await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    let utterance = session.utterance().await?;
    let last = utterance.chunks.len() - 1;
    for (index, (chunk, bytes)) in utterance.chunks.iter().enumerate() {
        assert_eq!(chunk["seq"], index);
        assert!(index == last || bytes.len() == 2 * CHUNK, "chunk {index} has {} bytes", bytes.len());
    }
    let chunks: Vec<u8> = utterance.chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert!(chunks == own, "the session has other samples than the upstream");
    assert_eq!(utterance.done["finish_reason"], "stop");
    assert!(utterance.done["rtf"].is_number() && utterance.done["ttfa_ms"].is_number());

    let models: Value = far.get("/v1/models").await?.json().await?;
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["owned_by"]),
        (&json!("remote-far"), &json!("remote"))
    );
    let voices: Value = far.get("/v1/audio/voices").await?.json().await?;
    assert_eq!(voices["voices"][0]["id"], "one", "the voices of the upstream");
    let unknown =
        refusal(far.speech(&json!({"model": "tts-1", "input": "Hi.", "voice": "nobody"})).await?).await?;
    assert_eq!((unknown.0, &unknown.2["code"]), (404, &json!("voice_not_found")));
    let model = "model=\"remote-far\"";
    assert_eq!(counted(&far, "remote-far", "answered").await?, 3.0);
    assert_eq!(far.metric("izwi_time_to_first_audio_seconds_count", &[model]).await?, 3.0);
    assert_eq!(far.metric("izwi_requests_total", &[model, "finish_reason=\"stop\""]).await?, 3.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transcripts_through_a_second_izwi_equal_its_own() -> Result<()> {
    const ROUTE: &str = "/v1/audio/transcriptions";
    let near = Setup::listener("remote-asr").start().await?;
    let far =
        front(RemoteConfig::new("remote-asr-far", Task::Asr, vec![near.url("/v1")], "remote-asr")).await?;
    let form = |fields: &[(&str, &str)]| {
        let form = Form::new().file("file", &recording(2.5)).text("model", "whisper-1");
        fields.iter().fold(form, |form, (name, value)| form.text(name, value))
    };
    let words = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let plain = [("response_format", "verbose_json")];
    for fields in [&[("response_format", "srt")][..], &plain, &words] {
        let own = near.post_form(ROUTE, form(fields)).await?.text().await?;
        let through = far.post_form(ROUTE, form(fields)).await?;
        ensure!(through.status() == 200, "{fields:?}: {}", through.text().await?);
        assert_eq!(through.text().await?, own, "{fields:?}");
    }
    let streamed = far.post_form(ROUTE, form(&[("stream", "true")])).await?.text().await?;
    let (events, _) = transcript_events(&streamed)?;
    assert_eq!(events.last().context("an event")?["text"], "word0 word1 word2");

    let (status, _, error) = refusal(far.post_form(ROUTE, form(&[("beam_size", "2")])).await?).await?;
    assert_eq!((status, &error["param"]), (400, &json!("beam_size")), "{error}");
    let broken = Form::new().file("file", b"nonsense").text("model", "whisper-1");
    assert_eq!(far.post_form(ROUTE, broken).await?.status(), 415, "a recording is decoded here");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn audio_leaves_before_the_upstream_has_ended() -> Result<()> {
    let bytes = audio(3 * CHUNK + 100);
    // The first part ends within a sample of the second chunk.
    let (first, rest) = bytes.split_at(2 * CHUNK + 33);
    let parts = vec![first.to_vec(), rest[..1].to_vec(), rest[1..].to_vec()];
    let gate = Arc::new(Semaphore::new(0));
    let (held, reply) = (Arc::clone(&gate), parts);
    let upstream = Upstream::start(move |_| Reply::Audio(reply.clone(), Arc::clone(&held))).await?;
    let config =
        RemoteConfig { api_key: Some(Secret::new("sesame")), ..speaks("remote-slow", &[upstream.url()]) };
    let server = front(config).await?;
    gate.add_permits(1);
    let mut response = server.speech(&pcm()).await?;
    ensure!(response.status() == 200, "{:?}", response.text().await);
    let mut got = Vec::new();
    while got.len() < 2 * CHUNK {
        got.extend_from_slice(&guarded(response.chunk()).await??.context("the first chunk")?);
    }
    assert_eq!((got.len(), upstream.sent()), (2 * CHUNK, 1), "200 ms left while the upstream holds the rest");
    gate.add_permits(2);
    while let Some(more) = guarded(response.chunk()).await?? {
        got.extend_from_slice(&more);
    }
    assert!(got == bytes, "samples were changed");

    let seen = upstream.seen().remove(0);
    assert!(seen.headers.contains("authorization: bearer sesame"), "{}", seen.headers);
    assert_eq!(
        seen.body,
        json!({"model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "input": TEXT, "voice": "vivian",
            "response_format": "pcm", "stream_format": "audio", "stream": true, "seed": 7})
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_the_upstream_back() -> Result<()> {
    // Parts of a second, 60 MiB: more than the sockets of both connections hold.
    const PARTS: usize = 1_300;
    let part = audio(24_000);
    let parts = vec![part.clone(); PARTS];
    let upstream =
        Upstream::start(move |_| Reply::Audio(parts.clone(), Arc::new(Semaphore::new(PARTS)))).await?;
    let server = in_front_of("remote-held", &upstream).await?;
    let mut response = server.speech(&pcm()).await?;
    ensure!(response.status() == 200, "{:?}", response.text().await);
    let (mut sent, mut unchanged) = (0, 0);
    while unchanged < 20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        unchanged = if sent > 0 && upstream.sent() == sent { unchanged + 1 } else { 0 };
        sent = upstream.sent();
    }
    assert!(sent < PARTS, "all of it was taken for a client that reads nothing");
    let mut got = 0;
    while let Some(more) = guarded(response.chunk()).await?? {
        let at = got % part.len();
        let expected = part[at..].iter().chain(part.iter().cycle());
        assert!(more.iter().zip(expected).all(|(a, b)| a == b), "other samples from byte {got} on");
        got += more.len();
    }
    assert_eq!((got, upstream.sent()), (PARTS * part.len(), PARTS));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_closes_the_connection_to_the_upstream() -> Result<()> {
    let first = audio(2 * CHUNK);
    let upstream = Upstream::start(move |number| match number {
        2 => Reply::Nothing,
        _ => Reply::Audio(vec![first.clone(), first.clone()], Arc::new(Semaphore::new(1))),
    })
    .await?;
    let server = in_front_of("remote-left", &upstream).await?;
    let mut response = server.speech(&pcm()).await?;
    ensure!(response.chunk().await?.is_some());
    drop(response);
    eventually("the upstream to be left", || async { Ok(upstream.left() == 1) }).await?;

    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    session.expect("session.created").await?;
    session.expect("audio.start").await?;
    session.chunk().await?;
    drop(session);
    eventually("the upstream to be left", || async { Ok(upstream.left() == 2) }).await?;

    // Before the first byte.
    let url = server.url("/v1/audio/speech");
    let waiting = tokio::spawn(async move { reqwest::Client::new().post(url).json(&pcm()).send().await });
    eventually("the upstream to be asked", || async { Ok(upstream.seen().len() == 3) }).await?;
    waiting.abort();
    eventually("the upstream to be left", || async { Ok(upstream.left() == 3) }).await?;
    assert_eq!(
        server.metric("izwi_aborts_total", &["model=\"remote-left\"", "cause=\"disconnect\""]).await?,
        3.0
    );
    eventually("nothing to be outstanding", || async {
        Ok(server.metric("izwi_upstream_outstanding", &["model=\"remote-left\""]).await? == 0.0)
    })
    .await?;
    assert_eq!(counted(&server, "remote-left", "abandoned").await?, 3.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_ends_the_stream_and_is_not_asked_for_again() -> Result<()> {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let upstream =
        Upstream::start(move |_| Reply::Cut(vec![audio(2 * CHUNK + 10)], Arc::clone(&held))).await?;
    let server = in_front_of("remote-cut", &upstream).await?;
    let mut response = server.speech(&pcm()).await?;
    ensure!(response.status() == 200);
    let mut got = guarded(response.chunk()).await??.context("the first chunk")?.to_vec();
    gate.add_permits(1);
    let failure = loop {
        match guarded(response.chunk()).await? {
            Ok(Some(more)) => got.extend_from_slice(&more),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(failure.is_some(), "a cut answer looks complete");
    assert!(audio(2 * CHUNK + 10).starts_with(&got));

    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    session.expect("session.created").await?;
    session.expect("audio.start").await?;
    session.chunk().await?;
    gate.add_permits(1);
    // What had come of the next chunk, and how it ended.
    let error = loop {
        match session.next().await? {
            Incoming::Frame(frame) if frame["type"] == "error" => break frame,
            Incoming::Frame(frame) => ensure!(frame["type"] == "audio.chunk", "{frame}"),
            Incoming::Audio(_) => {}
            Incoming::Closed(code) => anyhow::bail!("closed with {code:?} before the error"),
        }
    };
    assert_eq!(error["code"], "upstream_failed");
    assert_eq!(upstream.seen().len(), 2, "an answer that has begun is not asked for again");
    assert_eq!(counted(&server, "remote-cut", "cut").await?, 2.0);
    let model = "model=\"remote-cut\"";
    assert_eq!(server.metric("izwi_requests_total", &[model, "finish_reason=\"error\""]).await?, 2.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_before_the_first_byte_is_tried_again() -> Result<()> {
    let bytes = audio(CHUNK);
    let reply = bytes.clone();
    let upstream = Upstream::start(move |number| match number {
        0 => Reply::Status(503, "", "text/plain", "warming up"),
        1 => Reply::Status(429, "Retry-After: 0\r\n", "text/plain", "full"),
        _ => Reply::audio(&reply),
    })
    .await?;
    let server = in_front_of("remote-retry", &upstream).await?;
    let response = server.speech(&pcm()).await?;
    ensure!(response.status() == 200, "{:?}", response.text().await);
    assert!(response.bytes().await? == bytes);
    assert_eq!(upstream.seen().len(), 3);
    assert_eq!(server.metric("izwi_upstream_retries_total", &["model=\"remote-retry\""]).await?, 2.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_fails_is_not_asked_for_a_while() -> Result<()> {
    let upstream = Upstream::start(|_| Reply::Status(503, "", "text/plain", "no GPU")).await?;
    let config = RemoteConfig {
        retries: 0,
        breaker_failures: 2,
        breaker_pause: Duration::from_secs(3_600),
        ..speaks("remote-down", &[upstream.url()])
    };
    let server = front(config).await?;
    for _ in 0..2 {
        let (status, retry_after, error) = refusal(server.speech(&pcm()).await?).await?;
        assert_eq!((status, retry_after), (503, Some(1)), "{error}");
        assert_eq!(error["code"], "upstream_unavailable");
    }
    let (status, retry_after, error) = refusal(server.speech(&pcm()).await?).await?;
    assert!(status == 503 && retry_after.is_some_and(|seconds| seconds > 3_000), "{retry_after:?} {error}");
    assert_eq!(upstream.seen().len(), 2, "a server that rests is not asked");
    let health: Value = server.get("/health").await?.json().await?;
    let told = &health["models"]["remote-down"]["upstreams"][0];
    assert_eq!((&told["circuit"], &told["failures"]), (&json!("open"), &json!(2)), "{health}");
    assert_eq!(told["url"], upstream.url());
    assert_eq!(server.metric("izwi_upstream_up", &["model=\"remote-down\""]).await?, 0.0);

    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": TEXT})).await?;
    session.expect("session.created").await?;
    session.expect_error("upstream_unavailable").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_breaks_the_protocol_or_refuses_is_told_apart() -> Result<()> {
    let refused = r#"{"error": {"message": "Input is too long", "type": "BadRequestError", "code": 400}}"#;
    let cases: [(Reply, u16, &str, &str); 8] = [
        (Reply::Status(200, "", "text/html", "<html>"), 502, "upstream_failed", "text/html"),
        (Reply::Status(200, "", "application/json", refused), 502, "upstream_failed", "application/json"),
        (Reply::Status(200, "", "audio/pcm", ""), 502, "upstream_failed", "no audio"),
        (Reply::Status(200, "", "audio/pcm", "abc"), 502, "upstream_failed", "within a sample"),
        (
            Reply::Status(200, "X-Sample-Rate: 16000\r\n", "audio/pcm", "abcd"),
            502,
            "upstream_failed",
            "16000",
        ),
        (Reply::Status(500, "", "text/plain", "CUDA error"), 502, "upstream_failed", "CUDA error"),
        (Reply::Status(401, "", "text/plain", "who?"), 502, "upstream_failed", "api_key"),
        (Reply::Status(400, "", "application/json", refused), 400, "upstream_refused", "Input is too long"),
    ];
    let replies: Vec<Reply> = cases.iter().map(|(reply, ..)| reply.clone()).collect();
    let upstream = Upstream::start(move |number| replies[number].clone()).await?;
    let config = RemoteConfig { breaker_failures: 100, ..speaks("remote-wrong", &[upstream.url()]) };
    let server = front(config).await?;
    for (reply, expected, code, part) in &cases {
        let (status, _, error) = refusal(server.speech(&pcm()).await?).await?;
        assert_eq!((status, &error["code"]), (*expected, &json!(code)), "{reply:?}: {error}");
        assert!(error["message"].as_str().context("a message")?.contains(part), "{reply:?}: {error}");
    }
    assert_eq!(upstream.seen().len(), cases.len(), "none of them is tried again");
    let (status, _, error) =
        refusal(server.speech(&json!({"model": "tts-1", "input": "Hi.", "speed": 9.0})).await?).await?;
    assert_eq!((status, &error["param"]), (400, &json!("speed")), "checked here: {error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_upstreams_share_the_requests_and_stand_in_for_each_other() -> Result<()> {
    let bytes = audio(CHUNK);
    let gate = Arc::new(Semaphore::new(0));
    let start = || {
        let (bytes, gate) = (bytes.clone(), Arc::clone(&gate));
        Upstream::start(move |number| match number {
            0 => Reply::Audio(vec![bytes.clone()], Arc::clone(&gate)),
            _ => Reply::audio(&bytes),
        })
    };
    let (one, two) = (start().await?, start().await?);
    let server = front(speaks("remote-many", &[one.url(), two.url()])).await?;
    let ask = || {
        let url = server.url("/v1/audio/speech");
        tokio::spawn(async move { reqwest::Client::new().post(url).json(&pcm()).send().await?.bytes().await })
    };
    let first = ask();
    eventually("one upstream to be asked", || async { Ok(one.seen().len() + two.seen().len() == 1) }).await?;
    let second = ask();
    eventually("both to be asked", || async { Ok(one.seen().len() == 1 && two.seen().len() == 1) }).await?;
    gate.add_permits(2);
    assert!(guarded(first).await??? == bytes && guarded(second).await??? == bytes);

    // Nothing listens at the first address.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let urls = [format!("http://{closed}/v1"), two.url()];
    let server = front(speaks("remote-half", &urls)).await?;
    for _ in 0..4 {
        let response = server.speech(&pcm()).await?;
        ensure!(response.status() == 200, "{:?}", response.text().await);
        assert!(response.bytes().await? == bytes);
    }
    assert_eq!(counted(&server, "remote-half", "answered").await?, 4.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_limit_are_refused_with_a_time() -> Result<()> {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let upstream = Upstream::start(move |_| Reply::Audio(vec![audio(CHUNK)], Arc::clone(&held))).await?;
    let config = RemoteConfig { max_concurrent: 1, ..speaks("remote-full", &[upstream.url()]) };
    let server = front(config).await?;
    let url = server.url("/v1/audio/speech");
    let first = tokio::spawn(async move { reqwest::Client::new().post(url).json(&pcm()).send().await });
    eventually("the upstream to be asked", || async { Ok(upstream.seen().len() == 1) }).await?;
    let (status, retry_after, error) = refusal(server.speech(&pcm()).await?).await?;
    assert_eq!((status, &error["code"]), (429, &json!("overloaded")), "{error}");
    assert!(
        retry_after.is_some() && error["message"].as_str().unwrap().contains("max_concurrent"),
        "{error}"
    );
    gate.add_permits(2);
    assert_eq!(guarded(first).await???.bytes().await?.len(), 2 * CHUNK);
    eventually("the place to be free", || async { Ok(server.speech(&pcm()).await?.status() == 200) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_the_client_sets_are_sent_also_where_they_are_the_defaults() -> Result<()> {
    let bytes = audio(CHUNK);
    let upstream = Upstream::start(move |_| Reply::audio(&bytes)).await?;
    let server = in_front_of("remote-options", &upstream).await?;
    let set =
        json!({"temperature": 0.0, "max_tokens": 2_048, "repetition_penalty": 1.0, "top_p": 1.0, "top_k": 0});
    let mut body = pcm();
    body.as_object_mut().context("an object")?.extend(set.as_object().context("an object")?.clone());
    for body in [&pcm(), &body] {
        ensure!(server.speech(body).await?.status() == 200);
    }
    let seen = upstream.seen();
    for (name, value) in set.as_object().context("an object")? {
        assert!(seen[0].body.get(name).is_none(), "{name} was not set: {}", seen[0].body);
        assert_eq!(&seen[1].body[name], value, "{name}");
    }
    assert_eq!(seen[1].body["max_new_tokens"], 2_048);

    let config = RemoteConfig { extensions: false, ..speaks("remote-plain", &[upstream.url()]) };
    let plain = front(config).await?;
    for (name, value) in set.as_object().context("an object")? {
        let mut body = json!({"model": "tts-1", "input": "Hi.", "response_format": "pcm"});
        body[name] = value.clone();
        let (status, _, error) = refusal(plain.speech(&body).await?).await?;
        assert_eq!((status, &error["param"]), (400, &json!(name)), "{error}");
    }
    assert_eq!(upstream.seen().len(), 2, "none of them was asked");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_drips_is_cut() -> Result<()> {
    const BYTES: usize = 2_000;
    // A byte every 20 ms: a thousandth of the tempo.
    let gate = Arc::new(Semaphore::new(0));
    let (held, drip) = (Arc::clone(&gate), Arc::clone(&gate));
    let upstream = Upstream::start(move |_| Reply::Audio(vec![vec![1]; BYTES], Arc::clone(&held))).await?;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drip.add_permits(1);
        }
    });
    let config =
        RemoteConfig { idle_timeout: Duration::from_secs(1), ..speaks("remote-drip", &[upstream.url()]) };
    let server = front(config).await?;
    let (status, _, error) = refusal(guarded(server.speech(&pcm())).await??).await?;
    assert_eq!((status, &error["code"]), (502, &json!("upstream_failed")), "{error}");
    assert!(error["message"].as_str().context("a message")?.contains("too little came for 1 s"), "{error}");
    assert!(upstream.sent() < BYTES, "all of it was waited for");
    eventually("the upstream to be left", || async { Ok(upstream.left() == 1) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_that_is_too_long_for_its_recording_is_refused() -> Result<()> {
    let long = format!(r#"{{"text": "{}"}}"#, "word ".repeat(500_000));
    let bodies: [&'static str; 2] = [Box::leak(long.into_boxed_str()), r#"{"text": "Hello there."}"#];
    let upstream =
        Upstream::start(move |number| Reply::Status(200, "", "application/json", bodies[number])).await?;
    let config = RemoteConfig::new("remote-scribe", Task::Asr, vec![upstream.url()], "m");
    let server = front(config).await?;
    let form = || Form::new().file("file", &recording(2.5)).text("model", "whisper-1");
    let answer = server.post_form("/v1/audio/transcriptions", form()).await?;
    let (status, _, error) = refusal(answer).await?;
    assert_eq!((status, &error["code"]), (502, &json!("upstream_failed")), "{error}");
    assert!(error["message"].as_str().context("a message")?.contains("for 2.5 s of audio"), "{error}");
    let answer: Value = server.post_form("/v1/audio/transcriptions", form()).await?.json().await?;
    assert_eq!(answer["text"], "Hello there.");
    Ok(())
}
