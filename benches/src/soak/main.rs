//! Hours of mixed clients at a real server: speech, transcription, conversations, cancels, resumes, garbage, slow readers,
//! models that come and go.
//!
//! The server is a process of its own. Every stream that is accepted must be equal, byte by byte, to that of the idle server.
//! Reports memory, file handles and faults, as JSON, and fails if they grow or differ.

mod clients;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_benches::engines;
use serde::Serialize;

use clients::{Act, Clients, Dice, Ended};
use server::{Sample, Server};

/// Runs mixed clients at a real server for a long time.
#[derive(Debug, Parser)]
struct Args {
    /// The program under test.
    #[arg(long, default_value = "target/release/izwi")]
    program: PathBuf,
    /// Minutes with clients.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Clients at a time.
    #[arg(long, default_value_t = 6)]
    clients: u64,
    /// Seed of what they do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds between two looks at the process.
    #[arg(long, default_value_t = 10.0)]
    every_s: f64,
}

/// Growth of memory and of file handles from the second fifth of the run to the last that is allowed.
const MOST_GROWTH: f64 = 0.05;
/// File handles more or less at two moments of the same load.
const HANDLES: usize = 16;
/// Messages kept of each kind of error.
const KEPT: usize = 10;

#[derive(Debug, Default, Serialize)]
struct Count {
    done: u64,
    refused: u64,
    errors: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    minutes: f64,
    clients: u64,
    seed: u64,
    acts: BTreeMap<Act, Count>,
    errors: Vec<String>,
    /// Requests that the server says it failed.
    failed_requests: f64,
    /// KV blocks in use after the last client.
    used_blocks: f64,
    rss_mib_after_warm_up: f64,
    rss_mib_at_end: f64,
    rss_mib_max: f64,
    rss_growth: f64,
    handles_after_warm_up: usize,
    handles_at_end: usize,
    threads_at_end: usize,
    /// Whether the server ended as asked.
    ended_well: bool,
    samples: Vec<Sample>,
}

/// What the clients of a run did.
#[derive(Debug, Default)]
struct Tally {
    acts: BTreeMap<Act, Count>,
    errors: Vec<String>,
}

async fn client(clients: &Clients<'_>, seed: u64, until: Instant) -> Tally {
    let mut dice = Dice::new(seed);
    let mut tally = Tally::default();
    while Instant::now() < until {
        let act = dice.act();
        let ended = clients.run(act, &mut dice).await;
        let count = tally.acts.entry(act).or_default();
        match ended {
            Ok(Ended::Done) => count.done += 1,
            Ok(Ended::Refused) => {
                count.refused += 1;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => {
                count.errors += 1;
                if tally.errors.len() < KEPT {
                    tally.errors.push(format!("{act:?}: {error:#}"));
                }
            }
        }
        // Now and then nobody asks for a model long enough that it is unloaded.
        if dice.throw(40) == 0 {
            tokio::time::sleep(Duration::from_secs(2 + dice.throw(6) as u64)).await;
        }
    }
    tally
}

async fn watch(server: &Server, begun: Instant, until: Instant, every: Duration) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    while Instant::now() < until {
        tokio::time::sleep(every).await;
        samples.push(server.sample(begun.elapsed())?);
    }
    Ok(samples)
}

/// The median of a value over a fifth of the samples: 0 to 4.
fn median(samples: &[Sample], fifth: usize, value: fn(&Sample) -> f64) -> f64 {
    let (from, to) = (samples.len() * fifth / 5, (samples.len() * (fifth + 1)).div_ceil(5));
    let mut values: Vec<f64> = samples[from..to.min(samples.len())].iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

async fn run(args: &Args) -> Result<Report> {
    let server = Server::start(&args.program, &engines::home()).await?;
    let clients = Clients::new(&server).await.context("the idle server")?;
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(60.0 * args.minutes);
    let all = (0..args.clients).map(|index| client(&clients, args.seed * 1_000 + index, until));
    let every = Duration::from_secs_f64(args.every_s);
    let (tallies, samples) =
        tokio::join!(futures::future::join_all(all), watch(&server, begun, until, every));
    let samples = samples?;
    let mut acts = BTreeMap::<Act, Count>::new();
    let mut errors = Vec::new();
    for tally in tallies {
        for (act, count) in tally.acts {
            let sum = acts.entry(act).or_default();
            sum.done += count.done;
            sum.refused += count.refused;
            sum.errors += count.errors;
        }
        errors.extend(tally.errors);
    }
    let used_blocks = server.rest().await?;
    let failed_requests = server.failed().await?;
    let rss = |sample: &Sample| sample.rss_mib;
    let handles = |sample: &Sample| sample.handles as f64;
    let (before, after) = (median(&samples, 1, rss), median(&samples, 4, rss));
    Ok(Report {
        minutes: args.minutes,
        clients: args.clients,
        seed: args.seed,
        acts,
        errors,
        failed_requests,
        used_blocks,
        rss_mib_after_warm_up: before,
        rss_mib_at_end: after,
        rss_mib_max: samples.iter().map(rss).fold(0.0, f64::max),
        rss_growth: after / before - 1.0,
        handles_after_warm_up: median(&samples, 1, handles) as usize,
        handles_at_end: median(&samples, 4, handles) as usize,
        threads_at_end: samples.last().map_or(0, |sample| sample.threads),
        ended_well: server.stop().await?,
        samples,
    })
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the report is this program's output")]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.minutes > 0.0 && args.every_s > 0.0, "--minutes and --every-s must be more than 0");
    ensure!(args.clients > 0, "--clients is 0; use at least 1");
    let report = run(&args).await?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    ensure!(report.errors.is_empty(), "{} errors, the first: {}", report.errors.len(), report.errors[0]);
    ensure!(report.failed_requests == 0.0, "the server failed {} requests", report.failed_requests);
    ensure!(report.used_blocks == 0.0, "{} KV blocks are left", report.used_blocks);
    ensure!(report.rss_growth <= MOST_GROWTH, "memory grew by {:.1} %", 100.0 * report.rss_growth);
    ensure!(
        report.handles_at_end <= report.handles_after_warm_up + HANDLES,
        "file handles grew from {} to {}",
        report.handles_after_warm_up,
        report.handles_at_end
    );
    ensure!(report.ended_well, "the server did not end well");
    Ok(())
}
