//! Sequences with branches.

use super::*;

#[test]
fn branches_of_a_search_count_as_tokens_and_share_the_prompt() {
    let mut bench = Bench::new(&EngineCoreConfig { max_tokens_per_step: 32, max_blocks: 32, ..config() });
    let id = bench.search(&[7; 10], 8, 3);
    let prompt = bench.step();
    assert_eq!((prompt.total_tokens, prompt.shape.decodes), (10, 1));
    bench.complete(&prompt);
    bench.scheduler.fork(id, &[0, 0, 0], &mut bench.kv).unwrap();
    let step = bench.step();
    let item = step.items().next().unwrap();
    assert_eq!((item.start, item.num_tokens, item.branch_tables.len()), (10, 1, 2));
    assert_eq!((step.total_tokens, step.shape.decodes, step.block_copies.len()), (3, 3, 2));
    assert_eq!(item.block_table[..2], item.branch_tables[1][..2], "the full blocks of the prompt");
    assert_eq!(bench.kv.num_held(id), 2 + 3);
    let refused = bench.scheduler.fork(id, &[0, 1, 2, 0], &mut bench.kv);
    assert_eq!(refused, Err(ForkError::TooMany { branches: 4, most: 3 }));
    assert!(matches!(bench.scheduler.fork(id, &[3], &mut bench.kv), Err(ForkError::NoSuchBranch(_))));
}

#[test]
fn a_preempted_search_begins_again_behind_its_prompt() {
    let mut bench = Bench::new(&EngineCoreConfig { max_blocks: 9, admission_lookahead: 0, ..config() });
    let first = bench.search(&[1; 6], 12, 2);
    let second = bench.search(&[2; 6], 12, 2);
    let mut restarted = false;
    let mut ended = Vec::new();
    for _ in 0..100 {
        let step = bench.step();
        if step.preempted_requests.contains(&second) {
            assert_eq!(bench.kv.num_held(second), 0);
            let sequence = &bench.scheduler.sequences[&second];
            assert_eq!((sequence.branches, sequence.demand().unwrap().tokens), (1, 6));
            restarted = true;
        }
        ended.extend(bench.complete(&step));
    }
    assert!(restarted, "the pool holds both");
    assert_eq!(ended, [first, second]);
    assert_eq!(bench.kv.num_free(), 9);
}
