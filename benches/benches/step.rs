//! Engine overhead per step: an executor that computes nothing, with and without scheduling ahead, and of live streams whose
//! readers take every chunk.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, GenerationParams};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Ahead,
    NotAhead,
    Live,
}

fn request(number: usize) -> EngineCoreRequest {
    // The simulation ends by the length of its text: 22 is its longest.
    let params = GenerationParams { seed: Some(number as u64), ..Default::default() };
    EngineCoreRequest::tts("x".repeat(22)).with_params(params)
}

/// Takes all chunks of a live stream.
async fn listen(engine: &Engine, number: usize) {
    let Ok((_, mut chunks)) = engine.generate_streaming(request(number)).await else { return };
    while chunks.recv().await.is_some() {}
}

/// Time per engine step over `steps` steps of `batch` sequences.
async fn run(batch: usize, kind: Kind, steps: u64) -> Duration {
    let config = EngineCoreConfig {
        max_batch_size: batch,
        max_running_requests: batch,
        max_tokens_per_step: 64 * batch,
        enable_optimistic_scheduling: kind != Kind::NotAhead,
        admission: false,
        ..Default::default()
    };
    let model = SimulatedModel { samples_per_token: 0, ..Default::default() };
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    let Ok(engine) = Engine::with_executor(config, executor) else { return Duration::ZERO };
    let mut spent = Duration::ZERO;
    let mut done = 0;
    while done < steps {
        let before = engine.status().steps;
        let start = Instant::now();
        if kind == Kind::Live {
            futures::future::join_all((0..batch).map(|number| listen(&engine, number))).await;
        } else {
            futures::future::join_all((0..batch).map(|number| engine.generate(request(number)))).await;
        }
        spent += start.elapsed();
        done += engine.status().steps - before;
    }
    spent.mul_f64(steps as f64 / done as f64)
}

fn bench(criterion: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    else {
        return;
    };
    let mut group = criterion.benchmark_group("engine_step");
    group.sample_size(20);
    for batch in [1, 8, 64, 512] {
        for (name, kind) in [("ahead", Kind::Ahead), ("not_ahead", Kind::NotAhead), ("live", Kind::Live)] {
            group.bench_with_input(BenchmarkId::new(name, batch), &batch, |bencher, &batch| {
                bencher.iter_custom(|steps| runtime.block_on(run(batch, kind, steps)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
