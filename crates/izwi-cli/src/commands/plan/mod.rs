//! `izwi plan`: how many machines a number of listeners needs, from measured cost curves.

mod curve_file;
mod page;

use std::path::PathBuf;

use anyhow::Result;
use izwi_core::engine::capacity::{self, Demand, Effort, Machine, MeasureError, Need, Routing, TooSlow};
use izwi_core::engine::{EngineCoreConfig, Task};
use serde::Serialize;

use self::curve_file::CurveFile;
use crate::failure::{usage, with_help};
use crate::settings::Resolved;
use crate::{engine, logging, models, output};

/// Plan how many machines a number of listeners needs
///
/// Measures this machine with the model: the time of a step of 1, 2, 4, … streams, and of a prompt. From that, by the rule with
/// which the engine accepts streams, it tells how many streams one machine plays without a gap, and how many machines refuse no
/// more than --refused. --save keeps what was measured; --curve plans with what was measured before, on this and on other
/// machines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Listeners at the busiest time
    #[arg(long, value_name = "N", required_unless_present = "save")]
    listeners: Option<u64>,

    /// Share of the time in which a listener hears speech
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    duty: f64,

    /// Mean length of an utterance
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0)]
    utterance: f64,

    /// Utterances that begin together, if listeners are not independent: an announcement, a new scene
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    burst: f64,

    /// Longest time to the first audio of a stream that need not wait for another one to end
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    first_audio: f64,

    /// Largest share of utterances that has to wait for another one to end
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    waiting: f64,

    /// Largest share of utterances that is refused
    #[arg(long, value_name = "SHARE", default_value_t = 0.001)]
    refused: f64,

    /// Machines that may fail or be replaced at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    spare: u64,

    /// Share of all streams that stays free, for more listeners than expected
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    headroom: f64,

    /// Plan with a curve that --save wrote, instead of measuring; may be given for several kinds of machines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "random_weights"])]
    curve: Vec<PathBuf>,

    /// Write what was measured to FILE
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Name of this machine in the plan and in FILE [default: its processor]
    #[arg(long, value_name = "NAME", conflicts_with = "curve")]
    name: Option<String>,

    /// Price of this machine for an hour, in any currency
    #[arg(long, value_name = "PRICE", conflicts_with = "curve")]
    price: Option<f64>,

    /// Use random weights: MODEL is then a published size
    #[arg(long)]
    random_weights: bool,

    /// Generated tokens of each measured stream
    #[arg(long, value_name = "N", default_value_t = 60, conflicts_with = "curve")]
    tokens: usize,

    /// Runs of each number of streams
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "curve")]
    rounds: usize,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The plan.
#[derive(Debug, Serialize)]
struct Plan<'a> {
    model: &'a str,
    assumptions: Assumptions,
    machines: Vec<Kind>,
}

/// What the plan takes for granted.
#[derive(Debug, Serialize)]
struct Assumptions {
    listeners: u64,
    duty: f64,
    utterance_s: f64,
    burst: f64,
    first_audio_s: f64,
    waiting: f64,
    refused: f64,
    spare: u64,
    headroom: f64,
    /// Streams at once on average.
    streams: f64,
}

/// One kind of machine.
#[derive(Debug, Serialize)]
struct Kind {
    machine: String,
    device: String,
    precision: String,
    threads: usize,
    measured_at: String,
    version: String,
    /// Streams that one machine plays at once; 0 if it keeps none.
    streams: usize,
    /// What limits them, in words.
    limit: String,
    /// Share of the device that so many streams use.
    utilisation: Option<f64>,
    /// Predicted seconds to the first audio alongside as many.
    first_audio_s: Option<f64>,
    /// If each utterance goes to the machine with the fewest streams; absent beyond a million machines.
    least_streams: Option<Count>,
    /// If utterances go to any machine, or stay on that of their session.
    sessions: Option<Count>,
    /// Peak memory of the measured process.
    memory_bytes: Option<u64>,
    price_per_hour: Option<f64>,
}

