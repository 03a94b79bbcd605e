//! Steps that fail: one sequence ends, its neighbours notice nothing, and an executor that cannot run ends the engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::future::join_all;
use izwi_core::engine::executor::simulated::{CostCurve, Fault, Script, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::executor::{ExecutorError, StepPlan, build_native};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, EngineError, EngineState, FinishReason, GenerationParams,
    RequestId,
};

use crate::disturbed::Disturbed;
use crate::soon;

const TEXT: &str = "One sentence. Another sentence. A third sentence. The last sentence.";

fn engine(model: SimulatedModel) -> Engine {
    let config = EngineCoreConfig::default();
    let executor = SimulatedExecutor::new(&config, model);
    Engine::with_executor(config, Box::new(executor)).unwrap()
}

/// Faults of steps that contain a request whose id begins with `victim`, at any of its positions from `position` on.
fn poisoned(fault: Fault, position: usize) -> Option<Script> {
    Some(Box::new(move |plan: &StepPlan| {
        let mut victims = plan.schedule.items().filter(|item| item.request_id.as_str().starts_with("victim"));
        victims.any(|item| item.start + item.num_tokens > position).then_some(fault)
    }))
}

/// A request whose samples do not depend on chance.
fn request(text: &str) -> EngineCoreRequest {
    EngineCoreRequest::tts(text).with_params(GenerationParams { seed: Some(7), ..Default::default() })
}

fn victim(number: usize) -> EngineCoreRequest {
    request(TEXT).with_id(RequestId::from(format!("victim{number}").as_str()))
}

/// Requests of different lengths.
fn neighbours() -> impl Iterator<Item = EngineCoreRequest> {
    (0..7).map(|number| request(&TEXT[number..]).with_id(format!("n{number}").as_str().into()))
}

