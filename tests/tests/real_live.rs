//! Transcription of audio while it is spoken, with real weights: faster than it is spoken, so that windows are full.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::pcm;
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::synthetic::{RATE_HZ, mixed, music};
use izwi_tests::wer::compare;
use izwi_tests::{Session, TestServer};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

const MODEL: &str = "whisper-tiny.en";
const JFK: &str = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for \
                   your country.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speech_between_music_is_transcribed_and_music_is_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = std::env::var_os("IZWI_HOME").map_or(root.join("target/izwi-home"), PathBuf::from);
    let config =
        EngineCoreConfig { model: MODEL.to_owned(), home: Some(home.clone()), ..EngineCoreConfig::default() };
    let engine = Engine::new(config).expect("whisper-tiny.en is missing; run `cargo xtask pull`");
    engine.ready().await.unwrap();
    let registry =
        Registry::new(RegistryConfig { default_asr: Some(MODEL.to_owned()), ..RegistryConfig::new("none") });
    registry.set("none", Slot::Failed("this test has none".to_owned()));
    registry.set(MODEL, Slot::Ready(engine));
    let vad_weights = Some(home.join("models/silero-vad/silero_vad_16k.safetensors"));
    let server = ServerConfig { vad_weights, ..ServerConfig::default() };
    let server = TestServer::listen(server, registry, Recorder::install().unwrap()).await.unwrap();

    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    let speech = decode(std::fs::read(root.join("assets/speech/jfk.wav")).unwrap(), RATE_HZ as u32, &limits);
    let padded = [&vec![0.0; 2 * RATE_HZ][..], &speech.unwrap(), &vec![0.0; 2 * RATE_HZ]].concat();
    let samples = mixed(&padded, &music(15, 0.01));
    let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
    let mut session = Session::open(&url).await.unwrap();
    for piece in samples.chunks(RATE_HZ / 5) {
        let mut bytes = Vec::new();
        pcm::write_i16_le(piece, &mut bytes);
        session.send_raw(Message::binary(bytes)).await.unwrap();
    }
    session.send(json!({"type": "input.done"})).await.unwrap();
    let (mut transcript, mut committed) = (String::new(), String::new());
    loop {
        let frame = session.frame().await.unwrap();
        match frame["type"].as_str().unwrap() {
            "committed" => committed.push_str(frame["text"].as_str().unwrap()),
            "turn.end" => {
                assert_eq!(frame["text"].as_str().unwrap(), committed.trim());
                assert!(frame["start_ms"].as_u64().unwrap() > 1_000, "{frame}");
                transcript = format!("{transcript} {}", committed.trim());
                committed.clear();
            }
            "error" => panic!("{frame}"),
            "session.done" => break,
            _ => {}
        }
    }
    let rate = compare(JFK, &transcript).score().rate();
    assert!(rate <= 0.25, "{rate}: {transcript}");
}
