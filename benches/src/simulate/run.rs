//! Runs of the simulation: rows of a machine at a load, and the search for the best fixed batch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use rayon::prelude::*;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{self, World};
use crate::disturbance::Disturbances;
use crate::load::{self, Offered};
use crate::machines::{self, Machine, Setup};
use crate::report::{Goodput, Report};
use crate::tally::{Row, Tally};
use crate::{Args, Mix};

/// Bulk TTS requests at any time.
const BULK_CLIENTS: u64 = 2;
/// How long after the last arrival a run may take.
const REST: Duration = Duration::from_secs(600);
/// Clients of a row that look for the true time at which they would be accepted.
const PROBES: u64 = 200;
/// Offered load at which goodput is compared.
const SATURATED: f64 = 4.0;
/// Share of the minutes for each run of the search for the best fixed batch.
const SEARCH_SHARE: f64 = 0.003;
/// Numbers of streams that the search tries.
const TRIES: usize = 12;

/// One run.
#[derive(Debug, Clone, Copy)]
struct Run<'a> {
    machine: &'a Machine,
    load: f64,
    minutes: f64,
    seed: u64,
    mixed: bool,
    /// Live streams at once without admission; `None` for the engine's own admission.
    fixed: Option<usize>,
    disturbances: Disturbances,
}

/// What a run gave.
struct Outcome {
    tally: Tally,
    simulated: Duration,
    steps: u64,
    /// Seconds in steps, and those for bulk requests.
    busy: (f64, f64),
}

impl Run<'_> {
    fn run(&self) -> Result<Outcome> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let outcome = runtime.block_on(self.simulate());
        runtime.shutdown_background();
        outcome
    }

    async fn simulate(&self) -> Result<Outcome> {
        let length = Duration::from_secs_f64(60.0 * self.minutes);
        let setup = Setup {
            seed: self.seed,
            max_batch: self.fixed.map(|streams| streams.min(self.machine.max_batch)),
            admission: self.fixed.is_none(),
            disturbances: self.disturbances,
        };
        let engines = machines::start(self.machine, setup).await?;
        let start = Instant::now();
        let world = Arc::new(World::new(engines, self.fixed, start + length, PROBES));
        let offered = Offered {
            streams: self.load * self.machine.capacity(),
            mixed: self.mixed,
            chats: self.machine.chat.is_some(),
        };
        let mut tasks = JoinSet::new();
        if self.mixed {
            for index in 0..BULK_CLIENTS {
                tasks.spawn(client::speak_in_bulk(Arc::clone(&world), self.seed ^ index));
            }
            tasks.spawn(client::transcribe(Arc::clone(&world), self.seed));
        }
        for client in load::clients(self.seed, length, offered) {
            tokio::time::sleep_until(start + client.at).await;
            tasks.spawn(client.run(Arc::clone(&world)));
            while tasks.try_join_next().is_some() {}
        }
        tokio::time::sleep_until(start + length).await;
        let (simulated, busy) = (start.elapsed(), world.engines.meter.busy_s());
        // A client that is never answered counts as a failed request.
        let rest = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(REST, rest).await;
        world.tally().failed += tasks.len() as u64;
        let tally = std::mem::take(&mut *world.tally());
        Ok(Outcome { tally, simulated, steps: world.engines.meter.steps(), busy })
    }

    fn row(&self) -> Result<(Row, Tally)> {
        let Outcome { tally, simulated, steps, busy } = self.run()?;
        Ok((Row::new(self.machine.name, self.load, &tally, simulated, steps, busy), tally))
    }

    fn goodput(&self) -> Result<(f64, u64)> {
        let outcome = self.run()?;
        Ok((outcome.tally.in_time_s / outcome.simulated.as_secs_f64(), outcome.steps))
    }
}

/// The machines that are asked for.
fn chosen(args: &Args) -> Result<Vec<Machine>> {
    let known = Machine::all(args.noise);
    let wanted = |machine: &Machine| {
        args.machines.is_empty() || args.machines.iter().any(|part| machine.name.contains(part.as_str()))
    };
    let machines: Vec<Machine> = known.into_iter().filter(wanted).collect();
    ensure!(!machines.is_empty() && !args.load.is_empty(), "no machine or no load is left");
    Ok(machines)
}

/// Runs each machine at each load.
pub(crate) fn rows(args: &Args) -> Result<Vec<(Row, Tally)>> {
    let machines = chosen(args)?;
    let weights: f64 = machines.iter().map(|machine| machine.weight).sum();
    let mut runs = Vec::new();
    for machine in &machines {
        for &load in &args.load {
            let minutes = args.minutes * machine.weight / weights / args.load.len() as f64;
            let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(runs.len() as u64);
            let (mixed, disturbances) = (args.mix == Mix::Mixed, args.disturbances);
            runs.push(Run { machine, load, minutes, seed, mixed, fixed: None, disturbances });
        }
    }
    runs.par_iter().map(Run::row).collect()
}

/// Runs everything.
pub(crate) fn simulate(args: &Args) -> Result<Report> {
    let (machines, rows) = (chosen(args)?, rows(args)?);
    let real_time: Vec<&Machine> = machines.iter().filter(|machine| machine.is_real_time()).collect();
    let goodput = real_time.into_iter().map(|machine| search(args, machine));
    let goodput = goodput.collect::<Result<Vec<_>>>()?;
    Ok(Report::new(args, rows, goodput))
}

/// Finds the best fixed number of live streams of a machine, and compares admission with it on the same clients.
fn search(args: &Args, machine: &Machine) -> Result<(Goodput, u64)> {
    let minutes = (args.minutes * SEARCH_SHARE).max(2.0);
    let (seed, disturbances) = (args.seed, args.disturbances);
    let admission = Run { machine, load: SATURATED, minutes, seed, mixed: false, fixed: None, disturbances };
    let most = (1.3 * machine.capacity()).ceil() as usize + 1;
    let least = (0.4 * machine.capacity()).max(1.0) as usize;
    let step = ((most - least) / TRIES).max(1);
    let mut runs = vec![admission];
    runs.extend((least..=most).step_by(step).map(|batch| Run { fixed: Some(batch), ..admission }));
    let results = runs.par_iter().map(Run::goodput).collect::<Result<Vec<_>>>()?;
    let steps = results.iter().map(|(_, steps)| steps).sum();
    let fixed = runs.iter().zip(&results).skip(1);
    let best = fixed.max_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
    let (best_batch, best_fixed) =
        best.map_or((0, 0.0), |(run, (goodput, _))| (run.fixed.unwrap_or(0), *goodput));
    let name = machine.name.to_owned();
    Ok((Goodput { machine: name, best_batch, best_fixed, admission: results[0].0 }, steps))
}
