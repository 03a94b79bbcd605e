//! The LFM2-Audio models end to end: the real executor on a tiny checkpoint, behind the real server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use izwi_core::engine::Precision;
use izwi_core::engine::{
    ChatOptions, Conversation, EngineCoreConfig, EngineCoreRequest, FinishReason, GenerationParams,
    Message as Said,
};
use izwi_tests::{Form, Session, TestServer, Turn, base64, guarded};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const MODEL: &str = "lfm2-audio-1.5b";
const RATE: usize = 24_000;
const HEARD_RATE: usize = 16_000;

fn checkpoint() -> PathBuf {
    let set = std::env::var_os("IZWI_GOLDEN_LFM2_AUDIO").map(PathBuf::from);
    set.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lfm2_audio"))
}

fn config() -> EngineCoreConfig {
    EngineCoreConfig {
        model: MODEL.to_owned(),
        dtype: Precision::F32,
        max_blocks: 512,
        ..EngineCoreConfig::for_lfm2()
    }
}

async fn serve() -> Result<TestServer> {
    TestServer::with_weights(config(), &checkpoint()).await
}

/// A frequency sweep at the input rate.
fn sweep(seconds: f64, pitch: f32) -> Vec<f32> {
    let sample = |n: usize| {
        let t = n as f32 / HEARD_RATE as f32;
        0.2 * (pitch * t + 300.0 * t * t).sin() + 0.1 * (2_000.0 * t).sin() * (9.0 * t).sin()
    };
    (0..(seconds * HEARD_RATE as f64) as usize).map(sample).collect()
}

fn pcm(samples: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    izwi_audio::pcm::write_i16_le(samples, &mut bytes);
    bytes
}

/// Session settings. Answers of random weights have no reliable end: `max_tokens` ends them.
fn session_settings(seed: u64, max_tokens: usize) -> Value {
    json!({"type": "session.config", "model": MODEL, "seed": seed, "max_tokens": max_tokens,
           "temperature": 1.0, "top_k": 0, "text_temperature": 1.0})
}

async fn begin(server: &TestServer, seed: u64, max_tokens: usize) -> Result<Session> {
    let mut session = server.chat().await?;
    session.send(session_settings(seed, max_tokens)).await?;
    let created = session.expect("session.created").await?;
    ensure!(created["input_sample_rate"] == HEARD_RATE && created["sample_rate"] == RATE, "{created}");
    Ok(session)
}

async fn write(session: &mut Session, text: &str) -> Result<Turn> {
    session.send(json!({"type": "input.text", "text": text})).await?;
    session.rest_of_turn(Turn::default()).await
}

async fn send_sweep(session: &mut Session, samples: &[f32]) -> Result<Turn> {
    for piece in pcm(samples).chunks(3_200) {
        session.send_raw(Message::binary(piece.to_vec())).await?;
    }
    session.send(json!({"type": "input.audio.commit"})).await?;
    session.rest_of_turn(Turn::default()).await
}

/// Text and audio of a turn; checks that its chunks are exact.
fn checked_output(turn: &Turn) -> Result<(String, Vec<u8>)> {
    let mut offset = 0;
    for (index, (chunk, bytes)) in turn.chunks.iter().enumerate() {
        let is_last = index + 1 == turn.chunks.len();
        ensure!(chunk["seq"] == index && chunk["sample_offset"] == offset, "{chunk}");
        ensure!(chunk["samples"] == bytes.len() / 2 && chunk["is_final"] == is_last, "{chunk}");
        ensure!(is_last || bytes.len() == RATE / 5 * 2, "{chunk} is not 200 ms long");
        offset += bytes.len() / 2;
    }
    let done = &turn.done;
    ensure!(done["samples"] == offset && done["text"] == turn.text, "{done}");
    ensure!(["stop", "length"].contains(&done["finish_reason"].as_str().unwrap_or_default()), "{done}");
    Ok((turn.text.clone(), turn.audio()))
}

