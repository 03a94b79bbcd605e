//! `schemathesis` (<https://schemathesis.readthedocs.io>) against the real server with simulated models: it reads
//! `/openapi.json`, sends what the document allows and what it forbids, and compares every answer with the document.

use anyhow::{Result, ensure};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_hub::VoiceStore;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::TestServer;

use super::python;

/// A server with a simulated model for each task, which saves voices in `folder`.
async fn server(folder: &std::path::Path) -> Result<TestServer> {
    let arbiter = DeviceArbiter::new();
    let speaker = SimulatedModel {
        autoregressive: false,
        samples_per_token: 10,
        clones_voices: true,
        ..SimulatedModel::default()
    };
    let listener = SimulatedModel { transcribes: true, sample_rate: 16_000, ..SimulatedModel::default() };
    let converser = SimulatedModel { chats: true, ..SimulatedModel::default() };
    let registry_config =
        RegistryConfig { default_asr: Some("listener".to_owned()), ..RegistryConfig::new("speaker") };
    let registry = Registry::new(registry_config);
    for (name, model) in [("speaker", speaker), ("listener", listener), ("converser", converser)] {
        let config = EngineCoreConfig {
            model: name.to_owned(),
            num_threads: 2,
            admission: false,
            ..EngineCoreConfig::default()
        };
        let executor = Box::new(SimulatedExecutor::new(&config, model));
        let engine = Engine::with_executor_on(config, executor, &arbiter)?;
        engine.ready().await?;
        registry.set(name, Slot::Ready(engine));
    }
    let config = ServerConfig { voices: Some(VoiceStore::at(folder)), ..ServerConfig::default() };
    TestServer::listen(config, registry, Recorder::install()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_keeps_to_its_document() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = server(folder.path()).await?;
    let stdout = python("schemathesis_client.py", &[&format!("http://{}", server.address)]).await?;
    ensure!(stdout.contains("passed: no violation"), "{stdout}");
    Ok(())
}
