//! The real `openai` package for Python against the real server. `cargo xtask test` creates its environment.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, Task};
use izwi_hub::VoiceStore;
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, eventually};
use tempfile::TempDir;

use super::{python, root};

/// The default ASR model (English only, no translation), and a word of [`RECORDING`].
const LISTENER: &str = "whisper-tiny.en";
const RECORDING: &str = "assets/speech/jfk.wav";
const WORD: &str = "country";
/// A simulated model that translates; loaded on first use.
const TRANSLATOR: &str = "simulated-translator";
/// A simulated model that clones voices; loaded on first use.
const CLONER: &str = "simulated-cloner";

fn load(name: &str, arbiter: &Arc<DeviceArbiter>) -> Result<Engine> {
    let home = std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from);
    let config =
        EngineCoreConfig { model: name.to_owned(), home: Some(home), admission: false, ..Default::default() };
    let model = match name {
        TRANSLATOR => SimulatedModel { transcribes: true, sample_rate: 16_000, ..Default::default() },
        CLONER => SimulatedModel { clones_voices: true, ..Default::default() },
        _ => return Ok(Engine::sharing(config, arbiter)?),
    };
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    Ok(Engine::with_executor_on(config, executor, arbiter)?)
}

/// A server with real models and the simulated ones, and the folder of its voices.
pub(super) async fn server() -> Result<(TestServer, TempDir)> {
    let arbiter = DeviceArbiter::new();
    let loader: Loader =
        Arc::new(move |name: &str| load(name, &arbiter).map_err(|error| format!("{error:#}")));
    let registry_config =
        RegistryConfig { default_asr: Some(LISTENER.to_owned()), ..RegistryConfig::new(DEFAULT_MODEL) };
    let offer = |id: &str, task| Offer { id: id.to_owned(), tasks: vec![task], bytes: 0 };
    let offers = vec![offer(TRANSLATOR, Task::Asr), offer(CLONER, Task::Tts)];
    let registry = Registry::with_loader(registry_config, offers, loader);
    registry.load_defaults();
    let voices = tempfile::tempdir()?;
    let config = ServerConfig { voices: Some(VoiceStore::at(voices.path())), ..Default::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    eventually("the models to load", || async {
        let page = server.page("/readyz").await?;
        ensure!(!page.contains("failed"), "{page}; run `cargo xtask pull`");
        Ok(page.contains("\"ready\""))
    })
    .await?;
    Ok((server, voices))
}

/// The arguments of a client.
pub(super) fn arguments(server: &TestServer) -> Result<Vec<String>> {
    let recording = root().join(RECORDING);
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let url = format!("http://{}", server.address);
    Ok([&url, recording, LISTENER, WORD, TRANSLATOR, CLONER].map(str::to_owned).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_runs_speech_and_transcription() -> Result<()> {
    let (server, _voices) = server().await?;
    let arguments = arguments(&server)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let stdout = python("openai_client.py", &arguments).await?;
    ensure!(stdout.contains("passed: concurrent requests"), "{stdout}");
    Ok(())
}
