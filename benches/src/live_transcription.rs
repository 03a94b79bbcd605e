//! Live transcription over real sockets: the server runs in this process, and clients send recordings as fast as they are
//! spoken.
//!
//! A stream is the recordings of `assets/speech/` with pauses, alone or over noise or music; in the pauses too. Reports how
//! long after a word its text is committed, the processor time, words that were changed after they were committed, and the
//! errors compared with those of the same recordings transcribed as files.

#![allow(clippy::print_stdout, reason = "the report is this program's output")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use izwi_audio::wav;
use izwi_benches::dictation::{self, Dictation};
use izwi_benches::{clips, engines};
use izwi_core::engine::{Engine, EngineCoreRequest};
use izwi_tests::synthetic::{mixed, music, noise};
use izwi_tests::wer::{Score, compare};
use serde::Serialize;

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

/// From the start of one stream to that of the next.
const STAGGER: Duration = Duration::from_millis(730);
/// Level of the background, RMS; that of the recordings is about 0.1.
const BACKGROUND_RMS: f32 = 0.01;

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
    let (samples, reference) = stream(&args)?;
    let engine = engines::load(&args.model, args.threads).await?;
    let file = transcribe(&engine, &samples).await?;
    let mut server = dictation::serve(&args.model, engine).await?;
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let clients = (0..args.streams as u32).map(|n| {
        let (args, server, samples) = (&args, &server, &samples);
        async move {
            tokio::time::sleep(STAGGER * n).await;
            let client = Dictation {
                model: args.model.clone(),
                latency_ms: args.latency_ms,
                samples: samples.clone(),
                is_paced: true,
                trace: args.trace,
            };
            client.run(server.address).await
        }
    });
    let heard = futures::future::try_join_all(clients).await?;
    let cores = (cpu_time()? - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    server.stop();

    let score = |text: &str| compare(&reference, text).score();
    let live: Score = heard.iter().map(|heard| score(&heard.text)).sum();
    let mut lags: Vec<f64> = heard.iter().flat_map(|heard| heard.lags_ms.iter().copied()).collect();
    lags.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let at = (lags.len().saturating_sub(1) as f64 * share).round() as usize;
        lags.get(at).copied().unwrap_or_default().round()
    };
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
fn stream(args: &Args) -> Result<(Vec<f32>, String)> {
    let (samples, reference) = dictation::stream(&clips::all()?)?;
    let samples = match args.background {
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

/// Processor time of this process.
fn cpu_time() -> Result<Duration> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").context("this bench needs Linux")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    // utime and stime are fields 14 and 15, the third is the first after the name.
    let total = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    Ok(Duration::from_secs_f64(total.context("/proc/self/stat has other fields")? / TICKS_PER_S))
}
