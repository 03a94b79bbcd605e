//! Frameworks of voice agents, SDKs of language models and Home Assistant's integration, each its published package, against
//! the real server with real weights, and a simulated chat model.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig, Task};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{TestServer, eventually};

use super::{LISTENER, home, node, python, root};

/// A simulated chat model, whose answers are about as long as what it hears.
const CHAT_MODEL: &str = "simulated-converser";

fn load(name: &str, arbiter: &Arc<DeviceArbiter>) -> Result<Engine> {
    let config = EngineCoreConfig {
        model: name.to_owned(),
        home: Some(home()),
        admission: false,
        ..Default::default()
    };
    if name != CHAT_MODEL {
        return Ok(Engine::sharing(config, arbiter)?);
    }
    let model = SimulatedModel { chats: true, step_time: Duration::from_millis(5), ..Default::default() };
    let executor = Box::new(SimulatedExecutor::new(&config, model));
    Ok(Engine::with_executor_on(config, executor, arbiter)?)
}

async fn start() -> Result<TestServer> {
    let arbiter = DeviceArbiter::new();
    let loader: Loader =
        Arc::new(move |name: &str| load(name, &arbiter).map_err(|error| format!("{error:#}")));
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
    Ok(server)
}

/// Two sentences that a user says.
fn sentences() -> Result<[String; 2]> {
    let path = |number: &str| {
        let path = root().join(format!("assets/speech/sense_and_sensibility_01_austen_64kb-{number}.wav"));
        anyhow::Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
    };
    Ok([path("0880")?, path("0930")?])
}

/// Runs a client with the address, both sentences and the names of its parts, all of them if there are none; `last` is what it
/// checks in the end.
async fn run(script: &str, parts: &[&str], last: &str) -> Result<()> {
    let server = start().await?;
    let (url, [first, second]) = (server.url(""), sentences()?);
    let arguments = [&[&*url, &*first, &*second], parts].concat();
    let stdout = python(&format!("frameworks/{script}"), &arguments).await?;
    ensure!(stdout.contains(&format!("passed: {last}")), "{stdout}");
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_pipecat_converse_over_http() -> Result<()> {
    let last = "a conversation with an interruption over OpenAI's STT and ElevenLabs over HTTP";
    run("pipecat_client.py", &["errors", "openai", "elevenlabs_http"], last).await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_pipecat_converse_over_sockets() -> Result<()> {
    let last = "a conversation with an interruption over OpenAI's realtime STT and ElevenLabs' WebSocket";
    run("pipecat_client.py", &["deepgram", "elevenlabs"], last).await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_pipecat_converse_over_realtime() -> Result<()> {
    run("pipecat_client.py", &["realtime"], "a conversation over OpenAI Realtime").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugins_of_livekit_speak_transcribe_and_converse() -> Result<()> {
    run("livekit_client.py", &[], "a reply after items of both roles").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_agents_package_runs_pipelines_and_sessions() -> Result<()> {
    run("agents_client.py", &[], "an unknown model is reported").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_litellm_package_speaks_and_transcribes() -> Result<()> {
    let server = start().await?;
    let [first, _] = sentences()?;
    let stdout = python("frameworks/litellm_client.py", &[&server.url(""), &first]).await?;
    ensure!(stdout.contains("passed: an unknown model is reported"), "{stdout}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ai_sdk_speaks_and_transcribes() -> Result<()> {
    let server = start().await?;
    let [first, _] = sentences()?;
    let stdout = node("frameworks/ai_client.mjs", &[&server.url(""), &first]).await?;
    ensure!(stdout.contains("passed: an unknown model is reported"), "{stdout}");
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_integration_of_home_assistant_speaks_and_transcribes() -> Result<()> {
    let server = start().await?;
    let [first, _] = sentences()?;
    let wheel = root().join("target/homeassistant");
    ensure!(wheel.exists(), "{} is missing; run `cargo xtask test` once", wheel.display());
    let wheel = wheel.to_str().context("the path is not UTF-8")?;
    let address = server.wyoming;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [wheel, &server.url(""), &host, &port, &first];
    let stdout = python("frameworks/home_assistant_client.py", &arguments).await?;
    ensure!(stdout.contains("passed: errors are reported"), "{stdout}");
    server.assert_no_sessions().await
}
