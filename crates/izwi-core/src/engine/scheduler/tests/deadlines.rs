//! The policy of deadlines, and streams that play.

use crate::engine::qos::cost::CostModel;

use super::*;

#[test]
fn the_deadline_policy_serves_the_earliest_deadline_first() {
    let config =
        EngineCoreConfig { scheduling_policy: SchedulingPolicy::Deadline, max_batch_size: 1, ..config() };
    let mut bench = Bench::new(&config);
    let (a, b) = (bench.units(&[5; 4]), bench.units(&[5; 4]));
    for _ in 0..3 {
        let result = bench.step();
        bench.complete(&result);
    }
    bench.set_due(a, 900);
    bench.set_due(b, 500);
    bench.scheduler.decode_waited = false;
    assert_eq!(shares(&bench.step())[0].0, b.0);
}

#[test]
fn due_streams_go_before_those_well_ahead() {
    for policy in [SchedulingPolicy::Fcfs, SchedulingPolicy::Priority] {
        let mut bench =
            Bench::new(&EngineCoreConfig { scheduling_policy: policy, max_batch_size: 1, ..config() });
        let (ahead, due) = (bench.units(&[5; 4]), bench.units(&[5; 4]));
        for _ in 0..2 {
            let result = bench.step();
            bench.complete(&result);
        }
        bench.scheduler.set_now(10_000_000);
        bench.set_due(ahead, 14_000_000);
        bench.set_due(due, 10_100_000);
        for _ in 0..2 {
            let result = bench.step();
            assert_eq!(result.decode_requests[0].sequence, due, "{policy:?}");
            bench.complete(&result);
        }
        bench.scheduler.set_now(13_800_000);
        bench.set_due(due, 20_000_000);
        assert_eq!(bench.step().decode_requests[0].sequence, ahead, "it is due now");
    }
}

#[test]
fn admissions_overtake_streams_well_ahead_but_not_due_ones() {
    let mut bench = Bench::new(&EngineCoreConfig { max_batch_size: 1, ..config() });
    let first = bench.units(&[5; 9]);
    let result = bench.step();
    bench.complete(&result);
    bench.scheduler.set_now(1_000_000);
    for (due_us, admissions_first) in [(9_000_000, true), (1_200_000, false)] {
        bench.set_due(first, due_us);
        bench.scheduler.decode_waited = false;
        let admissions = [bench.units(&[5]), bench.units(&[5])];
        let mut order = Vec::new();
        for _ in 0..2 {
            let result = bench.step();
            order.extend(result.items().map(|item| item.sequence));
            bench.complete(&result);
        }
        let second = if admissions_first { admissions[1] } else { first };
        assert_eq!(order, [admissions[0], second]);
        for id in admissions {
            bench.scheduler.finish_request(id, &mut bench.kv);
        }
    }
}

#[test]
fn a_step_of_another_group_leaves_time_for_streams_that_play() {
    let mut costs = CostModel::default();
    for step in 0..200usize {
        let prefill_tokens = if step % 2 == 0 { 8 } else { 0 };
        let ms = 20 + prefill_tokens as u64;
        costs.observe(StepShape { prefill_tokens, ..StepShape::decode(1) }, Duration::from_millis(ms));
    }
    let limits = StepLimits {
        costs: Arc::new(costs),
        reserve_s: 0.0,
        bulk_credit_s: 0.0,
        others: Vec::new(),
        others_share: 0.0,
        longest_piece: 1.0,
        others_piece_s: 0.0,
    };
    let longest_prompt = |end_us| {
        let mut bench = Bench::new(&EngineCoreConfig { max_blocks: 256, ..config() });
        let playing = bench.prompt(4, 100);
        let result = bench.step();
        bench.complete(&result);
        bench.set_due(playing, end_us);
        // Its own group, as after a failed step.
        let new = bench.prompt(400, 10);
        bench.scheduler.isolate(&[new]);
        bench.scheduler.set_limits(Some(limits.clone()));
        let steps = [bench.step(), bench.step()];
        let items = || steps.iter().flat_map(|step| step.items());
        assert!(steps.iter().all(|step| step.batch_size() == 1), "two groups share no step");
        items().filter(|item| item.sequence == new).map(|item| item.num_tokens).sum::<usize>()
    };
    let (pressed, relaxed) = (longest_prompt(120_000), longest_prompt(900_000));
    assert!((16..90).contains(&pressed) && relaxed > 150, "{pressed} {relaxed}");
}
