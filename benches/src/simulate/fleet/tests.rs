//! A small fleet: it repeats, keeps its plan, and loses the streams of the node that dies and no other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn args(policies: &[Policy]) -> FleetArgs {
    FleetArgs {
        seed: 3,
        listeners: 300,
        duty: 0.2,
        seconds: 60.0,
        before: 60.0,
        machine: "8 cores".to_owned(),
        nodes: None,
        policies: policies.to_vec(),
        scrape: 5.0,
        killed: 1,
        drained: 1,
        slow: 0,
        detect: 2.0,
        pass_on: false,
        refused: 0.001,
        waiting: 0.01,
        first_audio: 1.0,
        noise: 0.1,
        json: false,
    }
}

#[test]
fn a_planned_fleet_keeps_its_promises_while_nodes_fail() {
    let args = args(&[Policy::LeastStreams, Policy::Sessions]);
    let report = simulate(&args).unwrap();
    let text = report.table();
    for row in &report.results {
        assert!(row.utterances > 300 && row.cut > 0, "{text}");
        assert_eq!((row.failed, row.given_up), (0, 0), "{text}");
        // By chance two steps in a hundred thousand are longer than counted on.
        assert!(row.gaps <= 2 && row.gap_s < 0.02, "{text}");
        assert!(row.refused_share <= 2.0 * args.refused, "{text}");
        assert!(row.back_p99_s.is_some_and(|back| back < 10.0), "{text}");
        assert!(row.first_audio_p99_s.is_some_and(|first| first < 2.0 * args.first_audio), "{text}");
    }
}

#[test]
fn a_run_repeats() {
    let args = args(&[Policy::Scraped]);
    let results = || {
        let rows = simulate(&args).unwrap().results;
        rows.into_iter().map(|row| Row { took_s: 0.0, ..row }).collect::<Vec<_>>()
    };
    assert_eq!(results(), results());
}

#[test]
fn a_fleet_that_is_too_small_refuses() {
    let few = FleetArgs { nodes: Some(3), killed: 0, drained: 0, ..args(&[Policy::LeastStreams]) };
    let report = simulate(&few).unwrap();
    let row = &report.results[0];
    assert!(row.refused_share > 0.05, "{}", report.table());
    // What was accepted is kept.
    assert_eq!(row.failed, 0, "{}", report.table());
    assert!(100 * row.gaps < row.utterances, "{}", report.table());
}

#[test]
fn a_slow_node_refuses_and_a_balancer_that_passes_on_hides_that() {
    let slow =
        |pass_on| FleetArgs { slow: 1, killed: 0, drained: 0, pass_on, ..args(&[Policy::LeastStreams]) };
    let refused = |pass_on| simulate(&slow(pass_on)).unwrap().results[0].refused_share;
    let (told, passed_on) = (refused(false), refused(true));
    assert!(told > 0.01, "the slow node has the fewest streams: {told}");
    assert!(passed_on < told / 4.0, "{passed_on} of {told}");
}
