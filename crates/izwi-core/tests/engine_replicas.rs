//! Replicas of a model on several devices: which one a request goes to, what is heard, and what happens when one fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{CostCurve, Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    Conversation, DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, EngineError, EngineState,
    GenerationParams, Message, ModelExecutor, PlaybackReport, ReplicaStatus, RequestId,
};
use tokio::time::{Instant, sleep};

use crate::{soon, states};

/// A hundred frames, 8 s.
const TEXT: &str =
    "A text of exactly one hundred characters, which this model speaks in a hundred frames of audio, ends";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config() -> EngineCoreConfig {
    EngineCoreConfig { enable_prefix_caching: false, max_first_audio: ms(1_000), ..Default::default() }
}

/// A model of `fixed_ms` a step and `each_ms` for each stream in it; a frame has 80 ms of audio.
fn speaker(fixed_ms: u64, each_ms: u64) -> SimulatedModel {
    let generating = (1..=8).map(|count| ms(each_ms * count)).collect();
    let cost = CostCurve { fixed: ms(fixed_ms), generating, prompt_token: ms(1), ..CostCurve::default() };
    SimulatedModel { length: |text, _| text.len(), cost: Some(cost), ..Default::default() }
}

/// The models on a device each.
fn replicas(models: Vec<SimulatedModel>) -> Engine {
    let executor = |model| {
        let executor: Box<dyn ModelExecutor> = Box::new(SimulatedExecutor::new(&config(), model));
        (executor, DeviceArbiter::new())
    };
    Engine::with_replicas(config(), models.into_iter().map(executor).collect()).unwrap()
}

/// Waits until every replica is warm; an engine is ready with the first.
async fn all_ready(engine: &Engine) {
    engine.ready().await.unwrap();
    let is_ready = |replica: &ReplicaStatus| replica.engine.state == EngineState::Ready;
    soon("all replicas are warm", || states(engine).iter().all(is_ready)).await;
}

/// Steps of each replica so far.
fn steps(engine: &Engine) -> Vec<u64> {
    states(engine).iter().map(|replica| replica.engine.steps).collect()
}

/// Plays a stream at once, after the silence that it asks for. Returns how long it was silent in between.
async fn listen(engine: &Engine) -> Result<Duration, EngineError> {
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(TEXT)).await?;
    let (mut gaps, mut end) = (Duration::ZERO, None::<Instant>);
    while let Some(chunk) = chunks.recv().await {
        let (now, length) = (Instant::now(), Duration::from_secs_f64(chunk.samples.len() as f64 / 24_000.0));
        if !length.is_zero() {
            let prebuffer = chunk.prediction.map_or(Duration::ZERO, |told| told.prebuffer);
            let played = end.unwrap_or(now + prebuffer);
            gaps += now.saturating_duration_since(played);
            end = Some(played.max(now) + length);
        }
    }
    Ok(gaps)
}

/// How many of `count` listeners who come `gap` apart are accepted. None of those hears a gap.
async fn accepted(engine: &Engine, count: u32, gap: Duration) -> usize {
    all_ready(engine).await;
    for _ in 0..6 {
        engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    }
    let listeners = (0..count).map(|index| async move {
        sleep(gap * index).await;
        listen(engine).await
    });
    let outcomes = futures::future::join_all(listeners).await;
    for outcome in &outcomes {
        match outcome {
            Ok(gaps) => assert_eq!(*gaps, Duration::ZERO),
            Err(error) => assert!(matches!(error, EngineError::Saturated { .. }), "{error}"),
        }
    }
    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
}

#[tokio::test(start_paused = true)]
async fn two_devices_take_the_listeners_of_both_and_nobody_hears_a_gap() {
    let fast = accepted(&replicas(vec![speaker(10, 8)]), 30, ms(100)).await;
    let slow = accepted(&replicas(vec![speaker(20, 20)]), 30, ms(100)).await;
    let engine = replicas(vec![speaker(20, 20), speaker(10, 8)]);
    let both = accepted(&engine, 30, ms(100)).await;
    assert!(fast > slow && slow >= 2, "{fast}, {slow}");
    assert!(both >= fast + slow - 1, "{both} of {fast} and {slow}");
}

#[tokio::test(start_paused = true)]
async fn a_listener_goes_to_the_device_on_which_it_is_heard_first() {
    let engine = replicas(vec![speaker(60, 10), speaker(10, 8)]);
    all_ready(&engine).await;
    // Both have learned what they cost.
    for _ in 0..6 {
        listen(&engine).await.unwrap();
    }
    let before = steps(&engine);
    listen(&engine).await.unwrap();
    let after = steps(&engine);
    assert_eq!(before[0], after[0], "the slow one rests: {before:?}, {after:?}");
    assert!(after[1] >= before[1] + 100, "{before:?}, {after:?}");
}

