//! The real `openai` package for Python against the real server. `cargo xtask test` creates its environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, Task};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, eventually};

/// The default ASR model (English only, no translation), and a word of [`RECORDING`].
const LISTENER: &str = "whisper-tiny.en";
const RECORDING: &str = "assets/speech/jfk.wav";
const WORD: &str = "country";
/// A simulated model that translates; loaded on first use.
const TRANSLATOR: &str = "simulated-translator";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn load(name: &str, arbiter: &Arc<DeviceArbiter>) -> Result<Engine> {
    let home = std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from);
    let config =
        EngineCoreConfig { model: name.to_owned(), home: Some(home), admission: false, ..Default::default() };
    if name != TRANSLATOR {
        return Ok(Engine::sharing(config, arbiter)?);
    }
    let model = SimulatedModel { transcribes: true, sample_rate: 16_000, ..Default::default() };
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    Ok(Engine::with_executor_on(config, executor, arbiter)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_runs_speech_and_transcription() -> Result<()> {
    let python =
        root().join(if cfg!(windows) { "target/venv/Scripts/python.exe" } else { "target/venv/bin/python" });
    ensure!(python.exists(), "{} is missing; run `cargo xtask test` once", python.display());
    let arbiter = DeviceArbiter::new();
    let loader: Loader =
        Arc::new(move |name: &str| load(name, &arbiter).map_err(|error| format!("{error:#}")));
    let registry_config =
        RegistryConfig { default_asr: Some(LISTENER.to_owned()), ..RegistryConfig::new(DEFAULT_MODEL) };
    let translator = Offer { id: TRANSLATOR.to_owned(), tasks: vec![Task::Asr], bytes: 0 };
    let registry = Registry::with_loader(registry_config, vec![translator], loader);
    registry.load_defaults();
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    eventually("the models to load", || async {
        let page = server.page("/readyz").await?;
        ensure!(!page.contains("failed"), "{page}; run `cargo xtask pull`");
        Ok(page.contains("\"ready\""))
    })
    .await?;

    let mut client = Command::new(python);
    client.arg(root().join("tests/openai/client.py")).arg(format!("http://{}", server.address));
    client.arg(root().join(RECORDING)).args([LISTENER, WORD, TRANSLATOR]).stdin(Stdio::null());
    let output =
        tokio::task::spawn_blocking(move || client.output()).await?.context("python does not start")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(stdout.contains("passed: concurrent requests"), "{stdout}");
    Ok(())
}