/// A seed for which the answer to `text` has at least `chunks` chunks.
async fn seed_with_chunks(server: &TestServer, text: &str, max_tokens: usize, chunks: usize) -> Result<u64> {
    for seed in 0..40 {
        let turn = write(&mut begin(server, seed, max_tokens).await?, text).await?;
        if turn.chunks.len() >= chunks {
            return Ok(seed);
        }
    }
    anyhow::bail!("no seed gives {chunks} chunks of sound")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_over_the_socket_equals_the_engine() -> Result<()> {
    let server = serve().await?;
    let samples = sweep(1.2, 700.0);
    let turn = send_sweep(&mut begin(&server, 3, 40).await?, &samples).await?;
    let (text, audio) = checked_output(&turn)?;
    ensure!(!text.is_empty(), "no text");

    let file = izwi_audio::wav::to_bytes(&samples, HEARD_RATE as u32)?;
    let engine = server.engine()?;
    let params = GenerationParams {
        temperature: 1.0,
        top_k: 0,
        seed: Some(3),
        max_tokens: 40,
        ..engine.profile().default_params()
    };
    let chat = ChatOptions { text_temperature: Some(1.0), ..ChatOptions::default() };
    let request =
        EngineCoreRequest::audio_chat(Some(base64(&file)), None).with_params(params).with_chat(chat);
    let whole = engine.generate(request.clone()).await?;
    ensure!(whole.text.as_deref() == Some(text.as_str()), "{:?}", whole.text);
    ensure!(pcm(&whole.audio.samples) == audio, "another sound");
    ensure!(whole.emissions.len() <= 40 && !whole.emissions.is_empty());
    let other = base64(&izwi_audio::wav::to_bytes(&sweep(1.2, 300.0), HEARD_RATE as u32)?);
    let other = EngineCoreRequest { audio_input: Some(other.into()), ..request };
    ensure!(
        engine.generate(other).await?.emissions != whole.emissions,
        "the recording does not change the answer"
    );
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_computes_only_new_positions() -> Result<()> {
    let server = serve().await?;
    let anew = EngineCoreConfig { enable_prefix_caching: false, ..config() };
    let anew = TestServer::with_weights(anew, &checkpoint()).await?;
    let engine = server.engine()?;
    let checked_output = engine
        .decode_message(izwi_audio::wav::to_bytes(&sweep(1.5, 500.0), HEARD_RATE as u32)?.into())
        .await?;
    let turns = [
        vec![Said::Recording(checked_output)],
        vec![Said::Text("And then?".into())],
        vec![Said::Text("Go on.".into())],
    ];
    let params = GenerationParams {
        temperature: 1.0,
        seed: Some(9),
        max_tokens: 50,
        ..engine.profile().default_params()
    };
    let (mut kept, mut known, mut reused) = (Conversation::new(), 0, 0);
    for turn in turns {
        kept.ask(turn);
        let chat =
            ChatOptions { conversation: kept.clone(), text_temperature: Some(1.0), ..ChatOptions::default() };
        let request = EngineCoreRequest::audio_chat(None, None).with_params(params.clone()).with_chat(chat);
        let before = engine.kv_cache_stats().prefix_hits;
        let answer = engine.generate(request.clone()).await?;
        let again = anew.engine()?.generate(request).await?;
        ensure!(
            answer.emissions == again.emissions && answer.audio == again.audio,
            "the cache is checked_output"
        );
        let hits = (engine.kv_cache_stats().prefix_hits - before) as usize;
        let block = engine.config().block_size;
        ensure!(hits == known / block, "{hits} blocks are reused of {known} positions");
        reused += hits;
        kept.answer(answer.emissions.clone(), answer.stats.prompt_tokens);
        // The last generated position is not computed.
        let is_open = answer.stats.finish_reason != FinishReason::Stop;
        known = answer.stats.prompt_tokens + answer.emissions.len() - usize::from(is_open);
    }
    ensure!(reused > 0 && server.metric("izwi_prefix_cache_hits_total", &[]).await? >= reused as f64);
    server.assert_balanced().await?;
    anew.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_continues_after_an_interrupt() -> Result<()> {
    let server = serve().await?;
    let seed = seed_with_chunks(&server, "Tell me a long story.", 600, 4).await?;
    let mut session = begin(&server, seed, 600).await?;
    session.send(json!({"type": "input.text", "text": "Tell me a long story."})).await?;
    let mut turn = Turn::default();
    while turn.chunks.is_empty() {
        session.more_of(&mut turn).await?;
    }
    session.send(json!({"type": "interrupt"})).await?;
    let turn = session.rest_of_turn(turn).await?;
    ensure!(turn.done["finish_reason"] == "interrupted", "{}", turn.done);
    ensure!(
        turn.done["samples"] == turn.audio().len() / 2 && turn.done["text"] == turn.text,
        "{}",
        turn.done
    );
    server.assert_balanced().await?;
    let hits = server.metric("izwi_prefix_cache_hits_total", &[]).await?;
    let next = send_sweep(&mut session, &sweep(0.8, 400.0)).await?;
    checked_output(&next)?;
    ensure!(next.done["turn"] == 1, "{}", next.done);
    ensure!(server.metric("izwi_prefix_cache_hits_total", &[]).await? > hits, "nothing was kept");
    server.assert_balanced().await?;

    session.send(json!({"type": "input.text", "text": "Tell me a long story."})).await?;
    session.more_of(&mut Turn::default()).await?;
    drop(session);
    server.assert_no_sessions().await?;
    server.assert_balanced().await
}

/// Runs one of the eight sessions: a recording or a text.
async fn work(server: &TestServer, number: usize) -> Result<(String, Vec<u8>)> {
    let texts = ["It is late.", "A cup of tea, please.", "Who goes there?"];
    match number % 3 {
        0 => {
            let mut session = begin(server, number as u64, 30).await?;
            let first =
                checked_output(&send_sweep(&mut session, &sweep(0.6 + number as f64 / 10.0, 500.0)).await?)?;
            let second = checked_output(&write(&mut session, texts[number / 3]).await?)?;
            Ok((first.0 + &second.0, [first.1, second.1].concat()))
        }
        1 => {
            let mut session = server.session().await?;
            let text = texts[number / 3];
            session.send(json!({"type": "speak", "text": text, "seed": number, "max_tokens": 30})).await?;
            session.expect("session.created").await?;
            let utterance = session.utterance().await?;
            session.expect_done(1000).await?;
            let audio = utterance.chunks.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
            Ok((String::new(), audio))
        }
        _ => {
            let file =
                izwi_audio::wav::to_bytes(&sweep(1.0 + number as f64 / 4.0, 600.0), HEARD_RATE as u32)?;
            let form = Form::new().text("model", MODEL).file("file", &file);
            let response = server.post_form("/v1/audio/transcriptions", form).await?;
            let status = response.status();
            let body: Value = guarded(response.json()).await??;
            ensure!(status == 200, "{status} {body}");
            Ok((body["text"].as_str().context("a text")?.to_owned(), Vec::new()))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_mixed_sessions_equal_each_alone_under_preemption() -> Result<()> {
    let server = serve().await?;
    let mut alone = Vec::new();
    for number in 0..8 {
        alone.push(work(&server, number).await?);
    }
    let tight =
        EngineCoreConfig { max_blocks: 8, chunked_prefill_threshold: 24, admission_lookahead: 0, ..config() };
    let tight = TestServer::with_weights(tight, &checkpoint()).await?;
    for server in [&server, &tight] {
        let together = futures::future::try_join_all((0..8).map(|number| work(server, number))).await?;
        for (number, (together, alone)) in together.iter().zip(&alone).enumerate() {
            ensure!(together == alone, "number {number} is another among others");
        }
        server.assert_balanced().await?;
    }
    let preempted = server.metric("izwi_num_preemptions_total", &[]).await?;
    ensure!(preempted > 0.0, "no sequence was preempted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_model_serves_all_three_tasks() -> Result<()> {
    let server = serve().await?;
    let listed: Value = server.get(&format!("/v1/models/{MODEL}")).await?.json().await?;
    ensure!(listed["tasks"] == json!(["tts", "asr", "chat"]) && listed["default"] == true, "{listed}");
    let body = json!({"model": "tts-1", "input": "Yes.", "voice": "uk_female", "max_tokens": 8, "response_format": "pcm"});
    ensure!(server.speech(&body).await?.status() == 200);
    // Without a model name the chat model is used.
    let mut session = server.chat().await?;
    session.send(json!({"type": "session.config", "seed": 1, "max_tokens": 8})).await?;
    let created = session.expect("session.created").await?;
    ensure!(created["model"] == MODEL, "{created}");
    write(&mut session, "Hello.").await?;
    server.assert_balanced().await?;
    for task in ["tts", "chat"] {
        let (model, label) = (format!("model=\"{MODEL}\""), format!("task=\"{task}\""));
        ensure!(server.metric("izwi_requests_total", &[&model, &label]).await? >= 1.0, "{task}");
    }
    Ok(())
}
