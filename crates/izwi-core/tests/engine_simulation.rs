//! The whole engine against an executor that notices every wrong block: thousands of random steps, all seeds fixed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::{Fault, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{
    Engine, EngineCoreConfig, EngineCoreRequest, EngineOutput, FinishReason, GenerationParams, Priority,
    RequestId, SchedulingPolicy,
};

/// A small generator of our own kind: the simulation must repeat exactly.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn config(policy: SchedulingPolicy) -> EngineCoreConfig {
    EngineCoreConfig {
        scheduling_policy: policy,
        max_batch_size: 4,
        max_tokens_per_step: 48,
        max_running_requests: 10,
        chunked_prefill_threshold: 16,
        block_size: 4,
        max_blocks: 28,
        max_seq_len: 100,
        // Few, so that sequences are preempted.
        admission_lookahead: 2,
        ..Default::default()
    }
}

fn simulated(config: &EngineCoreConfig, model: SimulatedModel) -> Engine {
    Engine::with_executor(config.clone(), Box::new(SimulatedExecutor::new(config, model))).unwrap()
}

fn small() -> SimulatedModel {
    SimulatedModel { samples_per_token: 3, passes: 2, ..Default::default() }
}

/// A model whose passes are searches of three branches, which share blocks and part.
fn searching() -> SimulatedModel {
    SimulatedModel { branches: 3, ..small() }
}

/// Blocks with which searches of [`searching`] are preempted, and each fits alone.
const SEARCH_BLOCKS: usize = 36;

/// One of a fixed set of requests; several share a prefix.
fn request(variant: u64) -> EngineCoreRequest {
    let text = match variant % 3 {
        0 => format!("{}{variant}", "a shared beginning, ".repeat(1 + variant as usize % 3)),
        1 => "x".repeat(1 + variant as usize * 2 % 60),
        _ => "a shared beginn".repeat(1 + variant as usize % 2),
    };
    let params = GenerationParams {
        max_tokens: 1 + (variant * 7 % 24) as usize,
        seed: Some(variant),
        ..Default::default()
    };
    let priority = [Priority::Low, Priority::Normal, Priority::High][variant as usize % 3];
    EngineCoreRequest::tts(text).with_params(params).with_priority(priority)
}
const VARIANTS: u64 = 18;

/// What each variant gives when it has the engine to itself.
async fn alone(model: fn() -> SimulatedModel) -> Vec<EngineOutput> {
    let mut outputs = Vec::new();
    for variant in 0..VARIANTS {
        let config = EngineCoreConfig { max_blocks: 64, ..config(SchedulingPolicy::Fcfs) };
        outputs.push(simulated(&config, model()).generate(request(variant)).await.unwrap());
    }
    outputs
}

/// An engine whose executor fails now and then: whole steps, single sequences, panics (never twice in a row).
fn faulty_engine(seed: u64, config: &EngineCoreConfig, model: fn() -> SimulatedModel) -> Engine {
    let mut dice = Dice(seed ^ 0x5eed);
    let mut panicked_last = false;
    let script = Box::new(move |plan: &StepPlan| {
        let fault = match dice.roll(400) {
            0 => Some(Fault::Step),
            1 => plan.schedule.items().next().map(|item| Fault::Sequence(item.sequence)),
            2 if !panicked_last => Some(Fault::Panic),
            _ => None,
        };
        panicked_last = fault == Some(Fault::Panic);
        fault
    });
    simulated(config, SimulatedModel { script: Some(script), ..model() })
}

