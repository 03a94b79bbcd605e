//! `schemathesis` (<https://schemathesis.readthedocs.io>) against the real server with simulated models: it reads
//! `/openapi.json`, sends what the document allows and what it forbids, and compares every answer with the document.

use std::sync::Arc;

use anyhow::{Result, ensure};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_hub::{LexiconStore, Task, VoiceStore};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, eventually};

use super::python;

const SPEAKER: &str = "speaker";
const LISTENER: &str = "listener";
const CONVERSER: &str = "converser";

/// An engine of the simulated model `name`.
fn load(name: &str, arbiter: &Arc<DeviceArbiter>) -> Result<Engine, String> {
    let model = match name {
        SPEAKER => SimulatedModel {
            autoregressive: false,
            samples_per_token: 10,
            clones_voices: true,
            ..SimulatedModel::default()
        },
        LISTENER => SimulatedModel { transcribes: true, sample_rate: 16_000, ..SimulatedModel::default() },
        CONVERSER => SimulatedModel { chats: true, ..SimulatedModel::default() },
        _ => return Err(format!("there is no model '{name}'")),
    };
    let config = EngineCoreConfig {
        model: name.to_owned(),
        num_threads: 2,
        admission: false,
        ..EngineCoreConfig::default()
    };
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    Engine::with_executor_on(config, executor, arbiter).map_err(|error| error.to_string())
}

/// A server with a simulated model for each task, which loads them again after an unload and saves voices and lexicons in `folder`.
async fn server(folder: &std::path::Path) -> Result<TestServer> {
    let arbiter = DeviceArbiter::new();
    let loader: Loader = Arc::new(move |name: &str| load(name, &arbiter));
    let registry_config =
        RegistryConfig { default_asr: Some(LISTENER.to_owned()), ..RegistryConfig::new(SPEAKER) };
    let offer = |id: &str, task| Offer { id: id.to_owned(), tasks: vec![task], bytes: 0 };
    let offers = vec![offer(SPEAKER, Task::Tts), offer(LISTENER, Task::Asr), offer(CONVERSER, Task::Chat)];
    let registry = Registry::with_loader(registry_config, offers, loader);
    registry.load_defaults();
    let lexicons = LexiconStore::open(Some(folder.to_owned()));
    let config = ServerConfig { voices: Some(VoiceStore::at(folder)), lexicons, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    eventually("the models", || async { Ok(server.get("/readyz").await?.status() == 200) }).await?;
    Ok(server)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_keeps_to_its_document() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = server(folder.path()).await?;
    let stdout = python("schemathesis_client.py", &[&format!("http://{}", server.address)]).await?;
    ensure!(stdout.contains("passed: no violation"), "{stdout}");
    Ok(())
}
