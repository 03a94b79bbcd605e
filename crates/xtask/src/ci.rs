//! What CI runs. The tests come last, so that the summary of nextest ends the log.

use std::path::Path;

use anyhow::Result;

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::{aarch64, alsa, book, darwin, emulate, inlining, monitoring, packaging, suite, tidy};

pub(crate) fn run(root: &Path, steps: &mut Steps) -> Result<()> {
    steps.run("format", &mut cargo(root, &["fmt", "--all", "--", "--check"]))?;
    alsa::make(steps)?;
    let mut clippy = cargo(root, &["clippy", "--workspace", "--all-targets"]);
    steps.run("clippy", clippy.args(alsa::features()).args(["--", "-D", "warnings"]))?;
    steps.time("tidy", || tidy::run(root))?;
    monitoring::check(root, steps)?;
    packaging::check(root, steps)?;
    book::build(root, steps)?;
    darwin::check(root, steps)?;
    aarch64::check(root, steps)?;
    inlining::check(root, steps)?;
    deny(root, steps)?;
    suite::prepare(root, steps)?;
    // After the pull: some of its tests read real weights.
    emulate::check(root, steps)?;
    suite::run_prepared(root, steps)?;
    steps.save(root, "ci")
}

/// Licences, sources and duplicate versions, as `deny.toml` says. Advisories are left out: their database is a git
/// repository that CI cannot reach.
fn deny(root: &Path, steps: &mut Steps) -> Result<()> {
    if !process::is_installed("cargo-deny") {
        eprintln!("\n==> cargo deny: not installed, skipped");
        return Ok(());
    }
    steps.run("cargo-deny", &mut cargo(root, &["deny", "check", "bans", "licenses", "sources"]))
}