/// Machines of a kind.
#[derive(Debug, Serialize)]
struct Count {
    machines: usize,
    /// Share of utterances that is refused while the spare machines are down, if none waits.
    refused: f64,
    /// Share that waits then.
    waiting: f64,
    /// Share of a device that is in use on average.
    utilisation: f64,
    price_per_hour: Option<f64>,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    args.check()?;
    let files = if args.curve.is_empty() { vec![measure(args, resolved)?] } else { read(args, resolved)? };
    if let Some(path) = &args.save {
        files[0].write(path)?;
        output::status(&format!("the curve of {} is in {}", files[0].machine, path.display()));
    }
    let Some(listeners) = args.listeners else { return Ok(()) };
    let demand = args.demand(listeners);
    let plan = Plan {
        model: &files[0].model,
        assumptions: args.assumptions(listeners, &demand),
        machines: files.iter().map(|file| kind(args, &demand, file)).collect(),
    };
    if args.json { output::print_json(&plan) } else { output::print(&page::page(&plan)) }
}

impl Args {
    /// Checks the ranges of the numbers.
    fn check(&self) -> Result<()> {
        let checks = [
            ("--listeners", self.listeners.unwrap_or(1) as f64, (1.0, 1e9)),
            ("--duty", self.duty, (1e-4, 1.0)),
            ("--utterance", self.utterance, (0.1, 3_600.0)),
            ("--burst", self.burst, (1.0, 1e6)),
            ("--first-audio", self.first_audio, (0.001, 60.0)),
            ("--waiting", self.waiting, (1e-6, 1.0)),
            ("--refused", self.refused, (1e-6, 1.0)),
            ("--spare", self.spare as f64, (0.0, 1e4)),
            ("--headroom", self.headroom, (0.0, 0.9)),
            ("--price", self.price.unwrap_or(0.0), (0.0, 1e9)),
            ("--tokens", self.tokens as f64, (10.0, 2_048.0)),
            ("--rounds", self.rounds as f64, (1.0, 100.0)),
        ];
        let wrong = checks.iter().find(|(_, value, (low, high))| !(low..=high).contains(&value));
        match wrong {
            Some((flag, value, (low, high))) => {
                let help = format!("give {flag} a value from {low} to {high}");
                Err(usage(format!("{flag} {value} is out of range"), help))
            }
            None => Ok(()),
        }
    }

    fn demand(&self, listeners: u64) -> Demand {
        Demand {
            listeners: listeners as f64,
            duty: self.duty,
            burst: self.burst,
            refused: self.refused,
            waiting: self.waiting,
            headroom: self.headroom,
            spare: self.spare as usize,
        }
    }

    fn assumptions(&self, listeners: u64, demand: &Demand) -> Assumptions {
        Assumptions {
            listeners,
            duty: self.duty,
            utterance_s: self.utterance,
            burst: self.burst,
            first_audio_s: self.first_audio,
            waiting: self.waiting,
            refused: self.refused,
            spare: self.spare,
            headroom: self.headroom,
            streams: demand.streams(),
        }
    }
}

/// Reads the curves, which must be of one model: that of --model, if it is given.
fn read(args: &Args, resolved: &Resolved) -> Result<Vec<CurveFile>> {
    let files = args.curve.iter().map(|path| CurveFile::read(path)).collect::<Result<Vec<_>>>()?;
    let wanted = if resolved.is_flag("model") { &resolved.settings.engine.model } else { &files[0].model };
    for (file, path) in files.iter().zip(&args.curve) {
        if file.model != *wanted {
            let message =
                format!("--curve {}: it is of model '{}', not '{wanted}'", path.display(), file.model);
            return Err(usage(message, "give curves of one model, and its name to --model"));
        }
    }
    Ok(files)
}

