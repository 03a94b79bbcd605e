//! The ASR bench: Izwi, faster-whisper and plain candle transcribe the same recordings in turn.
//!
//! Every runner is a process of its own that answers one request at a time, so that nothing competes with it. A round
//! asks each of them once for each workload; medians of the rounds become `benches/baselines/asr.json` and the table
//! in `benches/README.md`.

mod candle;
mod child;
mod results;
mod runner;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_benches::clips::{self, Clip};

use results::{Cell, Results};
use runner::{Ask, Kind, Runner};

/// Compares transcription times.
#[derive(Debug, Parser)]
struct Args {
    /// Rounds; medians are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Models, as `izwi list` shows them.
    #[arg(long, value_delimiter = ',', default_value = "whisper-base,whisper-tiny.en")]
    models: Vec<String>,
    /// Thread counts.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// The environment that `benches/asr/setup.sh` creates.
    #[arg(long, default_value = "target/asr-peer")]
    peer: PathBuf,
    /// Runners by a part of their name; all if none is given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Recordings to transcribe instead, 16-bit mono at 16 kHz: a line "PATH TAB TEXT" for each. Writes nothing.
    #[arg(long)]
    list: Option<PathBuf>,
    /// Print and write nothing.
    #[arg(long)]
    dry: bool,
    /// Run as a runner process (used by the bench itself).
    #[arg(long, value_enum, hide = true)]
    child: Option<child::Child>,
}

/// Recordings measured as one workload: one after another, or in one batch where the runner supports it.
#[derive(Debug)]
struct Workload {
    name: &'static str,
    clips: Vec<Clip>,
    seconds: f64,
}

impl Workload {
    fn new(name: &'static str, clips: Vec<Clip>) -> Result<Self> {
        let mut samples = 0;
        for clip in &clips {
            samples += clips::samples(&clip.path)?.len();
        }
        Ok(Self { name, clips, seconds: samples as f64 / f64::from(clips::RATE_HZ) })
    }
}

fn workloads(folder: &Path) -> Result<Vec<Workload>> {
    let six = clips::all()?;
    let joined = |seconds| -> Result<Vec<Clip>> { Ok(vec![clips::joined(&six, seconds, folder)?]) };
    let (half, two) = (joined(30)?, joined(120)?);
    Ok(vec![Workload::new("6 clips", six)?, Workload::new("30 s", half)?, Workload::new("2 min", two)?])
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(kind) = args.child {
        ensure!(
            args.models.len() == 1 && args.threads.len() == 1,
            "a runner has one model and one thread count"
        );
        return child::run(kind, &args.models[0], args.threads[0]);
    }
    let folder = tempfile::tempdir()?;
    let workloads = match &args.list {
        Some(list) => vec![Workload::new("list", clips::listed(list)?)?],
        None => workloads(folder.path())?,
    };
    let mut results = Results::default();
    for model in &args.models {
        for &threads in &args.threads {
            compare(&args, model, threads, &workloads, &mut results)?;
        }
    }
    let table = results.table();
    say(&table);
    if !args.dry && args.list.is_none() {
        results.write(args.rounds, &table)?;
    }
    Ok(())
}

/// All rounds of one model at one thread count.
fn compare(
    args: &Args,
    model: &str,
    threads: usize,
    workloads: &[Workload],
    results: &mut Results,
) -> Result<()> {
    let peer = clips::root().join(&args.peer);
    let wanted = |kind: &&Kind| {
        args.only.is_empty() || args.only.iter().any(|part| kind.name().contains(part.as_str()))
    };
    let mut runners = Vec::new();
    for kind in Kind::ALL.iter().filter(wanted) {
        let started = Runner::start(*kind, model, threads, &peer);
        runners.push(started.with_context(|| format!("{} does not start", kind.name()))?);
    }
    for runner in &mut runners {
        // The first run of anything is slower.
        runner.ask(&Ask::new(&workloads[0].clips[..1], runner.kind()))?;
    }
    for round in 0..args.rounds {
        for workload in workloads {
            for runner in &mut runners {
                if runner.kind().at_once() && workload.clips.len() == 1 {
                    continue;
                }
                let cell = measure(runner, workload)?;
                let name = runner.kind().name();
                say(&format!(
                    "{model}, {threads} threads, round {}, {}, {name}: {:.2} s",
                    round + 1,
                    workload.name,
                    cell.seconds
                ));
                results.add(model, threads, runner, workload.name, cell);
            }
        }
    }
    Ok(())
}

fn measure(runner: &mut Runner, workload: &Workload) -> Result<Cell> {
    let size = if runner.kind().at_once() { workload.clips.len() } else { 1 };
    let mut cell = Cell { audio_s: workload.seconds, cpu_seconds: Some(0.0), ..Cell::default() };
    for clips in workload.clips.chunks(size) {
        let answer = runner.ask(&Ask::new(clips, runner.kind()))?;
        cell.seconds += answer.seconds;
        cell.cpu_seconds = cell.cpu_seconds.zip(answer.cpu_seconds).map(|(sum, more)| sum + more);
        let reference = clips.iter().map(|clip| clip.reference.as_str());
        cell.hypothesis.extend(reference.map(str::to_owned).zip(answer.texts));
    }
    Ok(cell)
}

#[allow(clippy::print_stdout, reason = "the report is this program's output")]
fn say(text: &str) {
    println!("{text}");
}
