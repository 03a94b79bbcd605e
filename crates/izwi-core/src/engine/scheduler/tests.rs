//! Scheduling without executor and clock: queues and block accounting only.

mod any_work;
mod deadlines;
mod searches;

use std::collections::{HashMap, HashSet};

use super::*;
use crate::engine::config::EngineCoreConfig;

fn config() -> EngineCoreConfig {
    EngineCoreConfig { block_size: 4, max_blocks: 16, ..Default::default() }
}

/// Bytes of the state of every sequence: a quarter of a MiB.
const STATE_BYTES: usize = 1 << 18;

struct Bench {
    scheduler: Scheduler,
    kv: KVCacheManager,
    next: u64,
    /// Passes left per sequence; each ends at a token that depends on its position.
    passes: HashMap<SequenceId, usize>,
    /// The most branches of sequences that search.
    branches: HashMap<SequenceId, usize>,
}

impl Bench {
    fn new(config: &EngineCoreConfig) -> Self {
        let kv = KVCacheManager::new(config.geometry(), 1, config.enable_prefix_caching);
        Self {
            scheduler: Scheduler::new(config.scheduler_config()),
            kv,
            next: 0,
            passes: HashMap::new(),
            branches: HashMap::new(),
        }
    }

    fn set_due(&mut self, id: SequenceId, end_us: u64) {
        let playback =
            Playback { end_us, missing_us: 200_000, chunk_us: 200_000, step_us: 200_000, frame_us: 200_000 };
        self.scheduler.set_playback(id, playback);
    }

    fn add(&mut self, priority: Priority, work: Workload) -> SequenceId {
        self.next += 1;
        let id = SequenceId(self.next);
        let request_id = RequestId::from(format!("r{}", self.next).as_str());
        self.scheduler.add_request(NewSequence {
            id,
            request_id,
            priority,
            live: true,
            arrival_us: self.next,
            state_bytes: STATE_BYTES,
            is_continued: false,
            work,
        });
        id
    }

    fn prompt(&mut self, prompt_tokens: usize, max_tokens: usize) -> SequenceId {
        let key = self.next;
        self.prompt_with(Priority::Normal, &vec![key << 32; prompt_tokens], max_tokens)
    }

    fn work(&self, prompt: &[u64], max_tokens: usize, encoder_tokens: usize) -> Workload {
        let prefix = Arc::new(PrefixChain::of(prompt, self.kv.geometry().block_size));
        let encoders = Arc::new([EncoderWork { end: prompt.len(), tokens: encoder_tokens }]);
        Workload::Autoregressive { prompt_tokens: prompt.len(), max_tokens, encoders, prefix, branches: 1 }
    }

    /// A prompt, then a search of up to `branches` branches.
    fn search(&mut self, prompt: &[u64], max_tokens: usize, most: usize) -> SequenceId {
        let mut work = self.work(prompt, max_tokens, 0);
        if let Workload::Autoregressive { branches, .. } = &mut work {
            *branches = most;
        }
        let id = self.add(Priority::Normal, work);
        self.branches.extend((most > 1).then_some((id, most)));
        id
    }

    fn prompt_with(&mut self, priority: Priority, prompt: &[u64], max_tokens: usize) -> SequenceId {
        let work = self.work(prompt, max_tokens, 0);
        self.add(priority, work)
    }

    fn prompt_with_encoder(
        &mut self,
        encoder_tokens: usize,
        prompt_tokens: usize,
        max_tokens: usize,
    ) -> SequenceId {
        let work = self.work(&vec![self.next << 32; prompt_tokens], max_tokens, encoder_tokens);
        self.add(Priority::Normal, work)
    }

