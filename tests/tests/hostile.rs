//! Hostile input from a corpus that code generates, with fixed seeds, against one server: bodies, recordings, forms, frames,
//! heads and slow clients.
//!
//! Every answer has a status below 500, every refusal has the bounded error envelope, the server serves as before
//! afterwards, and its memory stays within 256 MiB of the start.

mod bodies;
mod frames;
mod heads;
mod media;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use izwi_core::engine::executor::simulated::{SimulatedExecutor, SimulatedModel};
use izwi_core::engine::{Engine, EngineCoreConfig, Precision};
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{TestServer, base64, copy, eventually, guarded, recording};
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

const SPEECH: &str = "/v1/audio/speech";
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";
const VOICES: &str = "/v1/audio/voices";

/// Simulated models: of speech with cloning, of transcription, of conversations. And a real one with tiny random weights.
const SPEAKER: &str = "speaker";
const LISTENER: &str = "listener";
const PARTNER: &str = "partner";
const REAL: &str = "lfm2-audio-1.5b";

/// The most bytes of an error body.
const MAX_ERROR_BYTES: usize = 8 << 10;
/// How much the memory of the process may grow. The corpus, the clients and the server share it.
const MAX_GROWTH_BYTES: u64 = 256 << 20;
/// How long the server waits for heads and bodies.
const STALL: Duration = Duration::from_secs(8);
/// Requests at once.
const CLIENTS: usize = 8;

/// One request body with its content type.
struct Body {
    path: &'static str,
    kind: String,
    bytes: Vec<u8>,
}

impl Body {
    fn json(path: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path, kind: "application/json".to_owned(), bytes: bytes.into() }
    }

    fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        format!("{} {} bytes: {}", self.path, self.bytes.len(), text.chars().take(300).collect::<String>())
    }
}

/// A server with all models.
struct Victim {
    server: TestServer,
    engines: Vec<Engine>,
    client: Client,
    _folder: TempDir,
}

impl Victim {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lfm2_audio");
        let models = folder.path().join("models");
        copy(&golden, &models.join(REAL))?;
        let recorder = Recorder::install()?;
        let registry = Registry::new(RegistryConfig {
            default_asr: Some(LISTENER.to_owned()),
            ..RegistryConfig::new(SPEAKER)
        });
        let real = Engine::new(EngineCoreConfig {
            home: Some(folder.path().to_path_buf()),
            models_dir: Some(models),
            dtype: Precision::F32,
            max_blocks: 512,
            num_threads: 2,
            ..EngineCoreConfig::for_lfm2()
        })?;
        let units = SimulatedModel { autoregressive: false, samples_per_token: 100, ..Default::default() };
        let engines = vec![
            real,
            simulated(SPEAKER, SimulatedModel { clones_voices: true, ..units })?,
            simulated(
                LISTENER,
                SimulatedModel { transcribes: true, sample_rate: 16_000, ..Default::default() },
            )?,
            simulated(PARTNER, SimulatedModel { chats: true, ..Default::default() })?,
        ];
        for engine in &engines {
            engine.ready().await?;
            registry.set(&engine.profile().model, Slot::Ready(engine.clone()));
        }
        let config = ServerConfig {
            voices: Some(izwi_hub::VoiceStore::at(folder.path().join("voices"))),
            header_timeout: STALL,
            body_timeout: STALL,
            upload_timeout: STALL,
            ..ServerConfig::default()
        };
        let server = TestServer::listen(config, registry, recorder).await?;
        // The server closes idle connections: the client must do so before.
        let client = Client::builder().pool_idle_timeout(STALL / 4).build()?;
        Ok(Self { server, engines, client, _folder: folder })
    }

    /// Sends requests, some at once, and checks each answer. Returns how many were accepted.
    async fn send(&self, bodies: Vec<Body>) -> Result<usize> {
        let answers = futures::stream::iter(bodies).map(|body| self.send_one(body));
        answers.buffer_unordered(CLIENTS).try_fold(0, |sum, one| async move { Ok(sum + one) }).await
    }

    async fn send_one(&self, body: Body) -> Result<usize> {
        let shown = body.shown();
        let request = self.client.post(self.server.url(body.path)).header("content-type", body.kind);
        let response = guarded(request.body(body.bytes).send()).await?.with_context(|| shown.clone())?;
        let status = response.status().as_u16();
        let bytes = guarded(response.bytes()).await?.with_context(|| shown.clone())?;
        if status < 300 {
            return Ok(1);
        }
        check_refusal(status, &bytes).with_context(|| shown)?;
        Ok(0)
    }

    /// Checks that each kind of request is served.
    async fn serves(&self) -> Result<()> {
        let speech = json!({"model": "tts-1", "input": "A normal sentence."});
        let response = self.server.speech(&speech).await?;
        ensure!(response.status() == 200, "speech: {}", response.status());
        ensure!(response.bytes().await?.len() > 44);
        let audio = base64(&recording(2.0));
        let response =
            self.server.post(TRANSCRIPTIONS, &json!({"model": "whisper-1", "audio": audio})).await?;
        ensure!(response.json::<Value>().await?["text"] == "word0 word1");
        let real = json!({"model": REAL, "input": "A normal sentence.", "max_tokens": 4, "seed": 1});
        let response = self.server.speech(&real).await?;
        ensure!(response.status() == 200, "{REAL}: {}", response.status());
        drop(response.bytes().await?);
        self.server.session().await?.speak("A normal sentence.").await?;
        for engine in &self.engines {
            eventually("the engines to be idle", || async {
                let status = engine.status();
                Ok(status.running + status.pending == 0 && status.kv.used_blocks == 0)
            })
            .await?;
            let checked = engine.check_invariants().await?;
            ensure!(checked.is_ok(), "{checked:?}");
        }
        Ok(())
    }
}

