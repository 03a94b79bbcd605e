//! The speech WebSocket: exact chunks, early audio, order, concurrent streams.

use anyhow::{Context, Result, ensure};
use izwi_tests::{Gate, Incoming, Setup, TestServer, Utterance, eventually, guarded};
use serde_json::{Value, json};

const SENTENCE: &str = "This sentence has just enough words to fill more than a chunk.";
const RATE: usize = 24_000;

/// Checks the properties of every utterance at the model's rate and returns its audio.
fn check(
    utterance: &Utterance,
    chunk_samples: usize,
    bytes_per_sample: usize,
    header: usize,
) -> Result<Vec<u8>> {
    check_at(RATE, utterance, chunk_samples, bytes_per_sample, header)
}

/// The same, of samples at `rate`.
fn check_at(
    rate: usize,
    utterance: &Utterance,
    chunk_samples: usize,
    bytes_per_sample: usize,
    header: usize,
) -> Result<Vec<u8>> {
    let mut audio = Vec::new();
    let mut offset = 0;
    let last = utterance.chunks.len() - 1;
    for (index, (chunk, bytes)) in utterance.chunks.iter().enumerate() {
        let samples = chunk["samples"].as_u64().context("samples")? as usize;
        ensure!(chunk["utterance"] == utterance.start["utterance"], "{chunk}");
        ensure!(chunk["seq"] == index, "{chunk}");
        ensure!(chunk["sample_offset"] == offset, "{chunk}");
        ensure!(chunk["is_final"] == (index == last), "{chunk}");
        if index < last {
            ensure!(samples == chunk_samples, "{chunk}");
        } else {
            ensure!((1..=chunk_samples).contains(&samples), "{chunk}");
        }
        let header = if index == 0 { header } else { 0 };
        ensure!(bytes.len() == header + samples * bytes_per_sample, "{chunk} has {} bytes", bytes.len());
        offset += samples;
        audio.extend_from_slice(bytes);
    }
    ensure!(utterance.done["samples"] == offset, "{}", utterance.done);
    ensure!(utterance.done["utterance"] == utterance.start["utterance"]);
    ensure!(utterance.done["finish_reason"] == "stop", "{}", utterance.done);
    let seconds = utterance.done["duration_s"].as_f64().context("duration_s")?;
    ensure!((seconds - offset as f64 / rate as f64).abs() < 1e-4, "{}", utterance.done);
    ensure!(utterance.done["rtf"].is_number() && utterance.done["ttfa_ms"].is_number(), "{}", utterance.done);
    Ok(audio)
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_exact_for_any_size_and_model() -> Result<()> {
    for setup in [Setup::units("exact-units"), Setup::tokens("exact-tokens")] {
        let server = setup.start().await?;
        let text = format!("{SENTENCE} {SENTENCE}");
        let body = json!({"model": "tts-1", "input": text, "response_format": "pcm", "seed": 7});
        let whole = server.speech(&body).await?.bytes().await?;
        for chunk_ms in [20, 37, 200, 2_000] {
            let mut session = server.session().await?;
            session.send(json!({"type": "session.config", "chunk_ms": chunk_ms, "seed": 7})).await?;
            let created = session.expect("session.created").await?;
            assert_eq!(created["sample_rate"], RATE);
            assert_eq!((&created["channels"], &created["encoding"]), (&json!(1), &json!("pcm_s16le")));
            session.send(json!({"type": "speak", "text": text})).await?;
            let utterance = session.utterance().await?;
            let audio = check(&utterance, RATE * chunk_ms / 1_000, 2, 0)?;
            assert!(audio == whole, "chunks of {chunk_ms} ms are not the samples of the whole");
            assert_eq!(utterance.start["voice"], "one");
            session.expect_done(1000).await?;
        }
        server.assert_balanced().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_matches_its_label() -> Result<()> {
    let server = Setup::units("formats").start().await?;
    for (format, label, width, header) in
        [("pcm", "pcm_s16le", 2, 0), ("pcm_f32", "pcm_f32le", 4, 0), ("wav", "wav", 2, 44)]
    {
        let mut session = server.session().await?;
        let speak =
            json!({"type": "speak", "text": SENTENCE, "response_format": format, "voice": "nova", "seed": 1});
        session.send(speak).await?;
        assert_eq!(session.expect("session.created").await?["encoding"], label);
        let audio = check(&session.utterance().await?, 4_800, width, header)?;
        if format == "wav" {
            assert_eq!(audio[..44], izwi_audio::wav::streaming_header(24_000));
        }
    }
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "response_format": "aac"})).await?;
    let error = session.expect_error("invalid_value").await?;
    assert_eq!(error["param"], "response_format");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("pcm_f32")), "{error}");
    session.speak("It goes on.").await?;
    Ok(())
}