    /// Whether the token of `item` ends the pass of its sequence.
    fn pass_is_over(&mut self, item: &ScheduledRequest) -> bool {
        match self.passes.get_mut(&item.sequence) {
            Some(left) if *left > 0 && item.start.is_multiple_of(3) => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    fn units(&mut self, sizes: &[usize]) -> SequenceId {
        self.add(Priority::Normal, Workload::Units(sizes.into()))
    }

    fn step(&mut self) -> ScheduleResult {
        let result = self.scheduler.schedule(&mut self.kv);
        self.kv.check_invariants().unwrap();
        result
    }

    /// Completes a step as an executor would; returns the sequences that ended.
    fn complete(&mut self, result: &ScheduleResult) -> Vec<SequenceId> {
        self.kv.end_step();
        let mut ended = Vec::new();
        for item in result.items() {
            let generates = self.generates(item);
            let done = self.scheduler.complete(item, usize::from(generates), None, &mut self.kv);
            if generates && self.pass_is_over(item) {
                let prompt: Vec<u64> = (0..1 + item.start as u64 * 7 % 20).collect();
                let work = self.work(&prompt, 1 + item.start % 9, item.start % 2 * 70);
                self.branches.remove(&item.sequence);
                self.scheduler.next_pass(item.sequence, work, &mut self.kv);
            } else if done || (generates && !self.forks(item)) {
                self.scheduler.finish_request(item.sequence, &mut self.kv);
                ended.push(item.sequence);
            }
        }
        self.kv.check_invariants().unwrap();
        ended
    }

    /// Forks a sequence that searches, by its position; false if its branches do not fit.
    fn forks(&mut self, item: &ScheduledRequest) -> bool {
        let Some(&most) = self.branches.get(&item.sequence) else { return true };
        let count = 1 + (item.start * 5 + 3) % most;
        let parents: Vec<usize> =
            (0..count).map(|i| (item.start + 3 * i) % (1 + item.branch_tables.len())).collect();
        match self.scheduler.fork(item.sequence, &parents, &mut self.kv) {
            Err(ForkError::TooLarge { .. }) => false,
            forked => forked.map(|()| true).unwrap(),
        }
    }

    fn generates(&self, item: &ScheduledRequest) -> bool {
        match self.scheduler.sequences.get(&item.sequence).map(|s| s.progress) {
            Some(Progress::Autoregressive { computed, known, .. }) => computed + item.num_tokens == known,
            _ => false,
        }
    }

    fn run_to_end(&mut self, limit: usize) -> Vec<SequenceId> {
        let mut ended = Vec::new();
        for _ in 0..limit {
            let result = self.step();
            ended.extend(self.complete(&result));
        }
        ended
    }
}

fn shares(result: &ScheduleResult) -> Vec<(u64, usize, usize)> {
    result.items().map(|item| (item.sequence.0, item.start, item.num_tokens)).collect()
}

#[test]
fn long_prompts_are_computed_in_chunks_then_one_token_a_step() {
    let config = EngineCoreConfig { block_size: 16, max_blocks: 64, ..config() };
    let mut bench = Bench::new(&config);
    bench.prompt(600, 3);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let result = bench.step();
        seen.extend(shares(&result));
        bench.complete(&result);
    }
    assert_eq!(seen, [(1, 0, 256), (1, 256, 256), (1, 512, 88), (1, 600, 1), (1, 601, 1)]);
    assert_eq!(bench.kv.stats().used_blocks, 0);
}

#[test]
fn prompts_go_before_decodes_and_then_decodes_get_their_turn() {
    let mut bench = Bench::new(&EngineCoreConfig { max_batch_size: 2, ..config() });
    for _ in 0..5 {
        bench.prompt(2, 5);
    }
    let mut kinds = Vec::new();
    for _ in 0..4 {
        let result = bench.step();
        kinds.push((result.prefill_requests.len(), result.decode_requests.len()));
        bench.complete(&result);
    }
    assert_eq!(kinds, [(2, 0), (2, 0), (0, 2), (1, 1)], "decodes left out once come first in the next step");
}

#[test]
fn running_sequences_take_turns() {
    let mut bench = Bench::new(&EngineCoreConfig { max_batch_size: 2, ..config() });
    for _ in 0..4 {
        bench.units(&[10, 10, 10]);
    }
    let mut order = Vec::new();
    for _ in 0..6 {
        let result = bench.step();
        order.push(result.items().map(|item| item.sequence.0).collect::<Vec<_>>());
        bench.complete(&result);
    }
    let mut counts = HashMap::new();
    for id in order.iter().flatten() {
        *counts.entry(*id).or_insert(0) += 1;
    }
    assert!(counts.values().all(|&count| count == 3), "{order:?}");
    assert_eq!(order[0], [1, 2]);
}

#[test]
fn an_admission_never_overtakes_one_that_does_not_fit() {
    let mut bench = Bench::new(&EngineCoreConfig { max_blocks: 4, ..config() });
    let first = bench.prompt(9, 2);
    let result = bench.step();
    bench.complete(&result);
    bench.prompt(12, 1);
    bench.prompt(2, 1);
    let result = bench.step();
    assert_eq!(shares(&result), [(first.0, 9, 1)], "the second waits, and so does the third");
}

#[test]
fn the_worst_rank_is_preempted_and_recomputed() {
    let config =
        EngineCoreConfig { max_blocks: 4, enable_prefix_caching: false, admission_lookahead: 0, ..config() };
    let mut bench = Bench::new(&config);
    let (a, b) = (bench.prompt(7, 6), bench.prompt(7, 6));
    let mut preempted = Vec::new();
    let mut restarted = false;
    let mut ended = Vec::new();
    for _ in 0..30 {
        let result = bench.step();
        preempted.extend(result.preempted_requests.clone());
        restarted |= result.items().any(|item| item.sequence == b && item.begins && item.num_tokens > 7);
        ended.extend(bench.complete(&result));
    }
    assert!(!preempted.is_empty() && preempted.iter().all(|&id| id == b), "{preempted:?}");
    assert!(restarted, "prompt and generated tokens are recomputed");
    assert_eq!(ended, [a, b]);
}

#[test]
fn priority_orders_admission_and_preemption_in_every_policy() {
    for &policy in SchedulingPolicy::ALL {
        let config = EngineCoreConfig {
            scheduling_policy: policy,
            max_blocks: 4,
            enable_prefix_caching: false,
            admission_lookahead: 0,
            ..config()
        };
        let mut bench = Bench::new(&EngineCoreConfig { max_running_requests: 1, ..config.clone() });
        bench.scheduler.set_now(1_000_000);
        let priorities = [Priority::Low, Priority::Normal, Priority::High];
        let [low, normal, high] = priorities.map(|priority| bench.prompt_with(priority, &[1; 4], 2));
        assert_eq!(bench.run_to_end(20), [high, normal, low], "{policy:?}: admission");

        let mut bench = Bench::new(&config);
        bench.scheduler.set_now(1_000_000);
        let [low, high] =
            [Priority::Low, Priority::High].map(|priority| bench.prompt_with(priority, &[1; 7], 6));
        let mut preempted = HashSet::new();
        for _ in 0..30 {
            let result = bench.step();
            preempted.extend(result.preempted_requests.clone());
            bench.complete(&result);
        }
        assert!(!preempted.contains(&high), "{policy:?}: preemption of {low:?} or {high:?}: {preempted:?}");
    }
}

#[test]
fn a_higher_priority_preempts_a_lower_one() {
    let config = EngineCoreConfig {
        max_blocks: 4,
        scheduling_policy: SchedulingPolicy::Priority,
        enable_prefix_caching: false,
        ..config()
    };
    let mut bench = Bench::new(&config);
    let low = bench.prompt_with(Priority::Low, &[1; 12], 4);
    let result = bench.step();
    bench.complete(&result);
    let high = bench.prompt_with(Priority::High, &[2; 12], 4);
    let result = bench.step();
    assert_eq!(result.preempted_requests, [low]);
    assert_eq!(result.prefill_requests[0].sequence, high);
    bench.complete(&result);
    assert_eq!(bench.run_to_end(20), [high, low]);
}

#[test]
fn equal_priority_preempts_no_sequence() {
    let config = EngineCoreConfig {
        max_blocks: 4,
        scheduling_policy: SchedulingPolicy::Priority,
        max_running_requests: 1,
        ..config()
    };
    let mut bench = Bench::new(&config);
    bench.prompt(4, 4);
    let result = bench.step();
    bench.complete(&result);
    bench.prompt(4, 4);
    assert!(bench.step().preempted_requests.is_empty());
}

#[test]
fn a_sequence_without_input_is_held_until_more_arrives_and_is_preempted_first() {
    let mut bench = Bench::new(&config());
    let held = bench.prompt(4, 8);
    bench.scheduler.set_positions(held, Some(5));
    for position in 0..2 {
        let result = bench.step();
        assert_eq!(result.batch_size(), 1, "position {position} has input");
        bench.complete(&result);
    }
    assert!(bench.scheduler.awaits_input(held));
    assert_eq!(bench.step().batch_size(), 0);
    let other = bench.prompt(52, 10);
    let mut preempted = Vec::new();
    for _ in 0..10 {
        let result = bench.step();
        assert_eq!(result.items().map(|item| item.sequence).collect::<Vec<_>>(), [other]);
        preempted.extend(result.preempted_requests.clone());
        bench.complete(&result);
    }
    assert_eq!(preempted, [held], "the pool was full");
    bench.scheduler.set_positions(held, Some(5));
    assert_eq!(bench.step().batch_size(), 0);
    bench.scheduler.set_positions(held, None);
    assert_eq!(bench.run_to_end(40), [held]);
}

#[test]
fn chunks_that_have_come_are_computed_in_one_step_of_all_sequences() {
    let mut bench = Bench::new(&config());
    let mut chunks = || bench.add(Priority::Normal, Workload::Chunks { chunk: 2, longest: 4 });
    let (first, second) = (chunks(), chunks());
    assert_eq!(bench.step().batch_size(), 0, "nothing has come");
    bench.scheduler.set_positions(first, Some(6));
    bench.scheduler.set_positions(second, Some(2));
    let step = |bench: &mut Bench| {
        let result = bench.step();
        bench.complete(&result);
        let mut items: Vec<_> =
            result.items().map(|item| (item.sequence, item.start, item.num_tokens)).collect();
        items.sort_unstable();
        items
    };
    assert_eq!(step(&mut bench), [(first, 0, 4), (second, 0, 2)]);
    assert_eq!(step(&mut bench), [(first, 4, 2)]);
    assert_eq!(step(&mut bench), []);
    assert!([first, second].iter().all(|&id| bench.scheduler.awaits_input(id)));
    bench.scheduler.set_positions(second, Some(5));
    assert_eq!(step(&mut bench), [(second, 2, 3)]);
}

#[test]
fn without_preemption_an_admission_reserves_its_worst_case() {
    let config = EngineCoreConfig {
        max_blocks: 4,
        enable_preemption: false,
        enable_prefix_caching: false,
        ..config()
    };
    let mut bench = Bench::new(&config);
    for _ in 0..4 {
        bench.prompt(4, 8);
    }
    let result = bench.step();
    assert_eq!(result.batch_size(), 1, "12 of 16 positions are reserved");
    bench.complete(&result);
    assert_eq!(bench.run_to_end(40).len(), 4);
}

#[test]
fn a_fully_cached_prompt_recomputes_its_last_token_in_a_copy() {
    let mut bench = Bench::new(&config());
    let prompt: Vec<u64> = (0..8).collect();
    bench.prompt_with(Priority::Normal, &prompt, 5);
    let result = bench.step();
    bench.complete(&result);
    let second = bench.prompt_with(Priority::Normal, &prompt, 5);
    let result = bench.step();
    let item = result.items().find(|item| item.sequence == second).unwrap();
    assert_eq!((item.start, item.num_tokens, item.begins), (7, 1, true));
    assert_eq!(result.block_copies.len(), 1);
    assert_eq!(item.block_table[1], result.block_copies[0].to);
    assert_eq!(bench.kv.stats().prefix_hits, 2);
}

#[test]
fn paused_sequences_take_no_place_and_give_their_blocks_to_others() {
    for &scheduling_policy in SchedulingPolicy::ALL {
        for enable_preemption in [true, false] {
            let limits = EngineCoreConfig { max_running_requests: 2, max_blocks: 6, ..config() };
            let config = EngineCoreConfig { scheduling_policy, enable_preemption, ..limits };
            let mut bench = Bench::new(&config);
            let readers = [bench.prompt(8, 4), bench.prompt(8, 4)];
            let result = bench.step();
            assert_eq!(result.batch_size(), 2);
            bench.complete(&result);
            readers.iter().for_each(|&id| bench.scheduler.set_paused(id, true));
            let others = [bench.prompt(12, 4), bench.prompt(12, 4)];
            assert_eq!(bench.run_to_end(30), others, "{scheduling_policy:?}");
            readers.iter().for_each(|&id| bench.scheduler.set_paused(id, false));
            assert_eq!(bench.run_to_end(30).len(), 2, "{scheduling_policy:?}");
        }
    }
}

#[test]
fn states_take_memory_from_the_first_step_to_the_end() {
    // Four states.
    let mut bench =
        Bench::new(&EngineCoreConfig { max_state_mib: 1, max_batch_size: 8, max_blocks: 64, ..config() });
    let first: Vec<SequenceId> = (0..4).map(|_| bench.prompt(2, 5)).collect();
    let result = bench.step();
    bench.complete(&result);
    let last = bench.prompt(2, 5);
    assert!(!bench.scheduler.sequences[&last].started && bench.scheduler.waits_for_state());
    let result = bench.step();
    assert_eq!(result.batch_size(), 4, "the fifth waits");
    bench.complete(&result);
    bench.scheduler.set_paused(first[0], true);
    let result = bench.step();
    assert!(result.items().all(|item| item.sequence != last), "a paused sequence keeps its state");
    bench.complete(&result);
    // A later pass needs no other state, though the fifth is before it in the queue of a higher priority.
    bench.scheduler.finish_request(last, &mut bench.kv);
    let high = bench.prompt_with(Priority::High, &[9; 2], 5);
    let work = bench.work(&[7; 5], 2, 0);
    bench.scheduler.next_pass(first[1], work, &mut bench.kv);
    let result = bench.step();
    assert!(result.prefill_requests.iter().any(|item| item.sequence == first[1]));
    bench.complete(&result);
    bench.scheduler.finish_request(first[0], &mut bench.kv);
    assert!(!bench.scheduler.waits_for_state());
    assert!(bench.run_to_end(20).contains(&high));
    assert_eq!(bench.scheduler.state_bytes, 0);
}

#[test]
fn a_step_copies_no_content_keys() {
    let mut bench = Bench::new(&config());
    let id = bench.prompt(8, 5);
    let result = bench.step();
    let keys = |bench: &Bench| bench.scheduler.sequences[&id].prefix().as_ptr();
    let before = keys(&bench);
    bench.kv.end_step();
    for item in result.items() {
        bench.scheduler.complete(item, 1, Some(3), &mut bench.kv);
    }
    assert_eq!(keys(&bench), before);
}

#[test]
fn an_admission_leaves_the_blocks_that_running_sequences_will_need() {
    let config = EngineCoreConfig { max_blocks: 4, enable_prefix_caching: false, ..config() };
    let mut bench = Bench::new(&config);
    let (a, b) = (bench.prompt(7, 6), bench.prompt(7, 6));
    let mut ended = Vec::new();
    for _ in 0..16 {
        let result = bench.step();
        assert_eq!(result.preempted_requests, [], "only to be admitted again");
        ended.extend(bench.complete(&result));
    }
    assert_eq!(ended, [a, b]);
    // What is expected within the lookahead is left; a sequence alone is admitted although it may need more.
    let mut bench = Bench::new(&EngineCoreConfig { max_blocks: 10, admission_lookahead: 8, ..config });
    let waiting: Vec<_> = (0..4).map(|_| bench.prompt(8, 200)).collect();
    let result = bench.step();
    let admitted: Vec<_> = result.items().map(|item| item.sequence).collect();
    assert_eq!(admitted, waiting[..2], "16 positions each of 40");
}

#[test]
fn a_preempted_sequence_finds_what_it_generated_and_nobody_else_does() {
    let mut bench = Bench::new(&config());
    let id = bench.prompt(6, 20);
    for _ in 0..8 {
        let result = bench.step();
        bench.kv.end_step();
        for item in result.items() {
            bench.scheduler.complete(item, 1, Some(item.start as u64), &mut bench.kv);
        }
    }
    bench.scheduler.sequences.get_mut(&id).unwrap().preempt();
    bench.kv.free(id);
    bench.scheduler.running.remove(&id);
    bench.scheduler.waiting.insert(id);
    let result = bench.step();
    assert_eq!(shares(&result), [(id.0, 12, 2)], "12 of 14 positions are in full blocks");
    bench.complete(&result);
    bench.scheduler.finish_request(id, &mut bench.kv);
    assert_eq!(bench.kv.stats().cached_blocks, 1, "the prompt alone stays for others");
}

#[test]
fn a_paused_sequence_keeps_its_place_and_is_preempted_first() {
    let config = EngineCoreConfig { max_blocks: 4, enable_prefix_caching: false, ..config() };
    let mut bench = Bench::new(&config);
    let (a, b) = (bench.prompt(7, 6), bench.prompt(7, 6));
    let result = bench.step();
    bench.complete(&result);
    bench.scheduler.set_paused(a, true);
    let mut preempted = Vec::new();
    for _ in 0..3 {
        let result = bench.step();
        assert!(result.items().all(|item| item.sequence == b));
        preempted.extend(result.preempted_requests.clone());
        bench.complete(&result);
    }
    assert_eq!(preempted, [a], "although it came first");
    bench.scheduler.set_paused(a, false);
    assert_eq!(bench.run_to_end(30).len(), 2);
}

#[test]
fn an_expensive_prefill_uses_the_token_budget_or_a_step_of_its_own() {
    let config = EngineCoreConfig { max_tokens_per_step: 64, max_blocks: 64, ..config() };
    let mut bench = Bench::new(&config);
    for encoder_tokens in [30, 30, 500, 0] {
        bench.prompt_with_encoder(encoder_tokens, 3, 9);
    }
    let mut steps = Vec::new();
    for _ in 0..4 {
        let result = bench.step();
        steps.push((result.prefill_requests.len(), result.decode_requests.len()));
        bench.complete(&result);
    }
    // 33 + 33 exceed 64; the third never fits with its 503.
    assert_eq!(steps[0], (1, 0));
    assert_eq!(steps[1], (1, 1), "the encoder leaves tokens for others");
    assert!(steps.contains(&(1, 0)) && steps[3].0 + steps[2].0 == 2, "{steps:?}");
    assert_eq!(bench.run_to_end(80).len(), 4);
}

#[test]
fn encoders_of_cached_positions_cost_nothing() {
    let config = EngineCoreConfig { max_tokens_per_step: 64, max_blocks: 64, ..config() };
    let mut bench = Bench::new(&config);
    let history: Vec<u64> = (0..24).collect();
    bench.prompt_with(Priority::Normal, &history, 9);
    let result = bench.step();
    bench.complete(&result);
    // The turns so far with two recordings, and a short one after them. With the first two no step has room for it.
    let turn: Vec<u64> = (0..30).collect();
    let encoders = [(10, 400), (24, 300), (28, 20)].map(|(end, tokens)| EncoderWork { end, tokens });
    let Workload::Autoregressive { prefix, .. } = bench.work(&turn, 5, 0) else { panic!("a prompt") };
    let work = Workload::Autoregressive {
        prompt_tokens: 30,
        max_tokens: 5,
        encoders: Arc::new(encoders),
        prefix,
        branches: 1,
    };
    let id = bench.add(Priority::Normal, work);
    let other = bench.prompt(30, 2);
    let result = bench.step();
    assert_eq!(shares(&result)[..2], [(id.0, 24, 6), (other.0, 0, 30)], "20 + 6 + 30 of 64 tokens");
}

#[test]
fn a_next_pass_frees_the_blocks_and_keeps_its_place() {
    let config = EngineCoreConfig { max_batch_size: 1, max_running_requests: 1, ..config() };
    let mut bench = Bench::new(&config);
    let first = bench.prompt(8, 5);
    let result = bench.step();
    bench.complete(&result);
    let later = bench.prompt(4, 1);
    assert_eq!(bench.kv.stats().used_blocks, 2);
    let work = bench.work(&[7; 5], 2, 0);
    bench.scheduler.next_pass(first, work, &mut bench.kv);
    assert_eq!(bench.kv.stats().used_blocks, 0);
    let result = bench.step();
    assert!(result.prefill_requests[0].begins);
    assert_eq!(shares(&result), [(first.0, 0, 5)], "it came first");
    bench.complete(&result);
    assert_eq!(bench.run_to_end(4), [first, later]);
}