fn simulated(name: &str, model: SimulatedModel) -> Result<Engine> {
    let config = EngineCoreConfig { model: name.to_owned(), num_threads: 2, ..Default::default() };
    let executor = SimulatedExecutor::new(&config, model);
    Ok(Engine::with_executor(config, Box::new(executor))?)
}

/// Checks the answer to a refused request.
fn check_refusal(status: u16, body: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(body);
    let shown = text.chars().take(300).collect::<String>();
    ensure!((400..500).contains(&status), "status {status}: {shown}");
    ensure!(body.len() <= MAX_ERROR_BYTES, "an error of {} bytes: {shown}", body.len());
    let envelope: Value = serde_json::from_slice(body).with_context(|| format!("{status}: {shown}"))?;
    let error = &envelope["error"];
    let is_text = |member: &str| error[member].as_str().is_some_and(|text| !text.is_empty());
    ensure!(is_text("message") && is_text("type") && is_text("code"), "{status}: {shown}");
    ensure!(error["param"].is_null() || is_text("param"), "{status}: {shown}");
    Ok(())
}

/// Resident memory of this process; `None` where the system does not tell.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Checks that the memory has not grown much since `before`.
fn check_memory(before: Option<u64>, what: &str) -> Result<()> {
    if let (Some(before), Some(now)) = (before, resident_bytes()) {
        let grown = now.saturating_sub(before);
        ensure!(grown <= MAX_GROWTH_BYTES, "{} MiB more behind {what}", grown >> 20);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_input_is_refused_and_the_server_serves_as_before() -> Result<()> {
    let victim = Victim::start().await?;
    victim.serves().await?;
    let before = resident_bytes();
    let stalled = heads::stall(&victim).await?;
    for (what, corpus) in [
        ("wrong values", bodies::wrong_values()),
        ("broken JSON", bodies::broken_json()),
        ("base64", media::base64_faults()),
        ("recordings", media::damaged_recordings()),
        ("forms", media::damaged_forms()),
    ] {
        let count = corpus.len();
        let accepted = victim.send(corpus).await.with_context(|| what.to_owned())?;
        println!("{what}: {count} inputs, {accepted} accepted");
        check_memory(before, what)?;
    }
    // Large inputs one at a time: the client's copy counts too.
    for body in bodies::huge() {
        let shown = body.shown();
        ensure!(victim.send_one(body).await? == 0, "accepted: {shown}");
        check_memory(before, &shown)?;
    }
    let frames = frames::attack(&victim).await?;
    let heads = heads::attack(&victim).await?;
    println!("{frames} frames, {heads} heads");
    drop(stalled);
    check_memory(before, "all")?;
    victim.serves().await?;
    victim.server.assert_no_sessions().await
}

/// Each answer to a wrong value of many bytes is short, and the value stays out of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_value_is_not_sent_back() -> Result<()> {
    let victim = Victim::start().await?;
    // Debug formatting and JSON would each lengthen it.
    let long = "\u{7f}\"é".repeat(100_000);
    for (path, field) in [
        (TRANSCRIPTIONS, "language"),
        (TRANSCRIPTIONS, "response_format"),
        (TRANSCRIPTIONS, "temperature"),
        (TRANSCRIPTIONS, "priority"),
        (TRANSCRIPTIONS, "model"),
        (VOICES, "name"),
        (VOICES, "overwrite"),
        (SPEECH, "voice"),
        (SPEECH, "speed"),
        (SPEECH, "priority"),
        (SPEECH, "stream_format"),
    ] {
        let mut body = bodies::valid(path);
        body["model"] = json!(if path == TRANSCRIPTIONS { REAL } else { SPEAKER });
        body[field] = json!(long);
        let response = victim.server.post(path, &body).await?;
        let (status, bytes) = (response.status().as_u16(), response.bytes().await?);
        ensure!(bytes.len() < 3_000, "{path} {field}: {} bytes", bytes.len());
        check_refusal(status, &bytes).with_context(|| format!("{path} {field}"))?;
    }
    let mut session = victim.server.session().await?;
    for field in ["voice", "model", "speed", "priority", "response_format"] {
        let frame = json!({"type": "session.config", field: "\u{7f}".repeat(200_000)}).to_string();
        session.send_raw(tokio_tungstenite::tungstenite::Message::text(frame)).await?;
        let error = session.expect("error").await?.to_string();
        ensure!(error.len() < 3_000, "{field}: {} bytes", error.len());
    }
    Ok(())
}
