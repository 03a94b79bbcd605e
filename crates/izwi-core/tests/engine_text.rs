//! Text that arrives while it is spoken: the same audio as of the whole text, holding, limits, timeouts, disconnects.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, GenerationParams, RequestId, RequestStats,
    StreamingOutput, TextInput,
};
use tokio::sync::mpsc::Receiver;

use crate::soon;

const TEXT: &str = "The quick brown fox jumps over the lazy dog, and the dog sleeps on.";

fn engine_with(config: EngineCoreConfig, model: SimulatedModel) -> Engine {
    let model = SimulatedModel { appends_text: true, ..model };
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

fn engine() -> Engine {
    engine_with(EngineCoreConfig::default(), SimulatedModel::default())
}

fn request(text: &str, seed: u64) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(seed), ..GenerationParams::default() };
    EngineCoreRequest::tts(text).with_params(params).with_streams_text(true)
}

/// The samples and statistics of a stream, without gaps.
async fn collect(mut chunks: Receiver<StreamingOutput>) -> (Vec<f32>, RequestStats) {
    let (mut samples, mut stats) = (Vec::new(), None);
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.sample_offset, samples.len() as u64);
        samples.extend(chunk.samples);
        stats = chunk.stats;
    }
    (samples, stats.expect("the stream ends with statistics"))
}

