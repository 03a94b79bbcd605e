//! Live transcription over real sockets: the server runs in this process, and clients send recordings as fast as they are
//! spoken.
//!
//! A stream is the recordings of `assets/speech/` with pauses, alone or over noise or music; in the pauses too. Reports how
//! long after a word its text is committed, the processor time, words that were changed after they were committed, and the
//! errors beside those of the same recordings transcribed as files.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is this program's output")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use izwi_audio::{pcm, wav};
use izwi_benches::{clips, engines};
use izwi_core::engine::{Engine, EngineCoreRequest};
use izwi_hub::Store;
use izwi_server::{Recorder, Registry, RegistryConfig, ServerConfig, Slot};
use izwi_tests::synthetic::{mixed, music, noise};
use izwi_tests::wer::{Score, compare};
use izwi_tests::{Incoming, Session, TestServer};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// Measures streams that are transcribed while they are spoken.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// ASR model of the store.
    #[arg(long, default_value = "whisper-base")]
    model: String,
    /// Streams at once.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// What is below the speech and in the pauses.
    #[arg(long, value_enum, default_value = "none")]
    background: Background,
    /// `latency_ms` of the sessions; the server's default without it.
    #[arg(long)]
    latency_ms: Option<u64>,
    /// Print the frames that are received.
    #[arg(long)]
    trace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Background {
    None,
    Noise,
    Music,
}

/// Pause before each recording and behind the last, in samples.
const PAUSE: usize = 3 * clips::RATE_HZ as usize / 2;
/// Samples of a message: 100 ms.
const MESSAGE: usize = clips::RATE_HZ as usize / 10;
/// From the start of one stream to that of the next.
const STAGGER: Duration = Duration::from_millis(730);
/// Level of the background, RMS; that of the recordings is about 0.1.
const BACKGROUND_RMS: f32 = 0.01;

