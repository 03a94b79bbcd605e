//! Ends of turns by a turn model: a scripted one beside a model of conversations, over the Realtime API, and beside one that
//! transcribes live.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod live;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::executor::simulated::{Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Session, Setup, TestServer, base64};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const RATE_HZ: usize = 24_000;
/// Seconds of audio from which on the scripted model takes a turn for complete.
const COMPLETE_S: usize = 4;
/// Speech, and the pause within a turn. Their sum is less than [`COMPLETE_S`], and with a second part of speech it is more.
const SPEECH_MS: u64 = 1_900;
const PAUSE_MS: u64 = 1_000;

async fn engine(name: &str, model: SimulatedModel) -> Result<Engine> {
    let config =
        EngineCoreConfig { model: name.to_owned(), num_threads: 2, admission: false, ..Default::default() };
    let engine = Engine::with_executor(config.clone(), Box::new(SimulatedExecutor::new(&config, model)))?;
    engine.ready().await?;
    Ok(engine)
}

/// A server with a model of conversations and a turn model.
async fn serve(name: &str, turn_model: SimulatedModel) -> Result<TestServer> {
    let registry = Registry::new(RegistryConfig::new(name));
    let chat = SimulatedModel { chats: true, ..Default::default() };
    registry.set(name, Slot::Ready(engine(name, chat).await?));
    let turns = format!("{name}-turns");
    registry.set(&turns, Slot::Ready(engine(&turns, turn_model).await?));
    TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await
}

fn turn_model() -> SimulatedModel {
    SimulatedModel {
        transcribes: true,
        sample_rate: 16_000,
        min_turn_s: Some(COMPLETE_S),
        ..Default::default()
    }
}

/// A session with this detection of turns, and what is in effect.
async fn connect(server: &TestServer, detection: Value) -> Result<(Session, Value)> {
    let mut session = Session::open(&format!("ws://{}/v1/realtime", server.address)).await?;
    session.expect("session.created").await?;
    let audio = json!({"input": {"turn_detection": detection}});
    session.send(json!({"type": "session.update", "session": {"type": "realtime", "audio": audio}})).await?;
    let updated = session.expect("session.updated").await?;
    let shown = updated["session"]["audio"]["input"]["turn_detection"].clone();
    Ok((session, shown))
}

/// Some words.
fn speech() -> Result<Vec<f32>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/speech/jfk.wav");
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(path)?, RATE_HZ as u32, &limits)?;
    Ok(speech[RATE_HZ * 3 / 10..][..SPEECH_MS as usize * RATE_HZ / 1_000].to_vec())
}

fn silence(ms: u64) -> Vec<f32> {
    vec![0.0; ms as usize * RATE_HZ / 1_000]
}

async fn append(session: &mut Session, samples: &[f32], piece: usize) -> Result<()> {
    for piece in samples.chunks(piece) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send(json!({"type": "input_audio_buffer.append", "audio": base64(&bytes)})).await?;
    }
    Ok(())
}

/// The next events up to one of this type.
async fn until(session: &mut Session, kind: &str) -> Result<Vec<Value>> {
    let mut events = Vec::new();
    loop {
        let event = session.frame().await?;
        ensure!(event["type"] != "error", "{event}");
        let is_last = event["type"] == kind;
        events.push(event);
        if is_last {
            return Ok(events);
        }
    }
}

