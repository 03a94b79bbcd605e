//! Fuzz targets, one for each reader of bytes that this process did not make: uploads, frames, files of models and users.
//!
//! A target is a function that calls such a reader and panics where it breaks a promise. `cargo xtask fuzz` runs targets
//! under libFuzzer, and `tests/replay.rs` runs their corpora and mutations of them. Knows no fuzzer.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a broken promise ends the process, and what the targets set up themselves is there"
)]

mod corpus;
pub mod mutation;
mod panics;
mod scratch;
mod targets;

pub use corpus::inputs;
pub use panics::guarded;
pub use targets::TARGETS;

/// The most memory of the process, in bytes: a reader that asks for more ends it, and is a finding.
pub const MEMORY_LIMIT: usize = 256 << 20;

/// One reader.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name on the command line, and of its folder of found cases.
    pub name: &'static str,
    /// Reads the input. Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The most bytes of an input.
    pub max_bytes: usize,
}

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