/// The bytes of a session are those of HTTP at the same rate, and its chunks are exact at that rate.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_another_sample_rate_are_exact() -> Result<()> {
    let server = Setup::units("rates").start().await?;
    let text = format!("{SENTENCE} {SENTENCE}");
    for (format, sample_rate, width, header) in [
        ("pcm", 8_000, 2, 0),
        ("pcm", 16_000, 2, 0),
        ("pcm", 22_050, 2, 0),
        ("pcm", 44_100, 2, 0),
        ("wav", 48_000, 2, 44),
        ("ulaw", 8_000, 1, 0),
        ("alaw", 8_000, 1, 0),
    ] {
        let shown = format!("{format} at {sample_rate} Hz");
        let body = json!({"model": "tts-1", "input": text, "response_format": format, "seed": 7, "sample_rate": sample_rate});
        let whole = server.speech(&body).await?.bytes().await?;
        for chunk_ms in [20, 200] {
            let mut session = server.session().await?;
            let config = json!({"type": "session.config", "chunk_ms": chunk_ms, "seed": 7, "response_format": format, "sample_rate": sample_rate});
            session.send(config).await?;
            assert_eq!(session.expect("session.created").await?["sample_rate"], sample_rate);
            session.send(json!({"type": "speak", "text": text})).await?;
            let utterance = session.utterance().await?;
            let audio = check_at(sample_rate, &utterance, sample_rate * chunk_ms / 1_000, width, header);
            assert!(audio.with_context(|| shown.clone())? == whole, "{shown}");
            session.expect_done(1000).await?;
        }
    }
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "sample_rate": 11_025})).await?;
    let error = session.expect_error("invalid_value").await?;
    assert_eq!(error["param"], "sample_rate");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("8000, 16000, 22050")), "{error}");
    server.assert_balanced().await
}

/// Formats with frames of their own: the chunks describe all samples, the bytes are those of HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_chunks_are_one_stream() -> Result<()> {
    let server = Setup::units("compressed").start().await?;
    for (format, encoding, rate) in
        [("mp3", "mp3", RATE), ("opus", "ogg_opus", 48_000), ("flac", "flac", RATE)]
    {
        let body = json!({"model": "tts-1", "input": SENTENCE, "response_format": format, "seed": 7});
        let whole = server.speech(&body).await?.bytes().await?;
        for first_chunk_ms in [None, Some(20)] {
            let mut session = server.session().await?;
            let config = json!({"type": "session.config", "seed": 7, "chunk_ms": 50, "first_chunk_ms": first_chunk_ms, "response_format": format});
            session.send(config).await?;
            let created = session.expect("session.created").await?;
            assert_eq!((&created["sample_rate"], &created["encoding"]), (&json!(rate), &json!(encoding)));
            session.send(json!({"type": "speak", "text": SENTENCE})).await?;
            let utterance = session.utterance().await?;
            let mut samples = 0;
            for (seq, (chunk, _)) in utterance.chunks.iter().enumerate() {
                assert_eq!(
                    (&chunk["seq"], &chunk["sample_offset"]),
                    (&json!(seq), &json!(samples)),
                    "{format}"
                );
                samples += chunk["samples"].as_u64().context("samples")?;
            }
            assert_eq!(samples as usize, SENTENCE.len() * 100 * rate / RATE, "{format}");
            assert_eq!(utterance.done["samples"], samples);
            let audio: Vec<u8> = utterance.chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            assert!(audio == whole, "{format}, first_chunk_ms {first_chunk_ms:?}");
            assert!(utterance.chunks.last().is_some_and(|(chunk, _)| chunk["is_final"] == true));
        }
    }
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_chunk_arrives_during_generation() -> Result<()> {
    let (gate, script) = Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
    let server = Setup::units("early").script(script).start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "speak", "text": format!("{SENTENCE} {SENTENCE} {SENTENCE}")})).await?;
    session.expect("session.created").await?;
    let start = session.expect("audio.start").await?;
    let first = session.chunk().await?;
    assert_eq!(first.0["is_final"], false);
    gate.open();
    let utterance = session.rest_of(Utterance { start, chunks: vec![first], done: Value::Null }).await?;
    check(&utterance, 4_800, 2, 0)?;
    Ok(())
}

