//! `izwi bench`: throughput and latency of a model on this machine for several batch sizes, and the time in its parts.

mod batch;
mod gate;
mod gpu_terms;
mod html;
mod machine;
mod report;
mod statistics;
mod threads;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use izwi_core::engine::Precision;
use izwi_core::engine::{EngineCoreConfig, Task};

use self::batch::Requests;
use self::gate::Baseline;
use self::machine::Machine;
use self::report::{Detail, Measured, Report};
use crate::build_info::VERSION;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::machine::{memory_bytes, processor};
use crate::settings::{Resolved, Section, TABLE};
use crate::{engine, logging, output};

/// Measure the speed of a model on this machine
///
/// Runs one and several concurrent requests, and compares the weights that each frame reads with the memory bandwidth.
/// A TTS model synthesises text; an ASR model transcribes --recording. --random-weights creates a model of a published
/// size without a download.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use random weights: MODEL is then a published size; the error for an unknown size lists them
    #[arg(long)]
    random_weights: bool,

    /// Models to measure in sequence, instead of --model
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    models: Vec<String>,

    /// Weight types to measure in sequence, instead of --dtype
    #[arg(long, value_name = "DTYPE,DTYPE,...", value_delimiter = ',')]
    dtypes: Vec<Precision>,

    /// Numbers of compute threads to measure in sequence, instead of --threads
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    thread_counts: Vec<usize>,

    /// Audio file for ASR models
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,

    /// Numbers of concurrent requests
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    batch: Vec<usize>,

    /// Maximum number of generated tokens per request
    #[arg(long, value_name = "N", default_value_t = 60)]
    tokens: usize,

    /// Rounds for each batch size; their median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Fail if a result is slower than in FILE, which `izwi bench --json` wrote on this machine
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,

    /// Minimum share of the baseline's throughput for --gate
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    gate_ratio: f64,

    /// Print as JSON
    #[arg(long)]
    json: bool,

    /// Write a report with charts to FILE, one page that needs no other file
    #[arg(long, value_name = "FILE", conflicts_with = "thread_counts")]
    html: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let largest = args.batch.iter().copied().max().unwrap_or(0);
    if largest == 0
        || args.batch.contains(&0)
        || args.thread_counts.contains(&0)
        || args.tokens < 2
        || args.rounds == 0
    {
        let help = "use --batch and --thread-counts with numbers from 1, --tokens from 2 and --rounds from 1";
        return Err(usage("a number of requests, threads, tokens or rounds is too small", help));
    }
    let config = EngineCoreConfig {
        random_weights: args.random_weights,
        max_batch_size: largest,
        max_running_requests: largest.max(resolved.settings.engine.max_running_requests),
        ..engine::local_config(resolved)
    };
    let models = if args.models.is_empty() { vec![config.model.clone()] } else { args.models.clone() };
    let dtypes = if args.dtypes.is_empty() { vec![config.dtype] } else { args.dtypes.clone() };
    let cores = num_cpus::get_physical();
    let baseline = args.gate.as_deref().map(|path| Baseline::read(path, cores)).transpose()?;
    let page = args.html.as_deref().map(create).transpose()?;
    let report = if args.thread_counts.is_empty() {
        let recording = args.recording.as_deref().map(read).transpose()?;
        let plan = Plan { args, recording, models, dtypes };
        plan.measure(config)?
    } else {
        let report = threads::measure(&args.thread_counts)?;
        if !args.json {
            report.results.iter().try_for_each(|measured| output::print(&measured.page()))?;
        }
        report
    };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.page())?;
    }
    if let Some(mut page) = page {
        let settings = described(args, resolved);
        page.write_all(html::page(&report, &settings).as_bytes()).context("the report cannot be written")?;
    }
    match baseline {
        Some(baseline) => {
            output::status(baseline.compare(&report, args.gate_ratio)?.trim_end());
            Ok(())
        }
        None => Ok(()),
    }
}