#[tokio::test(start_paused = true)]
async fn who_interrupts_a_stream_of_a_full_replica_is_accepted_at_once() {
    let engine = replicas(vec![speaker(60, 10)]);
    all_ready(&engine).await;
    for _ in 0..6 {
        engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    }
    for _ in 0..3 {
        let request = || EngineCoreRequest::tts(TEXT.repeat(6));
        let (id, _chunks) = engine.generate_streaming(request()).await.unwrap();
        sleep(ms(4_000)).await;
        assert!(engine.interrupt_request(&id).await.unwrap());
        let (id, _chunks) = engine.generate_streaming(request()).await.expect("nothing else plays");
        assert!(engine.interrupt_request(&id).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_at_once_are_spread() {
    let engine = replicas(vec![speaker(20, 10), speaker(20, 10)]);
    all_ready(&engine).await;
    let generate = || engine.generate(EngineCoreRequest::tts(TEXT));
    let before = steps(&engine);
    let begun = Instant::now();
    let outputs = futures::future::join_all((0..16).map(|_| generate())).await;
    let together = begun.elapsed();
    assert!(
        outputs.iter().all(|output| output.as_ref().is_ok_and(|output| !output.audio.samples.is_empty()))
    );
    let took: Vec<u64> = steps(&engine).iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(took.iter().all(|steps| (100..200).contains(steps)), "eight each, in steps of eight: {took:?}");
    // 100 steps of 100 ms, and some for prompts; one device would take twice as long.
    assert!(together < Duration::from_secs(16), "{together:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_has_the_samples_of_one_device_alone() {
    let request = |seed: u64| {
        let params = GenerationParams { seed: Some(seed), ..Default::default() };
        EngineCoreRequest::tts("A few words.").with_params(params)
    };
    let alone = replicas(vec![SimulatedModel::default()]);
    let engine = replicas(vec![SimulatedModel::default(), SimulatedModel::default()]);
    let both = futures::future::join_all((0..12).map(|seed| engine.generate(request(seed)))).await;
    for (seed, output) in (0..12).zip(both) {
        let expected = alone.generate(request(seed)).await.unwrap();
        assert_eq!(output.unwrap().audio, expected.audio, "seed {seed}");
    }
    assert!(steps(&engine).iter().all(|steps| *steps > 0), "{:?}", steps(&engine));
    assert_eq!(engine.metrics().await.total_requests, 12, "one window for both");
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
    assert_eq!((engine.kv_cache_stats().used_blocks, engine.status().running), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_to_the_replica_that_has_the_conversation() {
    let config = || EngineCoreConfig { block_size: 4, ..Default::default() };
    let chatter = || {
        let model = SimulatedModel { chats: true, ..speaker(20, 10) };
        let executor: Box<dyn ModelExecutor> = Box::new(SimulatedExecutor::new(&config(), model));
        (executor, DeviceArbiter::new())
    };
    let engine = Engine::with_replicas(config(), vec![chatter(), chatter()]).unwrap();
    all_ready(&engine).await;
    let turn = async |conversation: &mut Conversation, text: &str| {
        conversation.ask(vec![Message::Text(text.to_owned())]);
        let output = engine.generate(EngineCoreRequest::converse(conversation.clone())).await.unwrap();
        let known = output.stats.prompt_tokens + output.emissions.len() - 1;
        conversation.answer(output.emissions, output.stats.prompt_tokens);
        known
    };
    let (mut first, mut second) = (Conversation::new(), Conversation::new());
    let first_words = "Good evening. Have you read what the weather will be like tomorrow?";
    let (mut of_first, mut of_second) =
        tokio::join!(turn(&mut first, first_words), turn(&mut second, "Good morning. Who are you, and why?"));
    let begun = steps(&engine);
    assert!(begun.iter().all(|steps| *steps > 0), "a conversation on each: {begun:?}");
    let mut places = Vec::new();
    for round in 0..3 {
        for (conversation, known) in [(&mut first, &mut of_first), (&mut second, &mut of_second)] {
            let (before, hits) = (steps(&engine), engine.kv_cache_stats().prefix_hits);
            let computed = std::mem::replace(known, turn(conversation, "And then?").await);
            let grew: Vec<bool> = steps(&engine).iter().zip(before).map(|(now, then)| *now > then).collect();
            assert_eq!(grew.iter().filter(|grew| **grew).count(), 1, "round {round}: {grew:?}");
            let hits = engine.kv_cache_stats().prefix_hits - hits;
            assert_eq!(hits as usize, computed / 4, "round {round}: of {computed} positions");
            places.push(grew[0]);
        }
    }
    assert!(places.chunks(2).all(|pair| pair[0] != pair[1] && pair[0] == places[0]), "{places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_fails_takes_no_more_requests_and_the_other_goes_on() {
    let script = Box::new(|_: &StepPlan| Some(Fault::Panic));
    let faulty = SimulatedModel { script: Some(script), ..Default::default() };
    let engine = replicas(vec![faulty, SimulatedModel::default()]);
    let is_dead = |index: usize| matches!(states(&engine)[index].engine.state, EngineState::Dead(_));
    let mut failed = 0;
    for _ in 0..200 {
        failed += usize::from(engine.generate(EngineCoreRequest::tts(TEXT)).await.is_err());
        if is_dead(0) {
            break;
        }
    }
    assert!(is_dead(0) && !is_dead(1) && failed <= 3, "{failed} requests were in its steps");
    for _ in 0..8 {
        engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    }
    assert_eq!((engine.status().state, engine.failure()), (EngineState::Ready, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_replicas_fail_the_engine_does() {
    let faulty = || {
        let script = Box::new(|_: &StepPlan| Some(Fault::Panic));
        SimulatedModel { script: Some(script), ..Default::default() }
    };
    let engine = replicas(vec![faulty(), faulty()]);
    for _ in 0..6 {
        engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    }
    let reason = tokio::time::timeout(Duration::from_secs(10), engine.ended()).await.unwrap().unwrap();
    assert_eq!(reason.matches("failed repeatedly").count(), 2, "{reason}");
    let error = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert!(matches!(error, EngineError::Stopped(_)), "{error}");
    assert!(engine.run().await.is_err() && engine.ready().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_find_their_request_on_any_replica() {
    let slow = || SimulatedModel { step_time: ms(5), ..Default::default() };
    let engine = replicas(vec![slow(), slow()]);
    all_ready(&engine).await;
    let long = "x".repeat(2_000);
    let mut streams = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let request = EngineCoreRequest::tts(&long).with_id(RequestId::from(name));
        streams.push(engine.generate_streaming(request).await.unwrap());
    }
    soon("both replicas run", || states(&engine).iter().all(|replica| replica.engine.running > 0)).await;
    let numbers: Vec<_> = engine.status().streams.iter().map(|(id, _)| id.0).collect();
    assert_eq!(numbers.len(), numbers.iter().collect::<std::collections::HashSet<_>>().len(), "{numbers:?}");
    for (id, _) in &streams {
        engine.playback_ack(id, PlaybackReport { played: ms(1), silence: None }).unwrap();
        assert!(engine.abort_request(id).await.unwrap(), "{id}");
        assert!(!engine.abort_request(id).await.unwrap(), "{id} is over");
    }
    assert!(!engine.abort_request(&RequestId::from("nobody")).await.unwrap());
    soon("all blocks are free", || engine.kv_cache_stats().used_blocks == 0).await;

    // Queued, run by steps, and returned by the last.
    engine.pause().unwrap();
    let id = engine.add_request(EngineCoreRequest::tts(TEXT)).await.unwrap();
    let mut ended = Vec::new();
    while engine.status().running + engine.status().pending > 0 {
        ended.extend(engine.step().await.unwrap());
    }
    assert_eq!(ended.iter().map(|output| &output.request_id).collect::<Vec<_>>(), [&id]);

    engine.resume().unwrap();
    engine.drain().await.unwrap();
    let refused = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert!(matches!(refused, EngineError::Draining), "{refused}");
    engine.stop();
    engine.run().await.unwrap();
    assert_eq!(engine.ended().await, None);
    assert_eq!(engine.status().state, EngineState::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_end_with_the_last_handle() {
    let engine = replicas(vec![SimulatedModel::default(), SimulatedModel::default()]);
    engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    let ended = engine.ended();
    drop(engine);
    tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
}

#[tokio::test]
async fn an_engine_needs_a_device() {
    let none: Vec<(Box<dyn ModelExecutor>, Arc<DeviceArbiter>)> = Vec::new();
    let error = Engine::with_replicas(config(), none).unwrap_err().to_string();
    assert!(error.contains("devices = []") && error.contains("at least one"), "{error}");
}
