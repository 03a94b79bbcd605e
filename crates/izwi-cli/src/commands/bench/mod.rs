//! `izwi bench`: how fast a model speaks here, alone and several voices at once, and where the time goes.

mod gate;
mod machine;
mod report;
mod round;

use std::path::PathBuf;

use anyhow::Result;
use izwi_core::engine::executor::Precision;
use izwi_core::engine::{EngineCoreConfig, TaskType};

use self::gate::Baseline;
use self::machine::Machine;
use self::report::{Measured, Report};
use self::round::Voices;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::{logging, output, speech};

/// Measure how fast a model speaks on this machine
///
/// Speaks with one voice and with several at once, and compares what it must read for each frame with what the memory
/// can give. With --random-weights the model is made up in its real size, so that no download is needed.
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

    /// How many voices at once
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
    if largest == 0 || args.batch.contains(&0) || args.tokens < 2 || args.rounds == 0 {
        let help = "use --batch 1,2,4 with numbers from 1, --tokens from 2 and --rounds from 1";
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
    speech::start_threads(config.num_threads);
    let machine = machine::measure(config.num_threads);
    let baseline = args.gate.as_deref().map(|path| Baseline::read(path, machine.cores)).transpose()?;
    let mut results = Vec::new();
    speech::runtime()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        for (model, &dtype) in models.iter().flat_map(|model| dtypes.iter().map(move |dtype| (model, dtype)))
        {
            let config = EngineCoreConfig { model: model.clone(), dtype, ..config.clone() };
            results.extend(measure(args, config, &machine, &mut interrupt).await?);
        }
        anyhow::Ok(())
    })?;
    let report = Report { machine, results };
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

/// All batch sizes of one model.
async fn measure(
    args: &Args,
    config: EngineCoreConfig,
    machine: &Machine,
    interrupt: &mut Interrupt,
) -> Result<Vec<Measured>> {
    machine::forget_peak_memory();
    let engine = speech::load(config, interrupt).await?;
    if !engine.profile().tasks.contains(&TaskType::Tts) {
        let help = "choose a model that speaks, see `izwi list`";
        return Err(usage(format!("model '{}' does not speak", engine.profile().model), help));
    }
    let mut results = Vec::new();
    for &batch in &args.batch {
        let mut rounds = Vec::new();
        for number in 0..args.rounds {
            let texts = format!("Batch {batch}, round {number}");
            let voices = Voices { number: batch, texts, tokens: args.tokens };
            rounds.push(round::speak(&engine, &voices, interrupt).await?);
        }
        let measured = Measured::new(&engine, batch, rounds, machine);
        if !args.json {
            output::print(&measured.page())?;
        }
        results.push(measured);
    }
    engine.stop();
    Ok(results)
}
