//! Frameworks of voice agents, SDKs of language models and Home Assistant's integration, each its published package, against
//! the real server with real weights, and a tiny checkpoint as the chat model.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, Precision, Task};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, copy, eventually};
use tempfile::TempDir;

use super::{LISTENER, home, node, python, root};

const CHAT_MODEL: &str = "lfm2-audio-1.5b";

struct Served {
    server: TestServer,
    /// Has the checkpoint of the chat model.
    _models: TempDir,
}

impl Served {
    async fn start() -> Result<Self> {
        let models = tempfile::tempdir()?;
        copy(&root().join("tests/golden/lfm2_audio"), &models.path().join(CHAT_MODEL))?;
        let folder = models.path().to_owned();
        let arbiter = DeviceArbiter::new();
        let loader: Loader = Arc::new(move |name: &str| {
            let config = EngineCoreConfig { model: name.to_owned(), admission: false, ..Default::default() };
            let config = match name {
                CHAT_MODEL => EngineCoreConfig {
                    dtype: Precision::F32,
                    models_dir: Some(folder.clone()),
                    max_blocks: 512,
                    model: config.model,
                    admission: false,
                    ..EngineCoreConfig::for_lfm2()
                },
                _ => EngineCoreConfig { home: Some(home()), ..config },
            };
            Engine::sharing(config, &arbiter).map_err(|error| format!("{error:#}"))
        });
        let config =
            RegistryConfig { default_asr: Some(LISTENER.to_owned()), ..RegistryConfig::new(DEFAULT_MODEL) };
        let chat = Offer { id: CHAT_MODEL.to_owned(), tasks: vec![Task::Chat], bytes: 0 };
        let registry = Registry::with_loader(config, vec![chat], loader);
        registry.load_defaults();
        let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
        eventually("the models to load", || async {
            let page = server.page("/readyz").await?;
            ensure!(!page.contains("failed"), "{page}; run `cargo xtask pull`");
            Ok(page.contains("\"ready\""))
        })
        .await?;
        Ok(Self { server, _models: models })
    }

    fn url(&self) -> String {
        self.server.url("")
    }
}

/// Two sentences that a user says.
fn sentences() -> Result<[String; 2]> {
    let path = |number: &str| {
        let path = root().join(format!("assets/speech/sense_and_sensibility_01_austen_64kb-{number}.wav"));
        Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
    };
    Ok([path("0880")?, path("0930")?])
}

/// Runs a client with the address and both sentences; `last` is what it checks in the end.
async fn run(script: &str, last: &str) -> Result<()> {
    let served = Served::start().await?;
    let [first, second] = sentences()?;
    let stdout = python(&format!("frameworks/{script}"), &[&served.url(), &first, &second]).await?;
    ensure!(stdout.contains(&format!("passed: {last}")), "{stdout}");
    served.server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_pipecat_converse_over_every_dialect() -> Result<()> {
    run("pipecat_client.py", "a conversation with an interruption over").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugins_of_livekit_speak_transcribe_and_converse() -> Result<()> {
    run("livekit_client.py", "a reply behind items of both roles").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_agents_package_runs_pipelines_and_sessions() -> Result<()> {
    run("agents_client.py", "an unknown model is told").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_litellm_package_speaks_and_transcribes() -> Result<()> {
    let served = Served::start().await?;
    let [first, _] = sentences()?;
    let stdout = python("frameworks/litellm_client.py", &[&served.url(), &first]).await?;
    ensure!(stdout.contains("passed: an unknown model is told"), "{stdout}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ai_sdk_speaks_and_transcribes() -> Result<()> {
    let served = Served::start().await?;
    let [first, _] = sentences()?;
    let stdout = node("frameworks/ai_client.mjs", &[&served.url(), &first]).await?;
    ensure!(stdout.contains("passed: an unknown model is told"), "{stdout}");
    served.server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_integration_of_home_assistant_speaks_and_transcribes() -> Result<()> {
    let served = Served::start().await?;
    let [first, _] = sentences()?;
    let wheel = root().join("target/homeassistant");
    ensure!(wheel.exists(), "{} is missing; run `cargo xtask test` once", wheel.display());
    let wheel = wheel.to_str().context("the path is not UTF-8")?;
    let address = served.server.wyoming;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [wheel, &served.url(), &host, &port, &first];
    let stdout = python("frameworks/home_assistant_client.py", &arguments).await?;
    ensure!(stdout.contains("passed: errors are told"), "{stdout}");
    served.server.assert_no_sessions().await
}
