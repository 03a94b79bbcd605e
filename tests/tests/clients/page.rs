//! The web page in a headless Chromium, driven by Playwright, over the real server.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::config::DEFAULT_MODEL;
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, Precision, Task};
use izwi_hub::{LexiconStore, Store, VoiceStore};
use izwi_server::{Loader, Offer, Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Completion, Llm, Setup, TestServer, live_speakers};
use izwi_types::TurnEnds;

use crate::pipelines::{serve, speaker};

use super::{LISTENER, RECORDING, home, node, real_server, root};

/// The browser: `IZWI_CHROMIUM`, or the first of these names. `cargo xtask test` installs it where it may.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// A model that translates.
const MULTILINGUAL: &str = "whisper-base";
const KEY: &str = "a-long-secret-key-for-the-page";

/// The browser; `None`, with a line that says so, where there is none.
fn browser() -> Option<String> {
    let set = std::env::var("IZWI_CHROMIUM").ok();
    let names = set.into_iter().chain(BROWSERS.map(str::to_owned));
    let starts = |name: &String| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let found = names.into_iter().find(starts);
    if found.is_none() {
        eprintln!(
            "skipped: no Chromium; install it (on Debian: `apt-get install chromium`), or set IZWI_CHROMIUM"
        );
    }
    found
}

/// Runs the checks of `part` in the browser. Pictures go to the folder `IZWI_PICTURES`, if that is set.
async fn check(server: &TestServer, part: &str, rest: &[&str]) -> Result<()> {
    let recording = root().join(RECORDING);
    let recording = recording.canonicalize().context(RECORDING)?.display().to_string();
    run_browser("page.mjs", server, part, &recording, rest).await
}

/// Runs `part` of a script in the browser, whose microphone hears a recording.
pub(super) async fn run_browser(
    script: &str,
    server: &TestServer,
    part: &str,
    recording: &str,
    rest: &[&str],
) -> Result<()> {
    let Some(browser) = browser() else { return Ok(()) };
    let url = server.url("/");
    let arguments = [&[part, url.as_str(), browser.as_str(), recording], rest].concat();
    let stdout = node(script, &arguments).await?;
    ensure!(stdout.contains(&format!("passed: all of {part}")), "{stdout}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_speaks_transcribes_and_shows_models_and_metrics() -> Result<()> {
    let voices = tempfile::tempdir()?;
    let store = Store::open(Some(home()))?;
    let server = real_server(|config| {
        config.voices = Some(VoiceStore::at(voices.path()));
        config.vad_weights = Some(store.vad_weights());
        config.store = Some(store);
    })
    .await?;
    check(&server, "real", &[DEFAULT_MODEL, LISTENER, MULTILINGUAL]).await
}

/// Each byte is said for as long.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_adds_chooses_and_deletes_a_lexicon() -> Result<()> {
    let home = tempfile::tempdir()?;
    let lexicons = LexiconStore::open(Some(home.path().to_path_buf()));
    let setup = Setup::reader("page-lexicons").server(|config| config.lexicons = lexicons);
    let setup = setup.engine(|engine| engine.home = Some(home.path().to_path_buf()));
    check(&setup.start().await?, "lexicons", &[]).await
}

/// Speakers are two, who take turns each second.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_tells_speakers_apart() -> Result<()> {
    const SAYS: [&str; 4] = [
        "Good morning, everybody. Shall we begin with the harbour?",
        "Yes. The pilots have asked for two more boats.",
        "Who pays for them?",
        "The town does, as it always has.",
    ];
    let server = Setup::listener_of("page-words", &SAYS).start().await?;
    let config = EngineCoreConfig {
        model: "page-speakers".to_owned(),
        admission: false,
        ..EngineCoreConfig::default()
    };
    let model =
        SimulatedModel { transcribes: true, diarizes: true, sample_rate: 16_000, ..Default::default() };
    let engine = Engine::with_executor(config.clone(), Box::new(SimulatedExecutor::new(&config, model)))?;
    engine.ready().await?;
    server.registry.set(config.model, Slot::Ready(engine));
    check(&server, "speakers", &[]).await
}

