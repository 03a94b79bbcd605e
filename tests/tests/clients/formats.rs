//! Every format through the decoders of FFmpeg (PyAV): what HTTP and WebSocket send, and what they send first.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_audio::encode::FORMATS;
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreConfig};
use izwi_server::{Loader, Recorder, Registry, RegistryConfig, ServerConfig};
use izwi_tests::{Gate, Setup, TestServer, eventually, guarded};
use serde_json::json;

use super::{python, root};

/// The first sentence, 0.4 s of simulated audio, is generated while the rest is held.
const TEXT: &str = "This sentence has just enough words to fill more than a chunk, and some more of them to be sure. \
                    This sentence comes later.";
/// Bytes of early audio: more than the header of any format.
const EARLY_BYTES: usize = 600;

#[tokio::test(flavor = "multi_thread")]
async fn ffmpeg_decodes_every_format_of_the_server() -> Result<()> {
    let arbiter = DeviceArbiter::new();
    let loader: Loader = Arc::new(move |name: &str| {
        let home =
            std::env::var_os("IZWI_HOME").map_or_else(|| root().join("target/izwi-home"), PathBuf::from);
        let model = name.to_owned();
        let config = EngineCoreConfig { model, home: Some(home), admission: false, ..Default::default() };
        Engine::sharing(config, &arbiter).map_err(|error| format!("{error:#}"))
    });
    let registry = Registry::with_loader(RegistryConfig::new(DEFAULT_MODEL), Vec::new(), loader);
    registry.load_defaults();
    let server = TestServer::listen(ServerConfig::default(), registry, Recorder::install()?).await?;
    eventually("the model to load", || async {
        let page = server.page("/readyz").await?;
        ensure!(!page.contains("failed"), "{page}; run `cargo xtask pull`");
        Ok(page.contains("\"ready\""))
    })
    .await?;
    let stdout = python("formats_client.py", &["server", &format!("http://{}", server.address)]).await?;
    ensure!(stdout.contains("passed: everything"), "{stdout}");
    Ok(())
}

/// The gate holds the last sentence until each client has decodable audio of the first.
#[tokio::test(flavor = "multi_thread")]
async fn audio_arrives_before_the_last_sample_is_generated() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for format in FORMATS {
        let held = || Gate::new(|plan| plan.schedule.items().any(|item| item.start > 0));
        if format.media_type.is_some() {
            let (gate, script) = held();
            let server = Setup::units("early-http").script(script).start().await?;
            let body = json!({"model": "tts-1", "input": TEXT, "response_format": format.name});
            let mut response = server.speech(&body).await?;
            let mut early = Vec::new();
            while early.len() < EARLY_BYTES {
                early.extend(guarded(response.chunk()).await??.context("the body goes on")?);
            }
            std::fs::write(folder.path().join(format!("http.{}", format.name)), &early)?;
            gate.open();
            let mut rest = 0;
            while let Some(bytes) = guarded(response.chunk()).await?? {
                rest += bytes.len();
            }
            ensure!(rest > 0, "{}: all of it came early", format.name);
        }
        let (gate, script) = held();
        let server = Setup::units("early-socket").script(script).start().await?;
        let mut session = server.session().await?;
        let speak = json!({"type": "speak", "text": TEXT, "response_format": format.name, "chunk_ms": 100});
        session.send(speak).await?;
        session.expect("session.created").await?;
        session.expect("audio.start").await?;
        let mut early = Vec::new();
        while early.len() < EARLY_BYTES {
            let (chunk, bytes) = session.chunk().await?;
            ensure!(chunk["is_final"] == false, "{chunk}");
            early.extend(bytes);
        }
        std::fs::write(folder.path().join(format!("socket.{}", format.name)), &early)?;
        gate.open();
    }
    let path = folder.path().to_str().context("the path is not UTF-8")?;
    let stdout = python("formats_client.py", &["early", path]).await?;
    ensure!(stdout.contains("passed: everything"), "{stdout}");
    ensure!(stdout.matches("early audio").count() == 2 * FORMATS.len() - 1, "{stdout}");
    Ok(())
}