/// Random adds, aborts, faults and steps; every request must end exactly once, undisturbed ones as if alone.
async fn simulate(
    seed: u64,
    config: &EngineCoreConfig,
    model: fn() -> SimulatedModel,
    steps: u64,
    expected: &[EngineOutput],
) -> (u64, u64) {
    let engine = faulty_engine(seed, config, model);
    let mut dice = Dice(seed);
    let mut open: HashMap<RequestId, u64> = HashMap::new();
    let mut ended: HashSet<RequestId> = HashSet::new();
    let mut aborted: HashSet<RequestId> = HashSet::new();
    let mut reasons: HashMap<FinishReason, u64> = HashMap::new();
    let mut done = 0;
    let mut added = 0;
    while done < steps || !open.is_empty() {
        match dice.roll(10) {
            0..=2 if done < steps && open.len() < 24 => {
                let variant = dice.roll(VARIANTS);
                let id = RequestId::from(format!("r{added}").as_str());
                added += 1;
                engine.add_request(request(variant).with_id(id.clone())).await.unwrap();
                open.insert(id, variant);
            }
            3 if !open.is_empty() && dice.roll(4) == 0 => {
                let mut ids: Vec<&RequestId> = open.keys().collect();
                ids.sort();
                let id = ids[dice.roll(ids.len() as u64) as usize].clone();
                let first_time = aborted.insert(id.clone());
                assert_eq!(engine.abort_request(&id).await.unwrap(), first_time);
            }
            _ => {
                done += 1;
                for output in engine.step().await.unwrap() {
                    let variant = open.remove(&output.request_id).expect("ends once");
                    assert!(ended.insert(output.request_id.clone()));
                    let reason = output.stats.finish_reason;
                    *reasons.entry(reason).or_default() += 1;
                    if matches!(reason, FinishReason::Stop | FinishReason::Length) {
                        let expected = &expected[variant as usize];
                        assert_eq!(output.audio, expected.audio, "variant {variant} was disturbed");
                        assert_eq!(reason, expected.stats.finish_reason);
                    } else if let Some(error) = &output.stats.error {
                        let error = error.to_string();
                        assert!(error.contains("was made to"), "an unforeseen failure: {error}");
                    }
                }
                if done % 64 == 0 {
                    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
                }
            }
        }
        assert!(done < steps + 5_000, "{} requests never end", open.len());
    }
    assert_eq!(ended.len(), added as usize);
    let status = engine.status();
    assert_eq!(status.kv.used_blocks, 0);
    assert_eq!((status.pending, status.running), (0, 0));
    for reason in [FinishReason::Stop, FinishReason::Length, FinishReason::Cancelled, FinishReason::Error] {
        assert!(
            reasons.get(&reason).is_some_and(|&count| count > 5),
            "the simulation saw too few: {reasons:?}"
        );
    }
    (status.steps, status.preemptions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_ends_once_and_as_if_it_were_alone() {
    let expected = alone(small).await;
    let (mut steps, mut preemptions) = (0, 0);
    let policies = SchedulingPolicy::ALL.iter().chain([&SchedulingPolicy::Fcfs]);
    for (seed, &policy) in (1..).zip(policies) {
        let (s, p) = simulate(seed, &config(policy), small, 4_000, &expected).await;
        steps += s;
        preemptions += p;
    }
    assert!(steps >= 10_000, "{steps} steps");
    assert!(preemptions > 100, "{preemptions} preemptions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_end_as_if_they_were_alone() {
    let expected = alone(searching).await;
    let mut preemptions = 0;
    for (seed, &policy) in (11..).zip(SchedulingPolicy::ALL) {
        for preempts in [true, false] {
            let config =
                EngineCoreConfig { max_blocks: SEARCH_BLOCKS, enable_preemption: preempts, ..config(policy) };
            let (_, preempted) = simulate(seed, &config, searching, 3_000, &expected).await;
            assert_eq!(preempted > 0, preempts);
            preemptions += preempted;
        }
    }
    assert!(preemptions > 100, "{preemptions} preemptions");
}

#[tokio::test]
async fn a_search_that_no_pool_holds_fails_alone() {
    let config = EngineCoreConfig { max_blocks: 12, max_seq_len: 48, ..config(SchedulingPolicy::Fcfs) };
    let engine = simulated(&config, SimulatedModel { length: |_, _| 30, passes: 1, ..searching() });
    let params = GenerationParams { max_tokens: 40, ..Default::default() };
    let ran = engine.generate(EngineCoreRequest::tts("four").with_params(params.clone())).await;
    let error = ran.unwrap_err().to_string();
    assert!(error.contains("raise max_blocks or lower beam_size"), "{error}");
    let short = GenerationParams { max_tokens: 3, ..params };
    engine.generate(EngineCoreRequest::tts("four").with_params(short)).await.unwrap();
    assert_eq!(engine.status().kv.used_blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduling_ahead_changes_no_output() {
    for (model, max_blocks) in [(small as fn() -> SimulatedModel, 28), (searching, SEARCH_BLOCKS)] {
        scheduling_ahead_changes_nothing(model, max_blocks).await;
    }
}

async fn scheduling_ahead_changes_nothing(model: fn() -> SimulatedModel, max_blocks: usize) {
    let mut runs = Vec::new();
    for ahead in [true, false] {
        let config = EngineCoreConfig {
            enable_optimistic_scheduling: ahead,
            max_blocks,
            ..config(SchedulingPolicy::Priority)
        };
        let engine = simulated(&config, model());
        let mut outputs = Vec::new();
        for round in 0..6 {
            let requests =
                (0..VARIANTS).map(|variant| engine.generate(request((variant + round) % VARIANTS)));
            outputs.extend(futures::future::join_all(requests).await.into_iter().map(|o| o.unwrap().audio));
        }
        let status = engine.status();
        assert_eq!(status.preschedule_used > 0, ahead, "{status:?}");
        assert_eq!(status.kv.used_blocks, 0);
        runs.push(outputs);
    }
    assert_eq!(runs[0], runs[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_clients_that_read_slowly_or_leave_harm_nobody() {
    let expected = Arc::new(alone(small).await);
    // All of them are served, whether they can be kept or not.
    let config =
        EngineCoreConfig { stream_buffer_chunks: 2, admission: false, ..config(SchedulingPolicy::Fcfs) };
    let engine = simulated(&config, small());
    let whole = Arc::new(AtomicU64::new(0));
    let clients = (0..120u64).map(|client| {
        let (engine, expected, whole) = (engine.clone(), Arc::clone(&expected), Arc::clone(&whole));
        tokio::spawn(async move {
            let mut dice = Dice(client);
            let variant = dice.roll(VARIANTS);
            let request = request(variant).with_chunk_samples(1 + dice.roll(7) as usize);
            let (_, mut chunks) = engine.generate_streaming(request).await.unwrap();
            let leaves_after = (dice.roll(3) == 0).then(|| dice.roll(4));
            let mut samples = Vec::new();
            let mut count = 0;
            while let Some(chunk) = chunks.recv().await {
                assert_eq!(chunk.sequence, count);
                assert_eq!(chunk.sample_offset, samples.len() as u64);
                samples.extend(chunk.samples);
                count += 1;
                if Some(count) == leaves_after.map(|n| n + 1) {
                    return;
                }
                if chunk.is_final {
                    assert_eq!(samples, expected[variant as usize].audio.samples);
                    whole.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                for _ in 0..dice.roll(3) {
                    tokio::task::yield_now().await;
                }
            }
            panic!("the stream ended without a final chunk");
        })
    });
    for client in futures::future::join_all(clients).await {
        client.unwrap();
    }
    engine.drain().await.unwrap();
    assert!(whole.load(Ordering::Relaxed) >= 60);
    assert_eq!(engine.status().kv.used_blocks, 0);
    assert_eq!(engine.check_invariants().await.unwrap(), Ok(()));
}
