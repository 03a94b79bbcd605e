//! The real `elevenlabs` package for Python against the real server with the weights of hibari and Whisper.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::{Engine, EngineCoreConfig};
use izwi_hub::LexiconStore;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{TestServer, eventually};

use super::{python, root};

const ASR: &str = "whisper-base";
const KEY: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn the_elevenlabs_package_speaks_streams_transcribes_and_lists() -> Result<()> {
    let home = std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from);
    // Models of the tests, and lexicons of this test alone.
    let own = tempfile::tempdir()?;
    std::os::unix::fs::symlink(home.join("models"), own.path().join("models"))?;
    let home = own.path().to_owned();
    let load = async |model: &str| -> Result<Engine> {
        let (model, home) = (model.to_owned(), Some(home.clone()));
        let config = EngineCoreConfig { model, home, admission: false, ..EngineCoreConfig::default() };
        let engine = Engine::new(config)?;
        engine.ready().await?;
        Ok(engine)
    };
    let engine = load(DEFAULT_MODEL).await?;
    let default_asr = Some(ASR.to_owned());
    let registry = Registry::new(RegistryConfig { default_asr, ..RegistryConfig::new(DEFAULT_MODEL) });
    registry.set(DEFAULT_MODEL, Slot::Ready(engine.clone()));
    registry.set(ASR, Slot::Ready(load(ASR).await?));
    let lexicons = LexiconStore::open(Some(home.clone()));
    let server = ServerConfig { api_key: Some(KEY.to_owned()), lexicons, ..ServerConfig::default() };
    let server = TestServer::listen(server, registry, Recorder::install()?).await?;
    let url = format!("http://{}", server.address);
    let stdout = python("elevenlabs_client.py", &[&url, KEY]).await?;
    ensure!(stdout.contains("passed: cancel"), "{stdout}");
    // What was cancelled ends at once, and not when all of its text is spoken.
    eventually("the engine to be idle", || async {
        let status = engine.status();
        Ok(status.running + status.pending == 0)
    })
    .await?;
    server.assert_no_sessions().await
}