/// The gate holds the last token of each stream until all streams have their first chunk. A step has room for all: with
/// fewer, streams that play would go before those that start on a machine that is too slow.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_streams_progress_concurrently() -> Result<()> {
    const STREAMS: usize = 50;
    // 22 characters give 22 prompt tokens and 23 generated ones; the last is computed at position 43.
    const TEXT: &str = "Twenty-two characters.";
    let (gate, wait) = Gate::new(|plan| plan.schedule.items().any(|item| item.start + item.num_tokens >= 44));
    let setup = Setup::tokens("together").script(wait).engine(|engine| {
        (engine.max_batch_size, engine.max_tokens_per_step) = (STREAMS, STREAMS * TEXT.len());
    });
    let server = setup.start().await?;
    // Clients connect at different times: all start together.
    server.engine()?.pause()?;
    let mut sessions = Vec::new();
    for _ in 0..STREAMS {
        let mut session = server.session().await?;
        session.send(json!({"type": "speak", "text": TEXT, "seed": 3})).await?;
        sessions.push(session);
    }
    eventually("all requests are queued", || async {
        let status = server.engine()?.status();
        Ok(status.pending + status.running == STREAMS)
    })
    .await?;
    server.engine()?.resume()?;
    let waiting = sessions.into_iter().map(|mut session| async move {
        session.expect("session.created").await?;
        let start = session.expect("audio.start").await?;
        let chunks = vec![session.chunk().await?];
        anyhow::Ok((session, Utterance { start, chunks, done: Value::Null }))
    });
    let begun = futures::future::try_join_all(waiting).await?;
    assert_eq!(server.metric("izwi_requests_total", &[]).await?, 0.0, "a stream ended before all began");
    gate.open();
    let finishing = begun.into_iter().map(|(mut session, utterance)| async move {
        let utterance = session.rest_of(utterance).await?;
        session.expect_done(1000).await?;
        check(&utterance, 4_800, 2, 0)
    });
    let audio = futures::future::try_join_all(finishing).await?;
    assert!(audio.iter().all(|other| *other == audio[0]), "a stream depends on its neighbours");
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn text_pieces_are_generated_in_order_and_early() -> Result<()> {
    let server = Setup::units("pieces").start().await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "session.config", "model": "tts-1", "voice": {"id": "two"}})).await?;
    session.expect("session.created").await?;
    for piece in ["One ", "two."] {
        session.send(json!({"type": "input.text", "text": piece})).await?;
    }
    session.send(json!({"type": "input.flush"})).await?;
    // Complete and long enough: generated without a flush, before the rest of the text arrives.
    session.send(json!({"type": "input.text", "text": format!("{SENTENCE} And")})).await?;
    let mut utterances = vec![session.utterance().await?, session.utterance().await?];
    session.send(json!({"type": "playback.ack", "played_ms": 10})).await?;
    // What is not spoken yet is dropped.
    session.send(json!({"type": "interrupt", "utterance": 1, "played_ms": 9_000})).await?;
    assert_eq!(session.expect("interrupted").await?["text_remaining"], "And");
    session.send(json!({"type": "input.text", "text": " a rest."})).await?;
    session.send(json!({"type": "input.done"})).await?;
    utterances.push(session.utterance().await?);
    session.expect_done(1000).await?;
    let lengths = ["One two.".len(), SENTENCE.len(), "a rest.".len()];
    for (index, (utterance, length)) in utterances.iter().zip(lengths).enumerate() {
        assert_eq!(
            (&utterance.start["utterance"], &utterance.start["voice"]),
            (&json!(index), &json!("two"))
        );
        assert_eq!(utterance.done["samples"], length * 100);
        check(utterance, 4_800, 2, 0)?;
    }
    Ok(())
}

