//! Any work under any settings: budgets hold, block accounting balances, and no sequence starves.

use proptest::prelude::*;

use super::*;

#[test]
fn a_decision_is_stale_after_any_change() {
    let mut bench = Bench::new(&config());
    let a = bench.prompt(4, 8);
    let current = bench.step();
    let ahead = bench.scheduler.compute_schedule(&bench.kv, Some(&current));
    bench.complete(&current);
    assert!(bench.scheduler.is_current(&ahead), "the step went as expected");
    assert_eq!(ahead.decode.len(), 1);
    bench.scheduler.set_paused(a, true);
    assert!(!bench.scheduler.is_current(&ahead));
}

#[derive(Debug, Clone)]
enum Op {
    Prompt { size: usize, max_tokens: usize, family: u64, priority: u8, passes: usize, branches: usize },
    Units(Vec<usize>),
    Abort(usize),
    Pause(usize, bool),
    Input(usize, Option<usize>),
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1usize..40, 1usize..12, 0u64..3, 0u8..3, 0usize..4, 1usize..4).prop_map(
            |(size, max_tokens, family, priority, passes, branches)| Op::Prompt { size, max_tokens, family, priority, passes, branches }
        ),
        1 => prop::collection::vec(1usize..20, 1..5).prop_map(Op::Units),
        1 => (0usize..8).prop_map(Op::Abort),
        1 => (0usize..8, any::<bool>()).prop_map(|(index, on)| Op::Pause(index, on)),
        1 => (0usize..8, prop::option::of(0usize..50)).prop_map(|(index, most)| Op::Input(index, most)),
        8 => Just(Op::Step),
    ]
}