/// Speaks `text` in pieces of `size` bytes, the first of them with the request; waits for each to be spoken if `waits`.
async fn in_pieces(engine: &Engine, text: &str, seed: u64, size: usize, waits: bool) -> Vec<f32> {
    let mut pieces = text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap());
    let input = TextInput::new();
    let begun = request(pieces.next().unwrap(), seed).with_text_input(input.clone()).with_live(false);
    let (_, chunks) = engine.generate_streaming(begun).await.unwrap();
    let collected = tokio::spawn(collect(chunks));
    for piece in pieces {
        if waits {
            soon("the text has run out", || engine.status().awaiting_input > 0).await;
        }
        input.append(piece).unwrap();
    }
    input.finish().unwrap();
    let (samples, stats) = collected.await.unwrap();
    assert_eq!(stats.finish_reason, FinishReason::Stop);
    samples
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_in_pieces_gives_the_audio_of_the_whole_text_alone_and_in_a_batch() {
    let engine = engine();
    let whole = engine.generate(request(TEXT, 5)).await.unwrap().audio.samples;
    assert_eq!(whole.len(), (TEXT.len() + 1) * 1_920);
    for (size, waits) in [(1, false), (4, true), (11, false), (30, true), (200, false)] {
        assert!(in_pieces(&engine, TEXT, 5, size, waits).await == whole, "in pieces of {size}");
    }
    // A pool that is too small for all: sequences that wait are preempted, and recomputed with their text.
    let config = EngineCoreConfig { max_blocks: 10, admission_lookahead: 1, ..EngineCoreConfig::default() };
    let crowded = engine_with(config, SimulatedModel::default());
    let spoken = (0..6).map(|n| in_pieces(&crowded, TEXT, 5, 3 + n * 5, n % 2 == 0));
    for samples in futures::future::join_all(spoken).await {
        assert!(samples == whole, "in a crowd");
    }
    assert!(crowded.status().preemptions > 0);
    crowded.check_invariants().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_may_arrive_and_end_before_its_request_is_prepared() {
    let engine = engine();
    let whole = engine.generate(request(TEXT, 5)).await.unwrap().audio.samples;
    let input = TextInput::new();
    assert_eq!(input.tokens_left(), None);
    input.append(&TEXT[4..]).unwrap();
    input.finish().unwrap();
    input.finish().unwrap();
    assert!(input.append("more").unwrap_err().to_string().contains("ended already"));
    let begun = request(&TEXT[..4], 5).with_text_input(input);
    assert!(engine.generate(begun).await.unwrap().audio.samples == whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_text_takes_no_step_and_no_place() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&steps);
    let script = Box::new(move |_: &StepPlan| {
        counter.fetch_add(1, Ordering::SeqCst);
        None
    });
    let config = EngineCoreConfig { max_batch_size: 1, ..EngineCoreConfig::default() };
    let engine = engine_with(config, SimulatedModel { script: Some(script), ..Default::default() });
    let input = TextInput::new();
    let begun = request("Abc", 1).with_text_input(input.clone());
    let (_, chunks) = engine.generate_streaming(begun).await.unwrap();
    soon("the text has run out", || engine.status().awaiting_input == 1).await;
    assert_eq!(steps.load(Ordering::SeqCst), 3, "a step a byte");
    let other = engine.generate(request("Hello", 2)).await.unwrap();
    assert_eq!((other.audio.samples.len(), steps.load(Ordering::SeqCst)), (6 * 1_920, 3 + 6));
    assert_eq!(engine.status().awaiting_input, 1);
    input.append("d").unwrap();
    input.finish().unwrap();
    let (samples, stats) = collect(chunks).await;
    assert_eq!((samples.len(), stats.finish_reason), (5 * 1_920, FinishReason::Stop));
    assert_eq!(steps.load(Ordering::SeqCst), 3 + 6 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_text_that_does_not_go_on_ends_after_the_timeout() {
    let cost = CostCurve { fixed: Duration::from_millis(5), ..CostCurve::default() };
    let config = EngineCoreConfig { text_timeout: Duration::from_secs(7), ..EngineCoreConfig::default() };
    let engine = engine_with(config, SimulatedModel { cost: Some(cost), ..Default::default() });
    let input = TextInput::new();
    let begun = request("Abc", 1).with_text_input(input.clone());
    let (_, chunks) = engine.generate_streaming(begun).await.unwrap();
    let collected = tokio::spawn(collect(chunks));
    // Text before the time is over starts it again.
    tokio::time::sleep(Duration::from_secs(6)).await;
    input.append("d").unwrap();
    let began = tokio::time::Instant::now();
    let (samples, stats) = collected.await.unwrap();
    assert_eq!((samples.len(), stats.finish_reason), (4 * 1_920, FinishReason::TextTimeout));
    let message = stats.error.unwrap().to_string();
    assert!(message.contains("7 s") && message.contains("text_timeout"), "{message}");
    let waited = began.elapsed();
    assert!((7_000..7_100).contains(&waited.as_millis()), "{waited:?} of simulated time");
    assert!(stats.generation_time < Duration::from_secs(1), "waiting for text is no generation");
    assert_eq!(engine.status().running, 0);
    input.append("too late").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborts_and_disconnects_end_a_request_that_waits_for_text() {
    let engine = engine();
    let begin = async |id: &str| {
        let input = TextInput::new();
        let begun = request("Abc", 1).with_text_input(input.clone()).with_id(RequestId::from(id));
        let (_, chunks) = engine.generate_streaming(begun).await.unwrap();
        soon("the text has run out", || engine.status().awaiting_input == 1).await;
        (input, chunks)
    };
    let (_input, chunks) = begin("aborted").await;
    assert!(engine.abort_request(&RequestId::from("aborted")).await.unwrap());
    let (samples, stats) = collect(chunks).await;
    assert_eq!((samples.len(), stats.finish_reason), (3 * 1_920, FinishReason::Cancelled));

    let (_input, chunks) = begin("interrupted").await;
    assert!(engine.interrupt_request(&RequestId::from("interrupted")).await.unwrap());
    assert_eq!(collect(chunks).await.1.finish_reason, FinishReason::Interrupted);

    let (_input, chunks) = begin("left").await;
    drop(chunks);
    soon("the request is gone", || engine.status().running == 0).await;
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
    engine.check_invariants().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_does_not_fit_is_refused_and_the_request_goes_on() {
    let engine = engine();
    let input = TextInput::new();
    let begun = request("Abc", 1).with_text_input(input.clone());
    let (_, chunks) = engine.generate_streaming(begun).await.unwrap();
    assert_eq!(input.tokens_left(), Some(997));
    assert!(input.append(&"x".repeat(998)).unwrap_err().to_string().contains("1001 bytes"));
    input.append("d").unwrap();
    input.finish().unwrap();
    assert_eq!(collect(chunks).await.0.len(), 5 * 1_920);

    let whole = Engine::with_executor(
        EngineCoreConfig::default(),
        Box::new(SimulatedExecutor::new(&EngineCoreConfig::default(), SimulatedModel::default())),
    );
    let refused = whole.unwrap().generate(request("Abc", 1).with_text_input(TextInput::new())).await;
    assert!(refused.unwrap_err().to_string().contains("as a whole"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_text_in_one_voice_finds_the_prefix_of_the_voice() {
    let engine = engine();
    engine.generate(request("First text.", 1)).await.unwrap();
    let before = engine.kv_cache_stats().prefix_hits;
    let samples = in_pieces(&engine, "Another one", 2, 4, false).await;
    assert_eq!(samples.len(), 12 * 1_920);
    assert_eq!(engine.kv_cache_stats().prefix_hits - before, 2, "40 positions are two blocks of 16, and 8");
}