async fn rejected(server: &TestServer, frames: &[Value], code: &str, param: Option<&str>) -> Result<()> {
    let mut session = server.session().await?;
    for frame in frames {
        session.send(frame.clone()).await?;
    }
    let error = loop {
        let frame = session.frame().await?;
        if frame["type"] != "session.created" {
            break frame;
        }
    };
    ensure!(error["type"] == "error" && error["code"] == code, "{frames:?}: {error}");
    ensure!(error["param"].as_str() == param, "{frames:?}: {error}");
    session.send(json!({"type": "ping"})).await?;
    session.expect("pong").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_requests_get_errors_and_the_session_continues() -> Result<()> {
    let server = Setup::units("refusals").server(|server| server.max_session_chars = 5_000).start().await?;
    let config = |fields: Value| {
        let mut frame = json!({"type": "session.config"});
        if let (Some(frame), Some(fields)) = (frame.as_object_mut(), fields.as_object()) {
            frame.extend(fields.clone());
        }
        frame
    };
    let text = |count: usize| json!({"type": "input.text", "text": "a".repeat(count)});
    let invalid = "invalid_value";
    rejected(&server, &[config(json!({"model": "refusal"}))], "model_not_found", Some("model")).await?;
    rejected(&server, &[config(json!({"voice": "three"}))], "voice_not_found", Some("voice")).await?;
    rejected(&server, &[config(json!({"chunk_ms": 19}))], invalid, Some("chunk_ms")).await?;
    rejected(&server, &[config(json!({"chunk_ms": 2001}))], invalid, Some("chunk_ms")).await?;
    rejected(&server, &[config(json!({"chunk_ms": -1}))], invalid, Some("chunk_ms")).await?;
    rejected(&server, &[config(json!({"seed": "seven"}))], invalid, Some("seed")).await?;
    rejected(&server, &[config(json!({"priority": "urgent"}))], invalid, Some("priority")).await?;
    rejected(&server, &[config(json!({})), config(json!({}))], "out_of_order", None).await?;
    rejected(&server, &[text(4_097)], invalid, Some("text")).await?;
    rejected(&server, &[text(4_000), json!({"type": "input.flush"}), text(1_001)], invalid, Some("text"))
        .await
        .ok();
    rejected(&server, &[json!({"type": "speak", "text": " "})], invalid, Some("text")).await?;
    rejected(&server, &[json!({"type": "speak"})], invalid, Some("text")).await?;
    rejected(&server, &[json!({"type": "sing"})], "unknown_type", Some("type")).await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_session_ends_and_an_idle_one_is_closed() -> Result<()> {
    let server = Setup::units("idle")
        .server(|server| server.idle_timeout = std::time::Duration::from_millis(100))
        .start()
        .await?;
    let mut session = server.session().await?;
    session.send(json!({"type": "input.done"})).await?;
    session.expect_done(1000).await?;
    let mut session = server.session().await?;
    session.expect_error("idle_timeout").await?;
    assert_eq!(session.next().await?, Incoming::Closed(Some(1008)));
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_sends_pings() -> Result<()> {
    use futures::StreamExt;
    let server = Setup::units("pings")
        .server(|server| server.ping_interval = std::time::Duration::from_millis(10))
        .start()
        .await?;
    let url = format!("ws://{}/v1/audio/speech/stream", server.address);
    let (mut socket, _) = guarded(tokio_tungstenite::connect_async(url)).await??;
    let message = guarded(socket.next()).await?.context("the socket is open")??;
    assert!(message.is_ping(), "{message:?}");
    Ok(())
}
