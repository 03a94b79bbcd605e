//! The realtime client of the real `openai` package against the real server: transcription with real weights, and
//! conversations with the simulated model and with a tiny checkpoint.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{Engine, EngineCoreConfig, Precision};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Setup, TestServer};

use super::{python, root};

const ASR_MODEL: &str = "whisper-tiny.en";
const CHAT_MODEL: &str = "lfm2-audio-1.5b";

fn recording(name: &str) -> Result<String> {
    let path = root().join("assets/speech").join(format!("{name}.wav"));
    Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
}

fn sentence(number: &str) -> Result<String> {
    recording(&format!("sense_and_sensibility_01_austen_64kb-{number}"))
}

async fn run(server: &TestServer, what: &str, arguments: &[&str], last: &str) -> Result<()> {
    let url = format!("http://{}", server.address);
    let arguments = [&[what, &url], arguments].concat();
    let stdout = python("realtime_client.py", &arguments).await?;
    ensure!(stdout.contains(&format!("passed: {last}")), "{stdout}");
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_realtime_client_transcribes() -> Result<()> {
    let home = std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from);
    let model = ASR_MODEL.to_owned();
    let config = EngineCoreConfig { model, home: Some(home), admission: false, ..Default::default() };
    let engine = Engine::new(config).context("run `cargo xtask pull`")?;
    engine.ready().await?;
    let default_asr = Some(ASR_MODEL.to_owned());
    let registry = Registry::new(RegistryConfig { default_asr, ..RegistryConfig::new("no-speaker") });
    registry.set("no-speaker", Slot::Failed("this test has none".to_owned()));
    registry.set(ASR_MODEL, Slot::Ready(engine));
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    let recordings = [sentence("0880")?, sentence("0930")?, recording("jfk")?];
    let recordings = recordings.each_ref().map(String::as_str);
    run(&server, "transcription", &recordings, "errors name the event and the field").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_realtime_client_converses() -> Result<()> {
    let mut setup = Setup::converser("realtime-client");
    // Long answers take seconds, so that they can be interrupted.
    setup.model.step_time = Duration::from_millis(5);
    let server = setup.start().await?;
    let arguments = ["realtime-client", &sentence("0880")?];
    run(&server, "conversation", &arguments, "what is not supported is refused by its name").await?;
    server.assert_balanced().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_realtime_client_converses_with_lfm2() -> Result<()> {
    let set = std::env::var_os("IZWI_GOLDEN_LFM2_AUDIO").map(PathBuf::from);
    let checkpoint = set.unwrap_or_else(|| root().join("tests/golden/lfm2_audio"));
    let config = EngineCoreConfig {
        model: CHAT_MODEL.to_owned(),
        dtype: Precision::F32,
        max_blocks: 512,
        ..EngineCoreConfig::for_lfm2()
    };
    let server = TestServer::with_weights(config, &checkpoint).await?;
    let arguments = [CHAT_MODEL, &sentence("0880")?];
    run(&server, "model", &arguments, "the model answers after an interruption").await?;
    server.assert_balanced().await
}