fn end_ms(events: &[Value]) -> u64 {
    events.last().unwrap()["audio_end_ms"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_a_sentence_is_no_end_and_a_finished_one_is_answered_soon() -> Result<()> {
    let server = serve("ends-of-turns", turn_model()).await?;
    let whole = [speech()?, silence(PAUSE_MS), speech()?, silence(700)].concat();
    let spoken_ms = 2 * SPEECH_MS + PAUSE_MS;
    let semantic = json!({"type": "semantic_vad"});
    let mut ends = Vec::new();
    // As from a microphone, and in large pieces.
    for piece in [RATE_HZ / 50, 2 * RATE_HZ] {
        let (mut session, shown) = connect(&server, semantic.clone()).await?;
        ensure!(shown["type"] == "semantic_vad" && shown["eagerness"] == "auto", "{shown}");
        append(&mut session, &whole, piece).await?;
        let events = until(&mut session, "input_audio_buffer.speech_stopped").await?;
        ensure!(events.len() == 2, "one turn: {events:?}");
        ends.push(end_ms(&events));
        let answer = until(&mut session, "response.done").await?;
        ensure!(answer.last().context("an answer")?["response"]["status"] == "completed", "{answer:?}");
        let is_turn = |event: &Value| event["type"] == "input_audio_buffer.speech_started";
        ensure!(!answer.iter().any(is_turn), "one turn: {answer:?}");
    }
    ensure!(ends[0] == ends[1], "an end depends on the speed of the audio: {ends:?}");
    ensure!((spoken_ms - 300..spoken_ms + 450).contains(&ends[0]), "{ends:?} of {spoken_ms}");
    let (mut session, shown) = connect(&server, json!({"type": "server_vad"})).await?;
    ensure!(shown["type"] == "server_vad" && shown["silence_duration_ms"] == 500, "{shown}");
    append(&mut session, &whole, RATE_HZ / 50).await?;
    let events = until(&mut session, "input_audio_buffer.speech_stopped").await?;
    ensure!(end_ms(&events) < SPEECH_MS + PAUSE_MS, "silence alone cuts the sentence: {events:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentence_that_is_not_finished_ends_by_long_silence() -> Result<()> {
    let server = serve("ends-of-turns-limit", turn_model()).await?;
    for (eagerness, limit_ms) in [("high", 2_000), ("medium", 4_000), ("low", 8_000)] {
        let detection = json!({"type": "semantic_vad", "eagerness": eagerness, "create_response": false});
        let (mut session, shown) = connect(&server, detection).await?;
        ensure!(shown["eagerness"] == eagerness && shown["create_response"] == false, "{shown}");
        let spoken = [speech()?, silence(limit_ms + 700)].concat();
        append(&mut session, &spoken, RATE_HZ / 10).await?;
        let end_ms = end_ms(&until(&mut session, "input_audio_buffer.speech_stopped").await?);
        let due_ms = SPEECH_MS + limit_ms;
        ensure!((due_ms - 400..due_ms + 400).contains(&end_ms), "{eagerness}: {end_ms} of {due_ms}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_leaves_the_end_to_silence() -> Result<()> {
    let failing = SimulatedModel { script: Some(Box::new(|_| Some(Fault::Step))), ..turn_model() };
    let server = serve("ends-of-turns-failing", failing).await?;
    let detection = json!({"type": "semantic_vad", "eagerness": "high", "create_response": false});
    let (mut session, _) = connect(&server, detection).await?;
    let spoken = [speech()?, silence(PAUSE_MS), speech()?, silence(2_700)].concat();
    append(&mut session, &spoken, RATE_HZ / 10).await?;
    let end_ms = end_ms(&until(&mut session, "input_audio_buffer.speech_stopped").await?);
    ensure!(end_ms > 2 * SPEECH_MS + PAUSE_MS + 1_500, "{end_ms}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_or_cleared_in_a_pause_is_not_asked_of() -> Result<()> {
    let server = serve("ends-of-turns-committed", turn_model()).await?;
    let (mut session, _) =
        connect(&server, json!({"type": "semantic_vad", "create_response": false})).await?;
    let spoken = [speech()?, silence(PAUSE_MS), speech()?].concat();
    append(&mut session, &spoken, 2 * RATE_HZ).await?;
    session.send(json!({"type": "input_audio_buffer.clear"})).await?;
    until(&mut session, "input_audio_buffer.cleared").await?;
    append(&mut session, &spoken, 2 * RATE_HZ).await?;
    session.send(json!({"type": "input_audio_buffer.commit"})).await?;
    until(&mut session, "input_audio_buffer.committed").await?;
    append(&mut session, &[spoken, silence(700)].concat(), RATE_HZ).await?;
    until(&mut session, "input_audio_buffer.speech_stopped").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_such_a_model_silence_ends_turns() -> Result<()> {
    let server = Setup::converser("ends-of-turns-without").start().await?;
    connect(&server, json!({"type": "semantic_vad"})).await?;
    let detection = json!({"type": "semantic_vad", "eagerness": "medium", "create_response": false});
    let (mut session, shown) = connect(&server, detection).await?;
    ensure!(shown["type"] == "server_vad" && shown["create_response"] == false, "{shown}");
    let audio = json!({"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "soon"}}});
    session.send(json!({"type": "session.update", "session": {"audio": audio}})).await?;
    let error = session.expect("error").await?["error"].clone();
    ensure!(error["param"] == "session.audio.input.turn_detection.eagerness", "{error}");
    ensure!(
        error["message"].as_str().is_some_and(|told| told.contains("low, medium, high or auto")),
        "{error}"
    );
    Ok(())
}
