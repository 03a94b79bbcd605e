//! `compute_schedule` alone and with `apply_schedule`, at 8, 64 and 512 sequences.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use izwi_core::engine::kv_cache::{KVCacheManager, PrefixChain};
use izwi_core::engine::scheduler::{NewSequence, ScheduleResult, Scheduler, Workload};
use izwi_core::engine::{EngineCoreConfig, Priority, RequestId, SchedulingPolicy, SequenceId};

fn config(sequences: usize, policy: SchedulingPolicy) -> EngineCoreConfig {
    EngineCoreConfig {
        max_batch_size: sequences,
        max_running_requests: sequences,
        max_tokens_per_step: sequences * 64,
        max_blocks: sequences * 16,
        scheduling_policy: policy,
        ..Default::default()
    }
}

fn complete(scheduler: &mut Scheduler, kv: &mut KVCacheManager, step: &ScheduleResult) {
    kv.end_step();
    for item in step.items() {
        scheduler.complete(item, 1, None, kv);
    }
}

/// A scheduler with every sequence in decode.
fn decoding(sequences: usize, policy: SchedulingPolicy) -> (Scheduler, KVCacheManager) {
    let config = config(sequences, policy);
    let mut scheduler = Scheduler::new(config.scheduler_config());
    let mut kv = KVCacheManager::new(config.geometry(), 1, true);
    for number in 0..sequences as u64 {
        let prompt: Vec<u64> = (0..48).map(|position| number * 1_000 + position).collect();
        scheduler.add_request(NewSequence {
            id: SequenceId(number),
            request_id: RequestId::from(number.to_string().as_str()),
            priority: [Priority::Low, Priority::Normal, Priority::High][number as usize % 3],
            live: true,
            arrival_us: number,
            state_bytes: 0,
            is_continued: false,
            work: Workload::Autoregressive {
                encoders: Arc::new([]),
                prompt_tokens: prompt.len(),
                max_tokens: 1 << 20,
                branches: 1,
                prefix: Arc::new(PrefixChain::of(&prompt, config.block_size)),
            },
        });
    }
    let step = scheduler.schedule(&mut kv);
    complete(&mut scheduler, &mut kv, &step);
    (scheduler, kv)
}

fn bench(criterion: &mut Criterion) {
    for (name, policy) in [("fcfs", SchedulingPolicy::Fcfs), ("priority", SchedulingPolicy::Priority)] {
        let mut group = criterion.benchmark_group(format!("compute_schedule/{name}"));
        for sequences in [8, 64, 512] {
            let (scheduler, kv) = decoding(sequences, policy);
            group.bench_with_input(BenchmarkId::from_parameter(sequences), &sequences, |bencher, _| {
                bencher.iter(|| black_box(scheduler.compute_schedule(&kv, None)));
            });
        }
        group.finish();
        let mut group = criterion.benchmark_group(format!("schedule_and_complete/{name}"));
        for sequences in [8, 64, 512] {
            group.bench_with_input(BenchmarkId::from_parameter(sequences), &sequences, |bencher, _| {
                bencher.iter_batched_ref(
                    || decoding(sequences, policy),
                    |(scheduler, kv)| {
                        let step = scheduler.schedule(kv);
                        complete(scheduler, kv, &step);
                        black_box(step)
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
