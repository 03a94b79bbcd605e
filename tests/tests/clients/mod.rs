//! Published client packages against the real server. `cargo xtask test` creates their environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod elevenlabs;
mod formats;
mod openai;
mod openai_node;
mod realtime;
mod schemathesis;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `tests/clients/SCRIPT` with the pinned Python packages. Returns what it printed; a failure is an error that shows it.
async fn python(script: &str, arguments: &[&str]) -> Result<String> {
    let python =
        root().join(if cfg!(windows) { "target/venv/Scripts/python.exe" } else { "target/venv/bin/python" });
    ensure!(python.exists(), "{} is missing; run `cargo xtask test` once", python.display());
    run(Command::new(python), script, arguments).await
}

/// As [`python`], with the pinned packages of Node.js, which the script finds in `target/node`.
async fn node(script: &str, arguments: &[&str]) -> Result<String> {
    let packages = root().join("target/node/node_modules");
    ensure!(packages.exists(), "{} is missing; run `cargo xtask test` once", packages.display());
    run(Command::new("node"), script, arguments).await
}

async fn run(mut client: Command, script: &str, arguments: &[&str]) -> Result<String> {
    client.arg(root().join("tests/clients").join(script)).args(arguments).stdin(Stdio::null());
    let output =
        tokio::task::spawn_blocking(move || client.output()).await?.context("the client does not start")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    Ok(stdout)
}
