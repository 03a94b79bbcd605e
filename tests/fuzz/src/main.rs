//! The targets under libFuzzer: `IZWI_FUZZ_TARGET` names one, `IZWI_FUZZ_SEEDS` the folder for its seeds, and libFuzzer
//! reads the arguments. Without a target it prints the targets. `cargo xtask fuzz` builds and starts it.
#![forbid(unsafe_code)]
#![no_main]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of the terminal")]

use std::alloc::System;
use std::path::Path;
use std::sync::OnceLock;

use cap::Cap;
use izwi_fuzz::{MEMORY_LIMIT, TARGETS, Target, guarded, inputs, target};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_LIMIT);

static SELECTED: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: select(),
    |bytes: &[u8]| {
        if let Some(target) = SELECTED.get()
            && let Err(message) = guarded(|| (target.run)(bytes))
        {
            eprintln!("target {}: {message}", target.name);
            // libFuzzer writes the input to a file and ends.
            std::process::abort();
        }
    }
);

/// Selects the target, and writes its seeds before libFuzzer reads them.
fn select() {
    let Some(name) = std::env::var("IZWI_FUZZ_TARGET").ok() else {
        TARGETS.iter().for_each(|target| println!("{} {}", target.name, target.max_bytes));
        std::process::exit(0);
    };
    let Some(found) = target(&name) else {
        eprintln!("there is no target '{name}'");
        std::process::exit(2);
    };
    if let Some(folder) = std::env::var_os("IZWI_FUZZ_SEEDS") {
        for (index, input) in inputs(found).iter().enumerate() {
            if let Err(error) = std::fs::write(Path::new(&folder).join(format!("seed-{index}")), input) {
                eprintln!("the seeds cannot be written: {error}");
                std::process::exit(2);
            }
        }
    }
    // libFuzzer's own hook would end the process at panics that a reader catches. This sets another.
    let _ = guarded(|| {});
    let _ = SELECTED.set(found);
}
