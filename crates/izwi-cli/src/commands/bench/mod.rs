//! `izwi bench`: how fast a model speaks or listens here, alone and several at once, and where the time goes.

mod gate;
mod machine;
mod report;
mod round;
mod threads;

use std::path::{Path, PathBuf};

use anyhow::Result;
use bytes::Bytes;
use izwi_core::engine::Precision;
use izwi_core::engine::{EngineCoreConfig, Task};

use self::gate::Baseline;
use self::machine::Machine;
use self::report::{Measured, Report};
use self::round::Voices;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::{logging, output, speech};

/// Measure how fast a model speaks or listens on this machine
///
/// Speaks with one voice and with several at once, and compares what it must read for each frame with what the memory
/// can give; a model that listens hears --recording as often. With --random-weights the model is made up in its real
/// size, so that no download is needed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Make the weights up: MODEL is then a published size; asked for any other, the error tells which there are
    #[arg(long)]
    random_weights: bool,

    /// Models to measure, one after another, in place of --model
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    models: Vec<String>,

    /// How weights are kept, one after another, in place of --dtype
    #[arg(long, value_name = "DTYPE,DTYPE,...", value_delimiter = ',')]
    dtypes: Vec<Precision>,

    /// Numbers of compute threads to measure with, one after another, in place of --threads
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    thread_counts: Vec<usize>,

    /// What models that listen are to hear: an audio file
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,

    /// How many voices, or recordings, at once
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    batch: Vec<usize>,

    /// Tokens each voice speaks in a round, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    tokens: usize,

    /// Rounds for each batch size, of which the median is told
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Fail where a result is below the same result in FILE, which `izwi bench --json` wrote on this machine
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,

    /// The share of the baseline's frames per second that --gate asks for
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    gate_ratio: f64,

    /// Print as JSON
    #[arg(long)]
    json: bool,
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
        return Err(usage("there is nothing to measure", help));
    }
    let config = EngineCoreConfig {
        random_weights: args.random_weights,
        max_batch_size: largest,
        max_running_requests: largest.max(resolved.settings.engine.max_running_requests),
        ..speech::engine_config(resolved)
    };
    let or = |given: &[String], configured: &String| match given {
        [] => vec![configured.clone()],
        given => given.to_vec(),
    };
    let models = or(&args.models, &config.model);
    let dtypes = if args.dtypes.is_empty() { vec![config.dtype] } else { args.dtypes.clone() };
    let cores = num_cpus::get_physical();
    let baseline = args.gate.as_deref().map(|path| Baseline::read(path, cores)).transpose()?;
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
    match baseline {
        Some(baseline) => {
            output::say(baseline.compare(&report, args.gate_ratio)?.trim_end());
            Ok(())
        }
        None => Ok(()),
    }
}

/// The bytes of a recording.
fn read(path: &Path) -> Result<Bytes> {
    let help = "give --recording an audio file of some speech";
    let bytes = std::fs::read(path).map_err(|error| usage(format!("{}: {error}", path.display()), help))?;
    Ok(bytes.into())
}

/// What is measured in this process.
struct Plan<'a> {
    args: &'a Args,
    recording: Option<Bytes>,
    models: Vec<String>,
    dtypes: Vec<Precision>,
}

impl Plan<'_> {
    /// All models at all dtypes.
    fn measure(&self, config: EngineCoreConfig) -> Result<Report> {
        speech::start_threads(config.num_threads);
        let machine = machine::measure(config.num_threads);
        let mut results = Vec::new();
        speech::runtime()?.block_on(async {
            let mut interrupt = Interrupt::listen()?;
            for model in &self.models {
                for &dtype in &self.dtypes {
                    let config = EngineCoreConfig { model: model.clone(), dtype, ..config.clone() };
                    results.extend(self.one(config, &machine, &mut interrupt).await?);
                }
            }
            anyhow::Ok(())
        })?;
        Ok(Report { machine, results })
    }

    /// All batch sizes of one model.
    async fn one(
        &self,
        config: EngineCoreConfig,
        machine: &Machine,
        interrupt: &mut Interrupt,
    ) -> Result<Vec<Measured>> {
        machine::forget_peak_memory();
        let engine = speech::load(config, interrupt).await?;
        let speaks = engine.profile().info.tasks.contains(&Task::Tts);
        let heard = if speaks { None } else { self.recording.as_ref() };
        if !speaks && heard.is_none() {
            let message = format!("model '{}' listens, and there is nothing to hear", engine.profile().model);
            return Err(usage(message, "give --recording an audio file of some speech"));
        }
        let mut results = Vec::new();
        for &batch in &self.args.batch {
            let mut rounds = Vec::new();
            for number in 0..self.args.rounds {
                let texts = format!("Batch {batch}, round {number}");
                let voices = Voices { number: batch, texts, tokens: self.args.tokens };
                rounds.push(match heard {
                    Some(recording) => round::hear(&engine, recording, batch, interrupt).await?,
                    None => round::speak(&engine, &voices, interrupt).await?,
                });
            }
            let measured = match heard {
                Some(_) => Measured::listening(&engine, batch, &rounds),
                None => Measured::speaking(&engine, batch, &rounds, machine),
            };
            if !self.args.json {
                output::print(&measured.page())?;
            }
            results.push(measured);
        }
        engine.stop();
        Ok(results)
    }
}
