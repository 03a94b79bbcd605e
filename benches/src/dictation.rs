//! A client of live transcription: sends a recording as fast as it is spoken, and notes when each word is committed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use izwi_audio::pcm;
use izwi_core::engine::Engine;
use izwi_hub::Store;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::{Incoming, Session, TestServer};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::clips::{self, Clip};
use crate::engines;

/// Pause before each recording of a stream and after the last, in samples.
const PAUSE: usize = 3 * clips::RATE_HZ as usize / 2;
/// Samples of a message: 100 ms.
const MESSAGE: usize = clips::RATE_HZ as usize / 10;
const MESSAGE_TIME: Duration = Duration::from_millis(100);

/// What a client sends.
#[derive(Debug, Clone)]
pub struct Dictation {
    /// ASR model.
    pub model: String,
    /// `latency_ms` of the session; the server's default without it.
    pub latency_ms: Option<u64>,
    /// Mono samples at [`clips::RATE_HZ`].
    pub samples: Vec<f32>,
    /// Whether they are sent as fast as they are spoken, or else as fast as they are taken.
    pub is_paced: bool,
    /// Print the frames that are received.
    pub trace: bool,
}

/// What a client received.
#[derive(Debug, Clone, Default)]
pub struct Dictated {
    /// Milliseconds from the end of each committed word to the message that has it.
    pub lags_ms: Vec<f64>,
    /// The texts of the turns.
    pub text: String,
    /// Turns whose text is not what was committed.
    pub revised: usize,
    /// What was committed of the turn in progress.
    turn: String,
}

/// A server of this process with one ASR model, and the detector of speech that is installed.
///
/// # Errors
/// The store cannot be opened, or no port is free.
pub async fn serve(model: &str, engine: Engine) -> Result<TestServer> {
    let recorder = Recorder::install()?;
    let config = RegistryConfig { default_asr: Some(model.to_owned()), ..RegistryConfig::new("none") };
    let registry = Registry::new(config);
    registry.set("none", Slot::Failed("this bench has none".to_owned()));
    registry.set(model, Slot::Ready(engine));
    let vad_weights = Some(Store::open(Some(engines::home()))?.vad_weights());
    let config = ServerConfig { vad_weights, ..ServerConfig::default() };
    TestServer::listen(config, registry, recorder).await
}

/// Recordings with pauses, and what is said in them.
///
/// # Errors
/// A recording cannot be read.
pub fn stream(clips: &[Clip]) -> Result<(Vec<f32>, String)> {
    let (mut samples, mut reference) = (Vec::new(), String::new());
    for clip in clips {
        samples.resize(samples.len() + PAUSE, 0.0);
        samples.extend(clips::samples(&clip.path)?);
        reference = format!("{reference} {}", clip.reference);
    }
    samples.resize(samples.len() + PAUSE, 0.0);
    Ok((samples, reference))
}

impl Dictation {
    /// Sends the samples, and receives until the session is done.
    ///
    /// # Errors
    /// The connection fails, or the server answers with an error.
    pub async fn run(&self, server: SocketAddr) -> Result<Dictated> {
        let mut session = Session::open(&format!("ws://{server}/v1/audio/transcriptions/stream")).await?;
        let mut config =
            json!({"type": "session.config", "model": self.model, "language": "en", "word_times": true});
        if let Some(latency_ms) = self.latency_ms {
            config["latency_ms"] = json!(latency_ms);
        }
        session.send(config).await?;
        session.expect("session.created").await?;
        let begun = Instant::now();
        let mut dictated = Dictated::default();
        for (n, message) in (1u32..).zip(self.samples.chunks(MESSAGE)) {
            let due = if self.is_paced { begun + MESSAGE_TIME * n } else { begun };
            loop {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(due.into()) => break,
                    frame = session.frame() => { self.note(&frame?, begun, &mut dictated)?; }
                };
            }
            let mut bytes = Vec::with_capacity(2 * message.len());
            pcm::write_i16_le(message, &mut bytes);
            session.send_raw(Message::binary(bytes)).await?;
        }
        session.send(json!({"type": "input.done"})).await?;
        loop {
            match session.next().await? {
                Incoming::Frame(frame) if self.note(&frame, begun, &mut dictated)? => return Ok(dictated),
                Incoming::Frame(_) => {}
                other => bail!("the session ends with {other:?}"),
            }
        }
    }

    /// Notes a frame. True for the last.
    #[allow(clippy::print_stderr, reason = "the trace is asked for")]
    fn note(&self, frame: &Value, begun: Instant, dictated: &mut Dictated) -> Result<bool> {
        let now_ms = begun.elapsed().as_secs_f64() * 1e3;
        if self.trace {
            eprintln!("{now_ms:8.0} {frame}");
        }
        let text = || frame["text"].as_str().context("a frame has no text");
        match frame["type"].as_str() {
            Some("session.done") => return Ok(true),
            Some("committed") => {
                dictated.turn.push_str(text()?);
                let words = frame["words"].as_array().context("a frame has no words")?;
                let ends = words.iter().filter_map(|word| word["end_ms"].as_f64());
                dictated.lags_ms.extend(ends.map(|end_ms| now_ms - end_ms));
            }
            Some("turn.end") => {
                let turn = std::mem::take(&mut dictated.turn);
                dictated.revised += usize::from(turn.trim() != text()?);
                dictated.text = format!("{} {}", dictated.text, turn.trim());
            }
            Some("error") => bail!("the server answers {frame}"),
            _ => {}
        }
        Ok(false)
    }
}
