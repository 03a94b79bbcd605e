//! Virtual time: on a paused clock steps take the time of a cost curve, and no real time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel, StepWork};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, RequestStats};

fn curve() -> CostCurve {
    CostCurve {
        fixed: Duration::from_millis(5),
        generating: vec![Duration::from_millis(40), Duration::from_millis(60)],
        prompt_token: Duration::from_millis(1),
        ..CostCurve::default()
    }
}

/// The statistics of `count` equal requests for ten frames that start together.
async fn run(count: usize, cost: CostCurve) -> Vec<RequestStats> {
    let config = EngineCoreConfig { enable_prefix_caching: false, ..Default::default() };
    let model = SimulatedModel { length: |_, _| 10, cost: Some(cost), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
    engine.ready().await.unwrap();
    let requests = (0..count).map(|_| engine.generate(EngineCoreRequest::tts("a text of 20 letters")));
    let outputs = futures::future::join_all(requests).await;
    outputs.into_iter().map(|output| output.unwrap().stats).collect()
}

#[tokio::test(start_paused = true)]
async fn steps_take_the_time_of_the_curve() {
    let stats = run(1, curve()).await.remove(0);
    assert_eq!(stats.time_to_first_audio, Some(Duration::from_millis(5 + 40 + 20)));
    assert_eq!(stats.generation_time, Duration::from_millis(10 * 45 + 20));
}

#[tokio::test(start_paused = true)]
async fn the_warm_up_is_no_part_of_the_time_of_a_request() {
    let config = EngineCoreConfig::default();
    let model = SimulatedModel { length: |_, _| 10, cost: Some(curve()), ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    let engine = Engine::with_executor(config, Box::new(executor)).unwrap();
    let asked = tokio::time::Instant::now();
    let stats = engine.generate(EngineCoreRequest::tts("a text of 20 letters")).await.unwrap().stats;
    assert_eq!(stats.generation_time, Duration::from_millis(10 * 45 + 20));
    assert!(asked.elapsed() > stats.generation_time + Duration::from_millis(500), "{stats:?}");
}

/// Steps that were scheduled ahead and executed, and those that were discarded, while one request runs and statistics are
/// asked for all the time.
async fn scheduled_ahead(noise: f64) -> (u64, u64) {
    let config = EngineCoreConfig::default();
    let cost = CostCurve { noise, ..curve() };
    let model = SimulatedModel { length: |_, _| 60, cost: Some(cost), ..Default::default() };
    let engine =
        Engine::with_executor(config.clone(), Box::new(SimulatedExecutor::new(&config, model))).unwrap();
    let asking = async {
        loop {
            tokio::time::sleep(Duration::from_millis(7)).await;
            engine.metrics().await;
            engine.check_invariants().await.unwrap().unwrap();
        }
    };
    tokio::select! {
        output = engine.generate(EngineCoreRequest::tts("a text of 20 letters")) => drop(output.unwrap()),
        () = asking => {}
    }
    let status = engine.status();
    (status.preschedule_used, status.preschedule_discarded)
}

#[tokio::test(start_paused = true)]
async fn commands_that_leave_the_schedule_as_it_is_discard_no_step() {
    let (used, discarded) = scheduled_ahead(0.0).await;
    // The time of a prompt is not known before the first one.
    assert!(used > 50 && discarded <= 1, "{used} {discarded}");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_ends_later_than_expected_discards_the_next_one() {
    let (used, discarded) = scheduled_ahead(3.0).await;
    assert!(used > 10 && discarded > 0, "{used} {discarded}");
}

#[tokio::test(start_paused = true)]
async fn sequences_of_a_step_share_its_time() {
    for stats in run(2, curve()).await {
        assert_eq!(stats.time_to_first_audio, Some(Duration::from_millis(5 + 60 + 2 * 20)));
        assert_eq!(stats.generation_time, Duration::from_millis(10 * 65 + 2 * 20));
    }
}

#[tokio::test(start_paused = true)]
async fn noise_repeats_with_its_seed_and_averages_to_the_curve() {
    let noisy = |seed| CostCurve { noise: 0.3, seed, ..curve() };
    let times = [run(1, noisy(1)).await, run(1, noisy(1)).await, run(1, noisy(2)).await];
    assert_eq!(times[0][0].generation_time, times[1][0].generation_time);
    assert_ne!(times[0][0].generation_time, times[2][0].generation_time);
    let (mut total, mean) = (Duration::ZERO, Duration::from_millis(470));
    for seed in 0..40 {
        total += run(1, noisy(seed)).await[0].generation_time;
    }
    assert!((total / 40).abs_diff(mean) < mean / 20, "{total:?}");
}

#[test]
fn a_batch_beyond_the_table_goes_on_as_the_table_ends() {
    let of = |generating| curve().mean(StepWork { generating, ..StepWork::default() }).as_millis();
    assert_eq!([of(0), of(1), of(2), of(4)], [5, 45, 65, 105]);
}