fn random_config() -> impl Strategy<Value = EngineCoreConfig> {
    (1usize..5, 20usize..64, proptest::sample::select(SchedulingPolicy::ALL), any::<[bool; 5]>(), 13usize..24)
        .prop_map(
            |(max_batch_size, tokens, policy, [chunked, preemption, caching, crowded, far], max_blocks)| {
                EngineCoreConfig {
                    max_batch_size,
                    max_tokens_per_step: if chunked { tokens } else { 64 },
                    max_running_requests: 5,
                    max_state_mib: if crowded { 1 } else { 1_024 },
                    scheduling_policy: policy,
                    enable_chunked_prefill: chunked,
                    chunked_prefill_threshold: 16,
                    enable_preemption: preemption,
                    admission_lookahead: if far { 128 } else { 2 },
                    enable_prefix_caching: caching,
                    block_size: 4,
                    max_blocks,
                    ..Default::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn budgets_and_invariants_hold_and_every_sequence_ends_once(
        config in random_config(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut bench = Bench::new(&config);
        let mut alive: Vec<SequenceId> = Vec::new();
        let mut ended: HashSet<SequenceId> = HashSet::new();
        for op in ops {
            match op {
                Op::Prompt { size, max_tokens, family, priority, passes, branches } => {
                    let prompt: Vec<u64> = (0..size as u64).map(|i| i + family * 100).collect();
                    let priority = [Priority::Low, Priority::Normal, Priority::High][usize::from(priority)];
                    let id = if branches > 1 {
                        bench.search(&prompt, max_tokens, branches)
                    } else {
                        bench.prompt_with(priority, &prompt, max_tokens)
                    };
                    bench.passes.insert(id, passes);
                    alive.push(id);
                }
                Op::Units(units) => alive.push(bench.units(&units)),
                Op::Abort(index) if index < alive.len() => {
                    let id = alive.swap_remove(index);
                    prop_assert!(bench.scheduler.finish_request(id, &mut bench.kv));
                }
                Op::Pause(index, on) if index < alive.len() => bench.scheduler.set_paused(alive[index], on),
                Op::Input(index, most) if index < alive.len() => {
                    bench.scheduler.set_positions(alive[index], most);
                }
                Op::Abort(_) | Op::Pause(..) | Op::Input(..) => {}
                Op::Step => step_and_check(&mut bench, &config, &mut alive, &mut ended)?,
            }
        }
        // No sequence starves: without new ones, all end but those whose readers or texts have stopped for ever. Only where the
        // states of those take the memory that others wait for are they aborted, as the engine does.
        let mut stopped: Vec<SequenceId> =
            alive.iter().copied().filter(|id| bench.scheduler.sequences[id].is_held()).collect();
        alive.retain(|id| !stopped.contains(id));
        alive.iter().for_each(|id| bench.scheduler.set_positions(*id, None));
        run_out(&mut bench, &config, &mut alive, &mut ended, &mut stopped)?;
        prop_assert!(alive.is_empty(), "{} sequences never end", alive.len());
        for &id in &stopped {
            bench.scheduler.set_paused(id, false);
            bench.scheduler.set_positions(id, None);
        }
        alive = std::mem::take(&mut stopped);
        run_out(&mut bench, &config, &mut alive, &mut ended, &mut stopped)?;
        prop_assert!(alive.is_empty(), "{} resumed sequences never end", alive.len());
        prop_assert_eq!(bench.kv.num_free(), config.max_blocks);
        prop_assert_eq!(bench.scheduler.num_running() + bench.scheduler.num_waiting(), 0);
        prop_assert_eq!(bench.scheduler.state_bytes, 0);
    }
}

/// Steps until no sequence is alive.
fn run_out(
    bench: &mut Bench,
    config: &EngineCoreConfig,
    alive: &mut Vec<SequenceId>,
    ended: &mut HashSet<SequenceId>,
    stopped: &mut Vec<SequenceId>,
) -> std::result::Result<(), TestCaseError> {
    for _ in 0..3_000 {
        if alive.is_empty() {
            break;
        }
        if bench.scheduler.waits_for_state()
            && let Some(at) = stopped.iter().position(|id| bench.scheduler.sequences[id].started)
        {
            bench.scheduler.finish_request(stopped.swap_remove(at), &mut bench.kv);
        }
        step_and_check(bench, config, alive, ended)?;
        // One that waits for text may end all the same: without its blocks, a search begins again before that text.
        stopped.retain(|id| !ended.contains(id));
    }
    Ok(())
}

fn step_and_check(
    bench: &mut Bench,
    config: &EngineCoreConfig,
    alive: &mut Vec<SequenceId>,
    ended: &mut HashSet<SequenceId>,
) -> std::result::Result<(), TestCaseError> {
    let decision = bench.scheduler.compute_schedule(&bench.kv, None);
    prop_assert_eq!(&decision, &bench.scheduler.compute_schedule(&bench.kv, None), "computing is pure");
    let decided = decision.items().count();
    prop_assert!(!decision.items().any(|item| bench.scheduler.awaits_input(item.sequence)));
    let admits = decision.items().any(|item| item.admit_with.is_some());
    let result = bench.scheduler.apply_schedule(decision, &mut bench.kv);
    prop_assert_eq!(result.batch_size(), decided, "every decided item can be applied");
    prop_assert!(result.batch_size() <= config.max_batch_size);
    prop_assert!(result.total_tokens <= config.max_tokens_per_step);
    let running =
        bench.scheduler.running.iter().filter(|id| !bench.scheduler.sequences[id].is_held()).count();
    prop_assert!(!admits || running <= config.max_running_requests);
    let started = bench.scheduler.sequences.values().filter(|s| s.started);
    let state_bytes: usize = started.map(|s| s.state_bytes).sum();
    prop_assert_eq!(bench.scheduler.state_bytes, state_bytes);
    prop_assert!(state_bytes <= config.max_state_bytes());
    let distinct: HashSet<SequenceId> = result.items().map(|item| item.sequence).collect();
    prop_assert_eq!(distinct.len(), result.batch_size());
    for item in result.items().filter(|item| !item.block_table.is_empty()) {
        prop_assert!(item.block_table.len() * config.block_size >= item.start + item.num_tokens);
    }
    // The prescheduled next step equals the one scheduled after this step.
    let ahead = bench.scheduler.compute_schedule(&bench.kv, Some(&result));
    for id in bench.complete(&result) {
        prop_assert!(ended.insert(id), "ended twice");
        alive.retain(|&other| other != id);
    }
    if bench.scheduler.is_current(&ahead) && !ahead.is_empty() {
        let after = bench.scheduler.compute_schedule(&bench.kv, None);
        let order =
            |d: &ScheduleDecision| d.items().map(|i| (i.sequence, i.start, i.num_tokens)).collect::<Vec<_>>();
        if !config.enable_prefix_caching {
            prop_assert_eq!(order(&ahead), order(&after));
        }
    }
    prop_assert_eq!(bench.kv.check_invariants(), Ok(()));
    Ok(())
}