/// Creates the file of the report, before the time of the measurement is spent.
fn create(path: &Path) -> Result<File> {
    let help = "give --html a file in a folder that exists and may be written";
    File::create(path).map_err(|error| usage(format!("{}: {error}", path.display()), help))
}

/// What was measured and how, for the report: names and values.
fn described(args: &Args, resolved: &Resolved) -> Vec<(String, String)> {
    let joined = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let memory = memory_bytes().map_or_else(String::new, |(total, _)| output::format_bytes(total));
    let own = [
        ("izwi", VERSION.clone()),
        ("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("processor", processor().unwrap_or_else(|| "unknown".to_owned())),
        ("memory", memory),
        ("--batch", joined(&args.batch)),
        ("--tokens", args.tokens.to_string()),
        ("--rounds", args.rounds.to_string()),
        ("--random-weights", args.random_weights.to_string()),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let settings = TABLE.iter().filter(|setting| setting.section == Section::Engine);
    let settings = settings.map(|setting| (setting.key(), (setting.get)(&resolved.settings).to_string()));
    own.into_iter().chain(settings).collect()
}

/// Reads a recording.
fn read(path: &Path) -> Result<Bytes> {
    let help = "give --recording an audio file with speech";
    let bytes = std::fs::read(path).map_err(|error| usage(format!("{}: {error}", path.display()), help))?;
    Ok(bytes.into())
}

/// The measurements of this process.
struct Plan<'a> {
    args: &'a Args,
    recording: Option<Bytes>,
    models: Vec<String>,
    dtypes: Vec<Precision>,
}

impl Plan<'_> {
    /// Measures all models with all dtypes.
    fn measure(&self, config: EngineCoreConfig) -> Result<Report> {
        engine::start_threads(config.num_threads);
        let machine = machine::measure(config.num_threads);
        let (mut results, mut details) = (Vec::new(), Vec::new());
        engine::runtime()?.block_on(async {
            let mut interrupt = Interrupt::listen()?;
            for model in &self.models {
                for &dtype in &self.dtypes {
                    let config = EngineCoreConfig { model: model.clone(), dtype, ..config.clone() };
                    let measured = self.measure_model(config, &machine, &mut interrupt).await?;
                    let (new, kept): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
                    results.extend(new);
                    details.extend(kept);
                }
            }
            anyhow::Ok(())
        })?;
        Ok(Report { machine, results, details })
    }

    /// Measures all batch sizes of one model.
    async fn measure_model(
        &self,
        config: EngineCoreConfig,
        machine: &Machine,
        interrupt: &mut Interrupt,
    ) -> Result<Vec<(Measured, Detail)>> {
        machine::reset_peak_memory();
        let engine = engine::load(config, interrupt).await?;
        let is_tts = engine.profile().info.tasks.contains(&Task::Tts);
        let recording = if is_tts { None } else { self.recording.as_ref() };
        if !is_tts && recording.is_none() {
            let message = format!("model '{}' needs a recording to transcribe", engine.profile().model);
            return Err(usage(message, "give --recording an audio file with speech"));
        }
        let mut results = Vec::new();
        for &size in &self.args.batch {
            let mut rounds = Vec::new();
            for number in 0..self.args.rounds {
                let text_prefix = format!("Batch {size}, round {number}");
                let requests = Requests { count: size, text_prefix, max_tokens: self.args.tokens };
                rounds.push(match recording {
                    Some(recording) => batch::transcribe(&engine, recording, size, interrupt).await?,
                    None => batch::synthesize(&engine, &requests, interrupt).await?,
                });
            }
            let measured = match recording {
                Some(_) => Measured::transcription(&engine, size, &rounds),
                None => Measured::synthesis(&engine, size, &rounds, machine),
            };
            if !self.args.json {
                output::print(&measured.page())?;
            }
            results.push((measured, Detail::of(rounds)));
        }
        engine.stop();
        Ok(results)
    }
}
