//! The engine with the real default ear: what is heard does not depend on company, interruption or length.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use izwi_core::engine::{
    DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, EngineOutput, FinishReason,
    TranscriptionOptions,
};

const CLIPS: [&str; 6] = [
    "jfk.wav",
    "sense_and_sensibility_01_austen_64kb-0870.wav",
    "sense_and_sensibility_01_austen_64kb-0880.wav",
    "sense_and_sensibility_01_austen_64kb-0890.wav",
    "sense_and_sensibility_01_austen_64kb-0920.wav",
    "sense_and_sensibility_01_austen_64kb-0930.wav",
];
const JFK: &str = "And so my fellow Americans, ask not what your country can do for you, ask what you can do for \
                   your country.";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn clip(name: &str) -> Vec<u8> {
    std::fs::read(root().join("assets/speech").join(name)).unwrap()
}

fn config() -> EngineCoreConfig {
    let home = std::env::var_os("IZWI_HOME").map_or(root().join("target/izwi-home"), PathBuf::from);
    EngineCoreConfig { model: "whisper-tiny.en".to_owned(), home: Some(home), ..Default::default() }
}

fn engine(config: EngineCoreConfig) -> Engine {
    Engine::new(config).expect("the small ear is needed; run `cargo xtask pull`")
}

/// Tokens and times of everything that was heard.
fn heard(output: &EngineOutput) -> Vec<(Vec<u32>, String, String)> {
    let segments = &output.transcript.as_ref().unwrap().segments;
    let times = |s: &izwi_core::engine::Segment| format!("{:.3}..{:.3}", s.start_s, s.end_s);
    segments.iter().map(|s| (s.tokens.clone(), s.text.clone(), times(s))).collect()
}

/// Waits until nothing runs, and checks that every block came back.
async fn at_rest(engine: &Engine) {
    for _ in 0..4_000 {
        let status = engine.status();
        if status.running + status.pending + status.kv.used_blocks == 0 {
            assert_eq!(engine.check_books().await.unwrap(), Ok(()));
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("the engine never rests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_heard_is_the_same_alone_among_six_and_preempted() {
    let alone = engine(config());
    let mut expected = Vec::new();
    for name in CLIPS {
        let output = alone.generate(EngineCoreRequest::asr(clip(name))).await.unwrap();
        assert_eq!(output.stats.finish_reason, FinishReason::Stop);
        assert!(output.stats.audio_duration > Duration::from_secs(2), "the recording's length is known");
        expected.push(heard(&output));
    }
    // Blocks for about three of them: the others are preempted in mid-sentence again and again.
    let crowded = EngineCoreConfig { max_blocks: 9, chunked_prefill_threshold: 2, ..config() };
    for together in [engine(config()), engine(crowded)] {
        let requests = CLIPS.iter().map(|name| together.generate(EngineCoreRequest::asr(clip(name))));
        let outputs = futures::future::join_all(requests).await;
        for (output, expected) in outputs.into_iter().zip(&expected) {
            assert_eq!(heard(&output.unwrap()), *expected);
        }
        at_rest(&together).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_in_any_step_frees_every_block() {
    let engine = engine(config());
    for steps in [0, 1, 2, 5, 12] {
        let id = engine.add_request(EngineCoreRequest::asr(clip(CLIPS[0]))).await.unwrap();
        for _ in 0..steps {
            engine.step().await.unwrap();
        }
        assert_eq!(engine.kv_cache_stats().used_blocks > 0, steps > 0, "after {steps} steps");
        assert!(engine.abort_request(&id).await.unwrap());
        at_rest(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clip_that_everybody_knows_is_exact() {
    let engine = engine(EngineCoreConfig { model: "whisper-base".to_owned(), ..config() });
    let options = TranscriptionOptions { word_timestamps: true, ..Default::default() };
    let request = EngineCoreRequest::asr(clip("jfk.wav")).with_transcription(options);
    let output = engine.generate(request).await.unwrap();
    let plain = |text: &str| text.replace(',', "");
    assert_eq!(plain(output.text.as_deref().unwrap()), plain(JFK));
    let transcript = output.transcript.unwrap();
    assert_eq!(transcript.language.as_deref(), Some("en"));
    let words: Vec<_> = transcript.segments.iter().flat_map(|s| &s.words).collect();
    assert_eq!(words.len(), 22);
    assert!(words.is_sorted_by(|a, b| a.end_s <= b.end_s && a.start_s <= b.start_s));
    assert!(words.iter().all(|word| word.start_s <= word.end_s && word.end_s <= 11.1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_models_share_a_device_turn_by_turn() {
    let arbiter = DeviceArbiter::new();
    let ear = Engine::sharing(config(), &arbiter).unwrap();
    let voice =
        Engine::sharing(EngineCoreConfig { model: "hibari".to_owned(), ..config() }, &arbiter).unwrap();
    let text = "One sentence. Another sentence. A third sentence.";
    let requests = CLIPS.iter().map(|name| ear.generate(EngineCoreRequest::asr(clip(name))));
    let spoken = voice.generate(EngineCoreRequest::tts(text));
    let (heard, spoken) = futures::future::join(futures::future::join_all(requests), spoken).await;
    assert!(heard.iter().all(|output| !output.as_ref().unwrap().text.as_ref().unwrap().is_empty()));
    assert!(spoken.unwrap().audio.duration() > Duration::from_secs(2));
}
