//! Published client packages against the real server. `cargo xtask test` creates their environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod deepgram;
mod elevenlabs;
mod formats;
mod frameworks;
mod openai;
mod openai_node;
mod packages;
mod page;
mod realtime;
mod schemathesis;
mod together;
mod webrtc;
mod wyoming;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_server::{Loader, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, eventually};

/// The default ASR model (English only), a recording, and a word of it.
const LISTENER: &str = "whisper-tiny.en";
const RECORDING: &str = "assets/speech/jfk.wav";
const WORD: &str = "country";

/// Folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The model store of the tests.
fn home() -> PathBuf {
    std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from)
}

/// A server over the default models with real weights, once they are loaded.
async fn real_server(change: impl FnOnce(&mut ServerConfig)) -> Result<TestServer> {
    let home = home();
    let arbiter = DeviceArbiter::new();
    let loader: Loader = Arc::new(move |name: &str| {
        let home = Some(home.clone());
        let config =
            EngineCoreConfig { model: name.to_owned(), home, admission: false, ..Default::default() };
        Engine::sharing(config, &arbiter).map_err(|error| format!("{error:#}"))
    });
    let registry_config =
        RegistryConfig { default_asr: Some(LISTENER.to_owned()), ..RegistryConfig::new(DEFAULT_MODEL) };
    let registry = Registry::with_loader(registry_config, Vec::new(), loader);
    registry.load_defaults();
    let mut config = ServerConfig::default();
    change(&mut config);
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    eventually("the models to load", || async {
        let page = server.page("/readyz").await?;
        ensure!(!page.contains("failed"), "{page}; run `cargo xtask pull`");
        Ok(page.contains("\"ready\""))
    })
    .await?;
    Ok(server)
}

/// Runs `tests/clients/SCRIPT` with the pinned Python packages. Returns what it printed; a failure is an error that shows it.
async fn python(script: &str, arguments: &[&str]) -> Result<String> {
    run(Command::new(python_program()?), script, arguments).await
}

/// Python with the pinned packages.
fn python_program() -> Result<PathBuf> {
    let python =
        root().join(if cfg!(windows) { "target/venv/Scripts/python.exe" } else { "target/venv/bin/python" });
    ensure!(python.exists(), "{} is missing; run `cargo xtask test` once", python.display());
    Ok(python)
}

/// As [`python`], with the pinned packages of Node.js, which the script finds in `target/node`.
async fn node(script: &str, arguments: &[&str]) -> Result<String> {
    let packages = root().join("target/node/node_modules");
    ensure!(packages.exists(), "{} is missing; run `cargo xtask test` once", packages.display());
    run(Command::new("node"), script, arguments).await
}

async fn run(mut client: Command, script: &str, arguments: &[&str]) -> Result<String> {
    client.arg(root().join("tests/clients").join(script)).args(arguments).stdin(Stdio::null());
    // litellm asks for prices over the network otherwise, and waits.
    client.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    let output =
        tokio::task::spawn_blocking(move || client.output()).await?.context("the client does not start")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    Ok(stdout)
}
