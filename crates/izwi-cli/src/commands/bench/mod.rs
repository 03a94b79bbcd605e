//! `izwi bench`: how fast a model speaks here, alone and several voices at once, and where the time goes.

mod machine;
mod report;
mod round;

use anyhow::Result;
use izwi_core::engine::{EngineCoreConfig, TaskType};

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

    /// How many voices at once
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    batch: Vec<usize>,

    /// Tokens each voice speaks in a round, at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    tokens: usize,

    /// Rounds for each batch size, of which the median is told
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

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
    speech::start_threads(config.num_threads);
    let machine = machine::measure(config.num_threads);
    let mut results = Vec::new();
    speech::runtime()?.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let engine = speech::load(config, &mut interrupt).await?;
        if !engine.profile().tasks.contains(&TaskType::Tts) {
            let help = "choose a model that speaks, see `izwi list`";
            return Err(usage(format!("model '{}' does not speak", engine.profile().model), help));
        }
        for &batch in &args.batch {
            let mut rounds = Vec::new();
            for number in 0..args.rounds {
                let voices = Voices {
                    number: batch,
                    texts: format!("Batch {batch}, round {number}"),
                    tokens: args.tokens,
                };
                rounds.push(round::speak(&engine, &voices, &mut interrupt).await?);
            }
            let measured = Measured::new(&engine, batch, rounds, &machine);
            if !args.json {
                output::print(&measured.page())?;
            }
            results.push(measured);
        }
        engine.stop();
        Ok(())
    })?;
    let report = Report { machine, results };
    if args.json { output::print_json(&report) } else { output::print(&report.page()) }
}
