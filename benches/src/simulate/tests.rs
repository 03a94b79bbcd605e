//! A short run, and that it repeats.

use super::*;

fn args(minutes: f64, seed: u64) -> Args {
    let machines = vec!["8 cores".to_owned()];
    Args { seed, minutes, load: vec![0.5, 2.0, 10.0], mix: Mix::Mixed, machines, noise: 0.3, json: false }
}

#[test]
fn accepted_streams_have_no_gap_and_bulk_work_gets_its_share() {
    let report = run::simulate(&args(12.0, 3)).unwrap();
    let text = report.table();
    assert!(report.accepted > 100 && report.refused > 100 && report.steps > 5_000, "{text}");
    assert_eq!((report.underrun_s, report.underrun_streams, report.failed), (0.0, 0, 0), "{text}");
    assert!(report.bulk_share_at_saturation.is_some_and(|share| share >= 0.1), "{text}");
    assert!(report.first_audio_error_p99.is_some_and(|error| error <= 0.3), "{text}");
    assert!(report.retry_after_error_p50.is_some_and(|error| error <= 0.4), "{text}");
    assert!(report.goodput_ratio.is_some_and(|ratio| ratio >= 0.85), "{text}");
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let short = |seed| run::simulate(&Args { load: vec![4.0], ..args(2.0, seed) }).unwrap();
    assert_eq!(short(5), short(5));
    assert_ne!(short(5).accepted, short(6).accepted);
}
