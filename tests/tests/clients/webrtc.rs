//! Conversations of a headless Chromium over WebRTC, with the models that listen and speak as a user has them.

use anyhow::Result;
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_remote::{Pipeline, PipelineConfig};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Completion, Llm, TestServer};

use super::page::run_browser;
use super::{LISTENER, RECORDING, home, root};

const PIPELINE: &str = "webrtc-pipeline";

/// A server with a pipeline of the real models, in which a script is the language model.
async fn serve(llm: &Llm) -> Result<TestServer> {
    let arbiter = DeviceArbiter::new();
    let registry = Registry::new(RegistryConfig {
        default_asr: Some(LISTENER.to_owned()),
        ..RegistryConfig::new(DEFAULT_MODEL)
    });
    for model in [DEFAULT_MODEL, LISTENER] {
        let config = EngineCoreConfig {
            model: model.to_owned(),
            home: Some(home()),
            admission: false,
            ..Default::default()
        };
        let engine = Engine::sharing(config, &arbiter)?;
        engine.ready().await?;
        registry.set(model, Slot::Ready(engine));
    }
    let mut config = PipelineConfig::new(PIPELINE, vec![llm.url()], "scripted");
    config.llm.retries = 0;
    izwi_tests::provide_tls();
    let pipeline = Pipeline::connect(config, registry.engines_for_parts()).await?;
    registry.set(PIPELINE, Slot::Ready(pipeline.into_engine(EngineCoreConfig::default())?));
    TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await
}

/// The microphone hears the recording and then silence, again and again.
async fn check(llm: &Llm, part: &str, silence_s: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("said.wav");
    let mut reader = hound::WavReader::open(root().join(RECORDING))?;
    let (spec, samples) = (reader.spec(), reader.samples::<i16>().collect::<Result<Vec<_>, _>>()?);
    let mut writer = hound::WavWriter::create(&path, spec)?;
    let silence = vec![0; (silence_s * spec.sample_rate) as usize];
    samples.iter().chain(&silence).try_for_each(|sample| writer.write_sample(*sample))?;
    writer.finalize()?;
    let server = serve(llm).await?;
    run_browser("webrtc.mjs", &server, part, &path.display().to_string(), &[PIPELINE, LISTENER]).await?;
    server.assert_no_sessions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_talks_over_webrtc_and_hears_the_answer() -> Result<()> {
    let llm =
        Llm::start(|_, _| Completion::text(&["The harbour master ", "wrote it down in his book."])).await?;
    check(&llm, "talks", 60).await
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_interrupts_what_is_played_over_webrtc() -> Result<()> {
    let llm =
        Llm::start(|_, _| Completion::text(&["The boats went out at dawn and came back at dusk. "; 12]))
            .await?;
    check(&llm, "interrupts", 0).await
}
