//! Published client packages against the real server. `cargo xtask test` creates their environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod elevenlabs;
mod openai;
mod schemathesis;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `tests/clients/SCRIPT` with the pinned packages. Returns what it printed; a failure is an error that shows it.
async fn python(script: &str, arguments: &[&str]) -> Result<String> {
    let python =
        root().join(if cfg!(windows) { "target/venv/Scripts/python.exe" } else { "target/venv/bin/python" });
    ensure!(python.exists(), "{} is missing; run `cargo xtask test` once", python.display());
    let mut client = Command::new(python);
    client.arg(root().join("tests/clients").join(script)).args(arguments).stdin(Stdio::null());
    let output =
        tokio::task::spawn_blocking(move || client.output()).await?.context("python does not start")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    Ok(stdout)
}
