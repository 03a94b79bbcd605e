//! The load bench: many short requests over real WebSockets against a running server.
//!
//! Closed loop: N clients at once, each with one request. Open loop: requests arrive at a fixed rate, whatever the
//! server does. Paced: N clients read at playback speed, one utterance after another. Reports total time, TTFA and the playback underruns of a client without a buffer, as JSON.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use tokio_tungstenite::tungstenite::Message;

/// Puts load on an Izwi server and reports JSON.
#[derive(Debug, Parser)]
struct Args {
    /// WebSocket address.
    #[arg(long, default_value = "ws://127.0.0.1:8080/v1/audio/speech/stream")]
    url: String,
    /// Concurrent clients of each closed-loop run.
    #[arg(long, value_delimiter = ',', default_value = "1,5,10,20,50")]
    concurrent: Vec<usize>,
    /// Arrivals per second of each open-loop run.
    #[arg(long, value_delimiter = ',', default_value = "2,5,10")]
    rates: Vec<f64>,
    /// Requests of each open-loop run.
    #[arg(long, default_value_t = 40)]
    arrivals: usize,
    /// Clients of each paced run.
    #[arg(long, value_delimiter = ',', default_value = "16,64")]
    paced: Vec<usize>,
    /// Seconds during which clients of a paced run start utterances.
    #[arg(long, default_value_t = 30)]
    paced_s: u64,
    /// Runs of each closed-loop size; the median by total time is reported.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Text to speak.
    #[arg(long, default_value = "Say hi to everyone in the room. Then tell them that dinner is ready.")]
    text: String,
}

/// One request as its client saw it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    ttfa: Duration,
    total: Duration,
    audio: Duration,
    underrun: Duration,
}

#[derive(Debug, Serialize)]
struct Row {
    load: String,
    requests: usize,
    failed: usize,
    total_s: f64,
    ttfa_ms_p50: f64,
    ttfa_ms_p95: f64,
    ttfa_ms_p99: f64,
    latency_ms_p50: f64,
    latency_ms_p99: f64,
    underrun_s: f64,
    audio_s: f64,
}

/// Playback buffer of a paced client.
const AHEAD: Duration = Duration::from_millis(500);

/// Streams `text`; `paced` reads at playback speed and returns at the end of playback.
async fn speak(url: &str, text: &str, paced: bool) -> anyhow::Result<Seen> {
    let start = Instant::now();
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.context("connect")?;
    let speak = serde_json::json!({ "type": "speak", "text": text }).to_string();
    socket.send(Message::text(speak)).await?;
    let (mut first, mut plays_until) = (None, start);
    let (mut underrun, mut audio) = (Duration::ZERO, Duration::ZERO);
    let mut sample_rate = 24_000.0;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Binary(bytes) => {
                let now = Instant::now();
                if first.is_some() && now > plays_until {
                    underrun += now - plays_until;
                }
                let begin = if first.is_none() { now } else { plays_until.max(now) };
                first.get_or_insert(now);
                let length = Duration::from_secs_f64(bytes.len() as f64 / 2.0 / sample_rate);
                plays_until = begin + length;
                audio += length;
                if paced {
                    tokio::time::sleep_until((plays_until - AHEAD).into()).await;
                }
            }
            Message::Text(text) => {
                let frame: serde_json::Value = serde_json::from_str(&text)?;
                match frame["type"].as_str() {
                    Some("session.created") => {
                        sample_rate = frame["sample_rate"].as_f64().unwrap_or(sample_rate)
                    }
                    Some("error") => anyhow::bail!("server: {text}"),
                    Some("session.done") => break,
                    _ => {}
                }
            }
            Message::Close(_) => break,
            _ => {}
        }
    }
    let first = first.context("no audio came")?;
    let total = start.elapsed();
    if paced {
        tokio::time::sleep_until(plays_until.into()).await;
    }
    Ok(Seen { ttfa: first - start, total, audio, underrun })
}

fn percentile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn row(load: String, results: &[anyhow::Result<Seen>], total: Duration) -> Row {
    let seen: Vec<Seen> = results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
    let ms = |pick: fn(&Seen) -> Duration| -> Vec<f64> {
        seen.iter().map(|s| pick(s).as_secs_f64() * 1e3).collect()
    };
    let (mut ttfa, mut latency) = (ms(|s| s.ttfa), ms(|s| s.total));
    Row {
        load,
        requests: results.len(),
        failed: results.len() - seen.len(),
        total_s: total.as_secs_f64(),
        ttfa_ms_p50: percentile(&mut ttfa, 0.5),
        ttfa_ms_p95: percentile(&mut ttfa, 0.95),
        ttfa_ms_p99: percentile(&mut ttfa, 0.99),
        latency_ms_p50: percentile(&mut latency, 0.5),
        latency_ms_p99: percentile(&mut latency, 0.99),
        underrun_s: seen.iter().map(|s| s.underrun.as_secs_f64()).sum(),
        audio_s: seen.iter().map(|s| s.audio.as_secs_f64()).sum(),
    }
}

async fn closed(args: &Args, clients: usize) -> Row {
    let start = Instant::now();
    let results = futures::future::join_all((0..clients).map(|_| speak(&args.url, &args.text, false))).await;
    row(format!("closed {clients}"), &results, start.elapsed())
}

async fn open(args: &Args, rate: f64) -> Row {
    let start = Instant::now();
    let clients = (0..args.arrivals).map(|number| async move {
        tokio::time::sleep(Duration::from_secs_f64(number as f64 / rate)).await;
        speak(&args.url, &args.text, false).await
    });
    let results = futures::future::join_all(clients).await;
    row(format!("open {rate}/s"), &results, start.elapsed())
}

/// Clients that start one after another over the length of the first utterance; each starts its next utterance when
/// playback of the last one ends.
async fn paced(args: &Args, listeners: usize, utterance: Duration) -> Row {
    let start = Instant::now();
    let end = start + Duration::from_secs(args.paced_s);
    let listeners_each = (0..listeners).map(|number| async move {
        tokio::time::sleep(utterance.mul_f64(number as f64 / listeners as f64)).await;
        let mut seen = Vec::new();
        while Instant::now() < end {
            seen.push(speak(&args.url, &args.text, true).await);
        }
        seen
    });
    let results: Vec<_> = futures::future::join_all(listeners_each).await.into_iter().flatten().collect();
    row(format!("paced {listeners}"), &results, start.elapsed())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let first = speak(&args.url, &args.text, false)
        .await
        .context("the first request failed; is the server running?")?;
    let mut rows = Vec::new();
    for &clients in &args.concurrent {
        let mut runs = Vec::new();
        for _ in 0..args.repeat.max(1) {
            runs.push(closed(&args, clients).await);
        }
        runs.sort_by(|a, b| a.total_s.total_cmp(&b.total_s));
        rows.push(runs.swap_remove(runs.len() / 2));
    }
    for &rate in &args.rates {
        rows.push(open(&args, rate).await);
    }
    for &listeners in &args.paced {
        rows.push(paced(&args, listeners, first.audio).await);
    }
    print(&serde_json::to_string_pretty(&rows)?);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the report is this program's output")]
fn print(text: &str) {
    println!("{text}");
}