/// What a client received.
#[derive(Debug, Default)]
struct Heard {
    /// Milliseconds from the end of a word to its text.
    lags_ms: Vec<f64>,
    /// The texts of the turns.
    text: String,
    /// Turns whose text is not what was committed.
    revised: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    streams: usize,
    background: Background,
    audio_s: f64,
    words: usize,
    lag_ms_p50: f64,
    lag_ms_p95: f64,
    lag_ms_max: f64,
    /// Processor time over the length of the streams, of this process; for all of them together.
    cores: f64,
    revised_turns: usize,
    wer_live: f64,
    wer_file: f64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let (samples, reference) = stream(args.background)?;
    let engine = engines::load(&args.model, args.threads).await?;
    let file = transcribe(&engine, &samples).await?;
    let mut server = serve(&args.model, engine).await?;
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let clients = (0..args.streams as u32).map(|n| {
        let (args, server, samples) = (&args, &server, &samples);
        async move {
            tokio::time::sleep(STAGGER * n).await;
            listen(server, args, samples).await
        }
    });
    let heard = futures::future::try_join_all(clients).await?;
    let cores = (cpu_time()? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    server.stop();

    let score = |text: &str| compare(&reference, text).score();
    let live: Score = heard.iter().map(|heard| score(&heard.text)).sum();
    let mut lags: Vec<f64> = heard.iter().flat_map(|heard| heard.lags_ms.iter().copied()).collect();
    ensure!(!lags.is_empty(), "nothing was committed");
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| lags[((lags.len() - 1) as f64 * share).round() as usize].round();
    let report = Report {
        model: args.model.clone(),
        streams: args.streams,
        background: args.background,
        audio_s: samples.len() as f64 / f64::from(clips::RATE_HZ),
        words: lags.len(),
        lag_ms_p50: at(0.5),
        lag_ms_p95: at(0.95),
        lag_ms_max: at(1.0),
        cores: (cores * 1e3).round() / 1e3,
        revised_turns: heard.iter().map(|heard| heard.revised).sum(),
        wer_live: live.rate(),
        wer_file: score(&file).rate(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// The samples of a stream, and what is said in it.
fn stream(background: Background) -> Result<(Vec<f32>, String)> {
    let (mut samples, mut reference) = (Vec::new(), String::new());
    for clip in clips::all()? {
        samples.resize(samples.len() + PAUSE, 0.0);
        samples.extend(clips::samples(&clip.path)?);
        reference = format!("{reference} {}", clip.reference);
    }
    samples.resize(samples.len() + PAUSE, 0.0);
    let samples = match background {
        Background::None => samples,
        Background::Noise => mixed(&samples, &noise(20, BACKGROUND_RMS)),
        Background::Music => mixed(&samples, &music(20, BACKGROUND_RMS)),
    };
    Ok((samples, reference))
}

async fn transcribe(engine: &Engine, samples: &[f32]) -> Result<String> {
    let file = wav::to_bytes(samples, clips::RATE_HZ)?;
    let output = engine.generate(EngineCoreRequest::asr(file)).await?;
    Ok(output.text.unwrap_or_default())
}

async fn serve(model: &str, engine: Engine) -> Result<TestServer> {
    let recorder = Recorder::install()?;
    let config = RegistryConfig { default_asr: Some(model.to_owned()), ..RegistryConfig::new("none") };
    let registry = Registry::new(config);
    registry.set("none", Slot::Failed("this bench has none".to_owned()));
    registry.set(model, Slot::Ready(engine));
    let vad_weights = Some(Store::open(Some(engines::home()))?.vad_weights());
    let config = ServerConfig { vad_weights, ..ServerConfig::default() };
    TestServer::listen(config, registry, recorder).await
}

/// Sends the samples as fast as they are spoken, and receives until the session is done.
async fn listen(server: &TestServer, args: &Args, samples: &[f32]) -> Result<Heard> {
    let url = format!("ws://{}/v1/audio/transcriptions/stream", server.address);
    let mut session = Session::open(&url).await?;
    let mut config =
        json!({"type": "session.config", "model": args.model, "language": "en", "word_times": true});
    if let Some(latency_ms) = args.latency_ms {
        config["latency_ms"] = json!(latency_ms);
    }
    session.send(config).await?;
    session.expect("session.created").await?;
    let begun = Instant::now();
    let (mut heard, mut turn) = (Heard::default(), String::new());
    for (n, message) in (1u32..).zip(samples.chunks(MESSAGE)) {
        let due = begun + Duration::from_millis(100) * n;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due.into()) => break,
                frame = session.frame() => note(&frame?, begun, &mut turn, &mut heard, args.trace)?,
            };
        }
        let mut bytes = Vec::with_capacity(2 * message.len());
        pcm::write_i16_le(message, &mut bytes);
        session.send_raw(Message::binary(bytes)).await?;
    }
    session.send(json!({"type": "input.done"})).await?;
    loop {
        match session.next().await? {
            Incoming::Frame(frame) if note(&frame, begun, &mut turn, &mut heard, args.trace)? => {
                return Ok(heard);
            }
            Incoming::Frame(_) => {}
            other => bail!("the session ends with {other:?}"),
        }
    }
}

/// Notes a frame. True for the last.
fn note(frame: &Value, begun: Instant, turn: &mut String, heard: &mut Heard, trace: bool) -> Result<bool> {
    let now_ms = begun.elapsed().as_secs_f64() * 1e3;
    if trace {
        eprintln!("{now_ms:8.0} {frame}");
    }
    let text = || frame["text"].as_str().context("a frame has no text");
    match frame["type"].as_str() {
        Some("session.done") => return Ok(true),
        Some("committed") => {
            turn.push_str(text()?);
            let words = frame["words"].as_array().context("a frame has no words")?;
            let ends = words.iter().filter_map(|word| word["end_ms"].as_f64());
            heard.lags_ms.extend(ends.map(|end_ms| now_ms - end_ms));
        }
        Some("turn.end") => {
            heard.revised += usize::from(turn.trim() != text()?);
            heard.text = format!("{} {}", heard.text, turn.trim());
            turn.clear();
        }
        Some("error") => bail!("the server answers {frame}"),
        _ => {}
    }
    Ok(false)
}

/// Processor time of this process.
fn cpu_time() -> Result<Duration> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").context("this bench needs Linux")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    // utime and stime are fields 14 and 15, the third is the first behind the name.
    let total = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    Ok(Duration::from_secs_f64(total.context("/proc/self/stat has other fields")? / TICKS_PER_S))
}
