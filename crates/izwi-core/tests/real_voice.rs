//! The engine with the real default voice: what is spoken does not depend on company, order or delivery.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, GenerationParams};

const TEXTS: [&str; 8] = [
    "Hello.",
    "The committee will meet again on Thursday morning to review the budget, and everyone is invited. Bring coffee.",
    "It is 7:30 pm, and dinner costs $12.50. Nobody minds.",
    "One. Two. Three. Four.",
    "Where were you when the lights went out?",
    "A sentence of middling length, with one clause in it.",
    "Xylophonist Zbigniew Brzezinski lives in Llanfairpwllgwyngyll.",
    "First this; then that: finally the other thing! Is that all?",
];

fn engine(max_batch_size: usize) -> Engine {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/izwi-home");
    let home = std::env::var_os("IZWI_HOME").map_or(default, PathBuf::from);
    let config = EngineCoreConfig { home: Some(home), max_batch_size, ..Default::default() };
    Engine::new(config).expect("the default voice is needed; run `cargo xtask pull`")
}

fn request(index: usize, seed: u64) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(seed), ..Default::default() };
    EngineCoreRequest::tts(TEXTS[index]).with_params(params)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_seed_gives_the_same_samples_alone_or_among_eight() {
    let alone = engine(1);
    let mut expected = Vec::new();
    for (index, text) in TEXTS.iter().enumerate() {
        let output = alone.generate(request(index, index as u64)).await.unwrap();
        assert_eq!(output.stats.finish_reason, FinishReason::Stop);
        let seconds = output.audio.duration().as_secs_f32();
        assert!((0.3..30.0).contains(&seconds), "{text} takes {seconds} s");
        let loudest = output.audio.samples.iter().fold(0.0f32, |max, sample| max.max(sample.abs()));
        assert!((0.05..=2.0).contains(&loudest), "loudest sample {loudest}");
        expected.push(output.audio.samples);
    }
    let together = engine(8);
    let outputs =
        futures::future::join_all((0..8).rev().map(|i| together.generate(request(i, i as u64)))).await;
    for (output, expected) in outputs.into_iter().rev().zip(&expected) {
        assert!(output.unwrap().audio.samples == *expected, "company changed the samples");
    }
    let other_seed = together.generate(request(0, 99)).await.unwrap();
    assert!(other_seed.audio.samples != expected[0], "another seed, another breath");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_chunks_join_to_the_whole() {
    let engine = engine(8);
    let whole = engine.generate(request(1, 5)).await.unwrap().audio.samples;
    let (_, mut chunks) = engine.generate_streaming(request(1, 5)).await.unwrap();
    let mut samples = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        assert!(chunk.is_final || chunk.samples.len() == 4_800);
        samples.extend(chunk.samples);
    }
    assert!(samples == whole);
}
