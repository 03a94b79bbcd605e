//! A short run repeats.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn args(minutes: f64, seed: u64) -> Args {
    let machines = vec!["2 cores".to_owned()];
    Args { seed, minutes, load: vec![0.5, 4.0], mix: Mix::Mixed, machines, noise: 0.3, json: false }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let short = |seed| run::simulate(&args(2.0, seed)).unwrap();
    assert_eq!(short(5), short(5));
    assert_ne!(short(5).accepted, short(6).accepted);
}
