//! What CI runs. The tests come last, so that nextest's summary closes the log.

use std::path::Path;

use anyhow::Result;

use crate::process::{self, cargo};
use crate::{aarch64, metal, suite, tidy};

pub(crate) fn run(root: &Path) -> Result<()> {
    process::run(&mut cargo(root, &["fmt", "--all", "--", "--check"]))?;
    process::run(&mut cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    tidy::run(root)?;
    metal::check(root)?;
    aarch64::check(root)?;
    deny(root)?;
    suite::run(root, &[])
}

/// Licences, sources and duplicate versions, as `deny.toml` says. Advisories are left out: their database is a git
/// repository that CI cannot reach.
fn deny(root: &Path) -> Result<()> {
    if !process::is_installed("cargo-deny") {
        eprintln!("\n==> cargo deny: not installed, skipped");
        return Ok(());
    }
    process::run(&mut cargo(root, &["deny", "check", "bans", "licenses", "sources"]))
}
