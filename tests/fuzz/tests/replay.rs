//! The targets without a fuzzer: their seeds, the committed cases, and mutations of both that are the same in each run.
//!
//! `IZWI_FUZZ_MUTATIONS` is the number of mutations for each target, `IZWI_FUZZ_TARGET` the only target to run.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and tells the input before it"
)]

use std::alloc::System;
use std::time::Instant;

use cap::Cap;
use izwi_fuzz::mutation::{Random, mutated};
use izwi_fuzz::{MEMORY_LIMIT, TARGETS, Target, guarded, inputs};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_LIMIT);

/// Mutations of each target by default.
const MUTATIONS: usize = 400;

fn mutations() -> usize {
    std::env::var("IZWI_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATIONS)
}

fn run(target: &Target, input: &[u8], what: &str) {
    if let Err(message) = guarded(|| (target.run)(input)) {
        let path = std::env::temp_dir().join(format!("izwi-fuzz-{}", target.name));
        std::fs::write(&path, input).unwrap();
        // The hook that would print the panic is replaced.
        eprintln!("\ntarget {}, {what}: {message}\nthe input is in {}", target.name, path.display());
        panic!("target {} broke a promise", target.name);
    }
}

/// The targets in `part` of `parts`, so that the test runner spreads them over its threads.
fn replay(part: usize, parts: usize) {
    let only = std::env::var("IZWI_FUZZ_TARGET").ok();
    let selected = |target: &&Target| only.as_ref().is_none_or(|only| only == target.name);
    for target in TARGETS.iter().skip(part).step_by(parts).filter(selected) {
        let start = Instant::now();
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "target {} has no input", target.name);
        // Shown if an input ends the process.
        eprint!("{}", target.name);
        for (index, input) in inputs.iter().enumerate() {
            run(target, input, &format!("input {index}"));
        }
        let mut random = Random::new(1);
        for index in 0..mutations() {
            let (one, other) = (random.below(inputs.len()), random.below(inputs.len()));
            let input = mutated(&inputs[one], &inputs[other], target.max_bytes, &mut random);
            run(target, &input, &format!("mutation {index} of input {one}"));
        }
        eprintln!(": {} inputs in {:.1} s", inputs.len(), start.elapsed().as_secs_f64());
    }
}

#[test]
fn replay_the_first_third() {
    replay(0, 3);
}

#[test]
fn replay_the_second_third() {
    replay(1, 3);
}

#[test]
fn replay_the_last_third() {
    replay(2, 3);
}

#[test]
fn names_are_unique_and_folders_of_cases_belong_to_a_target() {
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TARGETS.len());
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(&name.as_str()) || name == "README.md", "no target is called {name}");
    }
}