/// Measures this machine.
fn measure(args: &Args, resolved: &Resolved) -> Result<CurveFile> {
    // One device: engines on others are further machines of the plan.
    let config = EngineCoreConfig {
        random_weights: args.random_weights,
        devices: Vec::new(),
        ..engine::local_config(resolved)
    };
    let name = config.model.clone();
    if resolved.settings.remote(&name).is_some() {
        let help = "run `izwi plan --save FILE` on its server, and give the file to --curve";
        return Err(usage(format!("model '{name}' is remote: other machines run it"), help));
    }
    if !args.random_weights {
        let store = models::open(&resolved.settings)?;
        let tasks = &store.manifest(&name)?.tasks;
        if !tasks.contains(&izwi_hub::Task::Tts) {
            let help = "name a TTS model with --model; `izwi list` shows them";
            return Err(usage(format!("model '{name}' does not speak: a plan is for listeners"), help));
        }
        let installed = store.installed(&name);
        if matches!(installed, Err(izwi_hub::HubError::NotInstalled { .. })) {
            let help = format!("run `izwi pull {name}`, or measure random weights with --random-weights");
            return Err(with_help(format!("model '{name}' is not installed"), help));
        }
    }
    let effort = Effort { tokens: args.tokens, rounds: args.rounds };
    engine::run(config, async |mut loaded| {
        let engine = &loaded.engine;
        if !engine.profile().info.tasks.contains(&Task::Tts) {
            let help = "name a TTS model with --model";
            return Err(usage(format!("model '{name}' does not speak: a plan is for listeners"), help));
        }
        let told = |streams: usize, seconds: f64| {
            output::status(&format!("{streams} at once: {:.1} ms for a step", 1e3 * seconds));
        };
        let measured =
            loaded.interrupt.guard(async { Ok(capacity::measure(engine, effort, told).await) }).await?;
        let curve = measured.map_err(|error| match error {
            MeasureError::TooShort => with_help(error.to_string(), "measure fewer --tokens"),
            MeasureError::Engine(error) => error.into(),
        })?;
        let file = CurveFile::new(engine, curve, args.name.clone(), args.price);
        engine.stop();
        Ok(file)
    })
}

/// The plan with one kind of machine.
fn kind(args: &Args, demand: &Demand, file: &CurveFile) -> Kind {
    let curve = file.curve();
    let machine = curve.machine(args.utterance, args.first_audio);
    let count = |machine: &Machine, routing: Routing| {
        let Need { machines, refused, waiting, streams } = demand.machines(machine.streams, routing).ok()?;
        let utilisation = curve.utilisation(streams, args.utterance);
        let price_per_hour = file.price_per_hour.map(|price| price * machines as f64);
        Some(Count { machines, refused, waiting, utilisation, price_per_hour })
    };
    let kept = machine.ok();
    let least_streams = kept.and_then(|machine| count(&machine, Routing::LeastStreams));
    let sessions = kept.and_then(|machine| count(&machine, Routing::Separate));
    let limit = match &machine {
        Ok(machine) => page::limit(machine.limit).to_owned(),
        Err(TooSlow::Stream(share)) => {
            format!(
                "one stream takes {:.0} % of the device, at most 90 % keep it without a gap",
                100.0 * share
            )
        }
        Err(TooSlow::FirstAudio(seconds)) => {
            format!("the first audio of one stream takes {seconds:.2} s: see --first-audio")
        }
    };
    Kind {
        machine: file.machine.clone(),
        device: file.device.clone(),
        precision: file.precision.clone(),
        threads: file.threads,
        measured_at: file.measured_at.clone(),
        version: file.version.clone(),
        streams: kept.map_or(0, |machine| machine.streams),
        limit,
        utilisation: kept.map(|machine| machine.utilisation),
        first_audio_s: kept.map(|machine| machine.first_audio_s),
        least_streams,
        sessions,
        memory_bytes: file.memory_bytes,
        price_per_hour: file.price_per_hour,
    }
}
