//! The simulation: the real engine in virtual time, with executors that take as long as a cost curve says.
//!
//! Clients come at 0.1 to 10 times what a machine can keep, read fast, in real time, slowly or not at all, and measure
//! what the promises of `docs/performance.md` say. The same seed gives the same result.

mod client;
mod disturbance;
mod fleet;
mod load;
mod machines;
mod random;
mod report;
mod run;
mod tally;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

/// Simulates live streams, bulk work, ASR and chat on shared devices.
#[derive(Debug, Clone, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Seed of arrivals, texts, readers and noise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated minutes of all rows together.
    #[arg(long, default_value_t = 600.0)]
    minutes: f64,
    /// Offered live audio over what a machine can keep; one row for each value and machine.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.25,0.5,0.75,1,1.5,2,4,7,10")]
    load: Vec<f64>,
    /// Which clients come.
    #[arg(long, value_enum, default_value_t = Mix::Mixed)]
    mix: Mix,
    /// Machines by a part of their name; all if none is given.
    #[arg(long, value_delimiter = ',')]
    machines: Vec<String>,
    /// The largest relative deviation of a step's time.
    #[arg(long, default_value_t = 0.3)]
    noise: f64,
    #[command(flatten)]
    disturbances: disturbance::Disturbances,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Other simulations.
#[derive(Debug, Clone, Subcommand)]
enum Command {
    Fleet(fleet::FleetArgs),
}

/// Clients of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mix {
    /// Live streams of all models, bulk speech and transcription, and some bad readers.
    Mixed,
    /// Live streams of the TTS model alone.
    Live,
}

#[allow(clippy::print_stdout, reason = "the result of this program")]
fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Command::Fleet(args)) = &args.command {
        let report = fleet::simulate(args)?;
        if args.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.table());
        }
        return Ok(());
    }
    let report = run::simulate(&args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