async fn heard(engine: &Engine, request: EngineCoreRequest) -> (Vec<f32>, String, FinishReason) {
    let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
    let (mut samples, mut text) = (Vec::new(), String::new());
    while let Some(chunk) = chunks.recv().await {
        assert_eq!(chunk.sample_offset as usize, samples.len(), "no sample comes twice or is missing");
        samples.extend(chunk.samples);
        text.push_str(&chunk.text.unwrap_or_default());
        if let Some(stats) = chunk.stats {
            return (samples, text, stats.finish_reason);
        }
    }
    panic!("a stream ended without its last chunk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisoned_request_fails_alone_and_its_neighbours_are_as_if_alone() {
    let models: [fn() -> SimulatedModel; 4] = [
        || SimulatedModel { length: |text, _| 40 + text.len(), ..Default::default() },
        || SimulatedModel { autoregressive: false, ..Default::default() },
        || SimulatedModel { passes: 3, length: |text, _| 5 + text.len() % 9, ..Default::default() },
        || SimulatedModel { branches: 3, length: |text, _| 5 + text.len() % 9, ..Default::default() },
    ];
    for (index, model) in models.into_iter().enumerate() {
        let alone = engine(model());
        let mut expected = Vec::new();
        for request in neighbours() {
            expected.push(heard(&alone, request).await);
        }
        for (fault, position) in [(Fault::Panic, 0), (Fault::Step, 0), (Fault::Panic, 90), (Fault::Step, 2)] {
            let shared = engine(SimulatedModel { script: poisoned(fault, position), ..model() });
            let streams = join_all(neighbours().map(|request| heard(&shared, request)));
            let (streams, failed) = tokio::join!(streams, shared.generate(victim(0)));
            assert!(streams == expected, "model {index}, {fault:?} at {position}");
            // Short ones end before the position.
            if index == 0 || position == 0 {
                let error = failed.unwrap_err();
                assert!(matches!(&error, EngineError::Execution(why) if why.contains("made to")), "{error}");
            }
            assert_eq!(shared.status().state, EngineState::Ready);
            assert_eq!(shared.check_invariants().await.unwrap(), Ok(()));
            assert_eq!(shared.kv_cache_stats().used_blocks, 0);
        }
    }
}

/// A step with the victim beyond its first audio fails after it has computed.
fn fails_late(plan: &StepPlan) -> Result<(), ExecutorError> {
    let is_victim = |id: &str| id.starts_with("victim");
    let mut items = plan.schedule.items();
    let fails = items.any(|item| is_victim(item.request_id.as_str()) && !item.is_prefill && item.start > 60);
    if fails { Err(ExecutorError("was made to fail".to_owned())) } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_computes_again_what_a_failed_step_has_lost() {
    let config = EngineCoreConfig {
        model: "pocket-tts-2m".to_owned(),
        random_weights: true,
        max_seq_len: 256,
        ..Default::default()
    };
    let executor = Disturbed::failing(build_native(&config).unwrap(), fails_late);
    let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
    let long = |index: usize| {
        let params = GenerationParams { seed: Some(index as u64), max_tokens: 60, ..Default::default() };
        EngineCoreRequest::tts(&TEXT[..12 + index]).with_params(params)
    };
    let mut expected = Vec::new();
    for index in 0..3 {
        expected.push(heard(&engine, long(index)).await);
    }
    assert!(expected.iter().all(|(samples, ..)| samples.len() > 10_000), "they speak for a while");
    let neighbours = join_all((0..3).map(|index| heard(&engine, long(index))));
    let victim = engine.generate(long(3).with_id(RequestId::from("victim")));
    let (neighbours, failed) = tokio::join!(neighbours, victim);
    assert!(neighbours == expected, "a neighbour of a failed step sounds otherwise");
    assert!(failed.unwrap_err().to_string().contains("was made to fail"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_requests_that_are_sent_again_and_again_stop_nobody() {
    let engine = engine(SimulatedModel { script: poisoned(Fault::Panic, 0), ..Default::default() });
    let expected = engine.generate(request(TEXT)).await.unwrap().audio;
    for number in 0..20 {
        engine.generate(victim(number)).await.unwrap_err();
    }
    let victims = join_all((20..40).map(|number| engine.generate(victim(number))));
    let others = join_all((0..8).map(|_| engine.generate(request(TEXT))));
    let (victims, others) = tokio::join!(victims, others);
    assert!(victims.iter().all(Result::is_err));
    assert!(others.into_iter().all(|output| output.unwrap().audio == expected));
    assert_eq!(engine.status().state, EngineState::Ready);
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_the_sequence_that_is_alone_in_its_step_and_not_the_engine() {
    let mut step = 0;
    let script = Box::new(move |_: &StepPlan| {
        step += 1;
        (step == 2).then_some(Fault::Panic)
    });
    let engine = engine(SimulatedModel { script: Some(script), ..Default::default() });
    let error = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert!(matches!(&error, EngineError::Execution(text) if text.contains("made to panic")), "{error}");
    engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap();
    assert_eq!(engine.status().state, EngineState::Ready);
    assert_eq!(engine.kv_cache_stats().used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_only_panics_ends_the_engine_and_everyone_is_told() {
    let script = Box::new(|_: &StepPlan| Some(Fault::Panic));
    let engine = engine(SimulatedModel { script: Some(script), ..Default::default() });
    for _ in 0..3 {
        engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    }
    let error = engine.generate(EngineCoreRequest::tts(TEXT)).await.unwrap_err();
    assert!(matches!(&error, EngineError::Stopped(reason) if reason.contains("restart")), "{error}");
    assert!(matches!(engine.status().state, EngineState::Dead(_)));
    assert!(engine.run().await.is_err() && engine.ready().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failed_sequence_leaves_its_neighbours_alone() {
    for (fault, reason) in [
        (Fault::Sequence as fn(_) -> _, "was made to fail"),
        (Fault::NonFinite, "samples that are no finite numbers"),
    ] {
        let script = Box::new(move |plan: &StepPlan| {
            let victim = plan.schedule.items().find(|item| item.request_id.as_str() == "victim0");
            victim.map(|item| fault(item.sequence))
        });
        let engine = engine(SimulatedModel { script: Some(script), ..Default::default() });
        let (failed, fine) =
            tokio::join!(engine.generate(victim(0)), engine.generate(EngineCoreRequest::tts(TEXT)));
        assert!(matches!(&failed, Err(EngineError::Execution(why)) if why.contains(reason)), "{failed:?}");
        assert_eq!(fine.unwrap().stats.finish_reason, FinishReason::Stop);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_ends_the_engine() {
    let generating = vec![Duration::from_millis(10), Duration::from_secs(3_600)];
    let cost = CostCurve { generating, ..CostCurve::default() };
    let engine = engine(SimulatedModel { cost: Some(cost), ..Default::default() });
    engine.generate(request(TEXT)).await.unwrap();
    let both = tokio::join!(engine.generate(request(TEXT)), engine.generate(request(TEXT)));
    for error in [both.0.err().unwrap(), both.1.err().unwrap()] {
        assert!(error.to_string().contains("a step did not end within 300 s"), "{error}");
    }
    soon("the engine has ended", || matches!(engine.status().state, EngineState::Dead(_))).await;
}
