//! Allocating and freeing blocks, and looking a prefix up.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use izwi_core::engine::SequenceId;
use izwi_core::engine::blocks::BlockGeometry;
use izwi_core::engine::kv_cache::{KVCacheManager, PrefixChain};

const POSITIONS: usize = 512;

fn manager() -> KVCacheManager {
    KVCacheManager::new(BlockGeometry { num_blocks: 1_024, block_size: 16 }, 1, true)
}

fn bench(criterion: &mut Criterion) {
    criterion.bench_function("kv/allocate_and_free_32_blocks", |bencher| {
        let mut kv = manager();
        bencher.iter(|| {
            kv.admit(SequenceId(1), &[], 0);
            black_box(kv.extend(SequenceId(1), POSITIONS).is_ok());
            kv.free(SequenceId(1));
        });
    });
    criterion.bench_function("kv/extend_by_one_token", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut kv = manager();
                kv.admit(SequenceId(1), &[], 0);
                kv
            },
            |kv| {
                for position in 1..=POSITIONS {
                    black_box(kv.extend(SequenceId(1), position).is_ok());
                }
            },
            BatchSize::SmallInput,
        );
    });
    let prompt: Vec<u64> = (0..POSITIONS as u64).collect();
    criterion.bench_function("kv/hash_512_tokens", |bencher| {
        bencher.iter(|| black_box(PrefixChain::of(black_box(&prompt), 16)));
    });
    criterion.bench_function("kv/match_32_blocks", |bencher| {
        let mut kv = manager();
        let chain = PrefixChain::of(&prompt, 16);
        let hashes = chain.hashes();
        kv.admit(SequenceId(1), &[], 0);
        black_box(kv.extend(SequenceId(1), POSITIONS).is_ok());
        kv.register_prefix(SequenceId(1), hashes, POSITIONS);
        bencher.iter(|| black_box(kv.match_prefix(hashes)));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
