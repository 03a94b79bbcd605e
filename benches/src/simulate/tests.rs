//! A short run: it repeats, and stays within bounds that notice a loss. What holds today is in `benches/baselines`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn args(minutes: f64, seed: u64) -> Args {
    let machines = vec!["2 cores".to_owned()];
    Args {
        command: None,
        seed,
        minutes,
        load: vec![0.5, 4.0],
        mix: Mix::Mixed,
        machines,
        noise: 0.3,
        disturbances: disturbance::Disturbances { slow: 1.0, drift: 1.0, pause_ms: 0 },
        json: false,
    }
}

#[test]
fn models_that_share_a_full_device_seldom_interrupt_each_other() {
    let args = Args { machines: vec!["GPU".to_owned()], load: vec![1.0], noise: 0.0, ..args(2.0, 3) };
    let (row, tally) = run::rows(&args).unwrap().remove(0);
    assert!(tally.accepted > 500 && tally.failed == 0, "{row:?}");
    assert!(50 * tally.underrun_streams <= tally.accepted, "{row:?}");
    assert!(tally.underrun.as_secs_f64() < 1e-4 * tally.audio_s, "{row:?}");
}

#[test]
fn a_disturbed_machine_fails_nobody_and_seldom_interrupts() {
    for disturbances in [
        disturbance::Disturbances { slow: 1.0, drift: 1.35, pause_ms: 0 },
        disturbance::Disturbances { slow: 1.0, drift: 1.0, pause_ms: 150 },
    ] {
        let report = run::simulate(&Args { disturbances, ..args(8.0, 5) }).unwrap();
        let text = report.table();
        assert!(report.accepted > 10 && report.failed == 0, "{text}");
        assert!(report.underrun_streams <= 1 + report.accepted / 50, "{text}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report_within_bounds() {
    let report = run::simulate(&args(8.0, 5)).unwrap();
    let text = report.table();
    assert_eq!(report, run::simulate(&args(8.0, 5)).unwrap());
    assert!(report.accepted > 10 && report.refused > 10 && report.steps > 5_000, "{text}");
    assert_eq!(report.failed, 0, "{text}");
    let audio_s: f64 = report.results.iter().map(|row| 60.0 * row.minutes * row.live_audio).sum();
    assert!(report.underrun_s < 0.001 * audio_s, "{text}");
    assert!(report.first_audio_error_p50.is_none_or(|error| error <= 0.3), "{text}");
    assert!(report.goodput_ratio.is_some_and(|ratio| ratio >= 0.9), "{text}");
    assert!(report.bulk_share_at_saturation.is_some_and(|share| share >= 0.1), "{text}");
    assert!(report.retry_after_error_p50.is_none_or(|error| error <= 0.25), "{text}");
}