/// The speakers are of a tiny model, and have no sense.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_tells_who_speaks_in_a_recording() -> Result<()> {
    const SAYS: [&str; 3] = ["The boats are late.", "Are they?", "They always are."];
    let (server, _engine, _home) = live_speakers("page-live", &SAYS).await?;
    check(&server, "recording", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_deletes_a_model_once_its_name_is_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("models/page-old"))?;
    let loader: Loader = Arc::new(|name: &str| Err(format!("model '{name}' is not installed")));
    let offer = Offer { id: "page-old".to_owned(), tasks: vec![Task::Tts], bytes: 0 };
    let registry = Registry::with_loader(RegistryConfig::new(DEFAULT_MODEL), vec![offer], loader);
    let store = Some(Store::open(Some(folder.path().to_path_buf()))?);
    let config = ServerConfig { store, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    check(&server, "delete", &["page-old"]).await?;
    ensure!(browser().is_none() || !folder.path().join("models/page-old").exists(), "its files are there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_begins_jobs_and_tells_how_far_they_are() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let jobs = folder.path().join("jobs");
    let mut setup = Setup::units("page-jobs").server(|server| server.jobs = Some(jobs));
    setup.model.step_time = Duration::from_millis(40);
    check(&setup.start().await?, "jobs", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_asks_for_the_key() -> Result<()> {
    let setup = Setup::units("keyed-page").server(|server| server.api_key = Some(KEY.to_owned()));
    check(&setup.start().await?, "key", &[KEY]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_plays_more_slowly_while_little_waits() -> Result<()> {
    check(&Setup::units("page-stretch").start().await?, "stretch", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_makes_tries_and_deletes_a_voice() -> Result<()> {
    check(&Setup::cloner("page-cloner")?.start().await?, "voices", &["page-cloner"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_useful_without_a_model() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let loader: Loader = Arc::new(|name: &str| Err(format!("model '{name}' is not installed")));
    let registry = Registry::with_loader(RegistryConfig::new(DEFAULT_MODEL), Vec::new(), loader);
    registry.load_defaults();
    let store = Some(Store::open(Some(folder.path().to_path_buf()))?);
    let config = ServerConfig { store, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    check(&server, "empty", &[DEFAULT_MODEL]).await
}

/// From where a user's pull has it: the network is used.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_pulls_a_model_that_then_speaks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let home = folder.path().to_path_buf();
    let loader: Loader = Arc::new(move |name: &str| {
        let home = Some(home.clone());
        let config =
            EngineCoreConfig { model: name.to_owned(), home, admission: false, ..Default::default() };
        Engine::new(config).map_err(|error| format!("{error:#}"))
    });
    let registry = Registry::with_loader(RegistryConfig::new(DEFAULT_MODEL), Vec::new(), loader);
    registry.load_defaults();
    let store = Some(Store::open(Some(folder.path().to_path_buf()))?);
    let config = ServerConfig { store, ..ServerConfig::default() };
    let server = TestServer::listen(config, registry, Recorder::install()?).await?;
    check(&server, "pull", &[DEFAULT_MODEL]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_converses_and_is_interrupted_by_speech() -> Result<()> {
    let mut setup = Setup::converser("page-converser");
    // Long answers take seconds, so that they can be interrupted.
    setup.model.step_time = Duration::from_millis(5);
    check(&setup.start().await?, "converse", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_leaves_the_turns_of_a_pipeline_as_they_are() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&["Yes."])).await?;
    let turns = TurnEnds { eagerness: None, silence_ms: Some(900) };
    let server = serve("page-turns", &llm, speaker(), |config| config.turns = Some(turns)).await?;
    check(&server, "turns", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_converses_with_lfm2() -> Result<()> {
    const MODEL: &str = "lfm2-audio-1.5b";
    let set = std::env::var_os("IZWI_GOLDEN_LFM2_AUDIO").map(std::path::PathBuf::from);
    let files = set.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lfm2_audio"));
    let engine = EngineCoreConfig {
        model: MODEL.to_owned(),
        dtype: Precision::F32,
        max_blocks: 512,
        ..EngineCoreConfig::for_lfm2()
    };
    check(&TestServer::with_weights(engine, &files).await?, "model", &[]).await
}
