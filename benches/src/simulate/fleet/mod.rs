//! A fleet: many nodes with real engines on one paused clock, behind a balancer, with listeners who speak one utterance after
//! another and nodes that fail.
//!
//! The number of nodes comes from `izwi plan`'s own arithmetic over a curve that is measured on a node first, so that a run shows
//! whether the plan holds.

mod balancer;
mod listener;
mod node;
mod report;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use izwi_core::engine::capacity::{self, Demand, Effort, Routing};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::balancer::{Balancer, Policy};
use self::listener::{Listener, World};
use self::node::Node;
pub(crate) use self::report::Report;
use self::report::{Plan, Row};
use crate::load::mean_length_s;
use crate::machines::Machine;
use crate::random::Random;

/// Share of the counted time after which nodes are slow, are killed, and are drained.
const SLOW_AT: f64 = 0.2;
const KILLED_AT: f64 = 0.4;
const DRAINED_AT: f64 = 0.7;
/// How long after the end the last utterances may take.
const REST: Duration = Duration::from_secs(60);

/// Simulates a fleet: listeners, a balancer, and nodes that fail.
#[derive(Debug, Clone, Parser)]
pub(crate) struct FleetArgs {
    /// Seed of listeners, texts, noise and the balancer.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Listeners.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) listeners: usize,
    /// Share of the time in which a listener hears speech.
    #[arg(long, default_value_t = 0.2)]
    pub(crate) duty: f64,
    /// Counted seconds.
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// Seconds before, in which listeners come and engines learn.
    #[arg(long, default_value_t = 60.0)]
    pub(crate) before: f64,
    /// The kind of all nodes, by a part of its name.
    #[arg(long, default_value = "GPU")]
    pub(crate) machine: String,
    /// Nodes, spare ones included; planned if not given.
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// Balancer policies; a row for each.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "round-robin,random,two-choices,least-streams,scraped,sessions"
    )]
    pub(crate) policies: Vec<Policy>,
    /// Seconds between two readings of the nodes' state by the policy `scraped`.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) scrape: f64,
    /// Nodes that are killed at once, at 0.4 of the time.
    #[arg(long, default_value_t = 0)]
    pub(crate) killed: usize,
    /// Nodes that are drained at 0.7 of the time.
    #[arg(long, default_value_t = 0)]
    pub(crate) drained: usize,
    /// Nodes whose steps take twice as long from 0.2 of the time on.
    #[arg(long, default_value_t = 0)]
    pub(crate) slow: usize,
    /// Seconds after which the balancer notices a killed node.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) detect: f64,
    /// The balancer sends a refused utterance to another node, and tries no node twice, as NGINX does.
    #[arg(long)]
    pub(crate) pass_on: bool,
    /// The planned share of refused utterances.
    #[arg(long, default_value_t = 0.001)]
    pub(crate) refused: f64,
    /// The planned share of utterances that wait for another one to end.
    #[arg(long, default_value_t = 0.01)]
    pub(crate) waiting: f64,
    /// The planned longest time to the first audio without waiting, in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) first_audio: f64,
    /// The largest relative deviation of a step's time.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) noise: f64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl FleetArgs {
    fn machine(&self) -> Result<Machine> {
        let known = Machine::all(self.noise);
        let found = known.into_iter().find(|machine| machine.name.contains(self.machine.as_str()));
        found.with_context(|| format!("--machine {}: no such machine", self.machine))
    }

    /// The demand of the listeners, and the nodes that may be missing.
    fn demand(&self) -> Demand {
        Demand {
            listeners: self.listeners as f64,
            duty: self.duty,
            burst: 1.0,
            refused: self.refused,
            waiting: self.waiting,
            headroom: 0.0,
            spare: self.killed + self.drained + self.slow,
        }
    }
}

/// Runs each policy on the same listeners, one after the other.
pub(crate) fn simulate(args: &FleetArgs) -> Result<Report> {
    ensure!(args.duty > 0.0 && args.duty < 1.0, "--duty {}: give a share between 0 and 1", args.duty);
    ensure!(args.listeners > 0 && args.seconds > 0.0, "--listeners and --seconds must be above 0");
    let machine = args.machine()?;
    let plan = in_virtual_time(plan(args, &machine))?;
    let mut rows = Vec::new();
    for &policy in &args.policies {
        rows.push(in_virtual_time(run(args, &machine, &plan, policy))?);
    }
    Ok(Report::new(args, machine.name, plan, rows))
}

fn in_virtual_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// Measures a node as `izwi plan` measures a machine, and plans the fleet.
async fn plan(args: &FleetArgs, machine: &Machine) -> Result<Plan> {
    let node = Node::start(machine, args.seed).await?;
    let curve = capacity::measure(&node.engine, Effort { tokens: 60, rounds: 2 }, |_, _| {}).await?;
    node.engine.stop();
    let kept = curve.machine(mean_length_s(), args.first_audio);
    let kept = kept.map_err(|slow| anyhow::anyhow!("{} keeps no stream: {slow:?}", machine.name))?;
    let machines = |routing| {
        let need = args.demand().machines(kept.streams, routing);
        need.map_err(|_| anyhow::anyhow!("--listeners {}: too many for {}", args.listeners, machine.name))
    };
    Ok(Plan {
        streams: kept.streams,
        first_audio_s: kept.first_audio_s,
        pool: machines(Routing::LeastStreams)?.machines,
        separate: machines(Routing::Separate)?.machines,
    })
}

/// Runs one policy.
async fn run(args: &FleetArgs, machine: &Machine, plan: &Plan, policy: Policy) -> Result<Row> {
    let begun = std::time::Instant::now();
    let planned = if policy.pools() { plan.pool } else { plan.separate };
    let count = args.nodes.unwrap_or(planned);
    ensure!(
        args.killed + args.drained + args.slow < count,
        "--killed, --drained and --slow leave no node of {count}"
    );
    let mut nodes = Vec::new();
    for index in 0..count {
        nodes.push(Node::start(machine, args.seed.wrapping_add(1_000 + index as u64)).await?);
    }
    let nodes: Arc<[Arc<Node>]> = nodes.into();
    let balancer = Balancer::new(Arc::clone(&nodes), policy, args.seed);
    let start = Instant::now();
    let seconds = Duration::from_secs_f64;
    let counted_from = start + seconds(args.before);
    let ends_at = counted_from + seconds(args.seconds);
    let world = Arc::new(World::new(balancer, counted_from, ends_at, args.pass_on));
    let mut helpers = JoinSet::new();
    helpers.spawn(scrape(Arc::clone(&world), seconds(args.scrape)));
    helpers.spawn(fail(args.clone(), Arc::clone(&world), counted_from));
    let mut listeners = JoinSet::new();
    let mut random = Random::new(args.seed, 31);
    for index in 0..args.listeners {
        let listener = Listener::new(random.next() >> 16, index, args.duty);
        listeners.spawn(listener.run(Arc::clone(&world)));
    }
    sleep_until(ends_at).await;
    let rest = async { while listeners.join_next().await.is_some() {} };
    // A listener that is never answered counts as failed.
    let _ = tokio::time::timeout(REST, rest).await;
    let unanswered = listeners.len() as u64;
    helpers.abort_all();
    let tally = world.take_tally();
    let steps = nodes.iter().map(|node| node.engine.status().steps).sum();
    Ok(Row::new(policy, count, &tally, unanswered, steps, begun.elapsed()))
}

/// Reads the state of all nodes from time to time.
async fn scrape(world: Arc<World>, every: Duration) {
    loop {
        world.balancer.read();
        tokio::time::sleep(every).await;
    }
}

/// Lets nodes fail: slow ones first in their order, then killed ones, then drained ones.
async fn fail(args: FleetArgs, world: Arc<World>, from: Instant) {
    let at = |share: f64| from + Duration::from_secs_f64(share * args.seconds);
    let nodes = world.balancer.nodes();
    let (slow, others) = nodes.split_at(args.slow);
    let (killed, others) = others.split_at(args.killed);
    sleep_until(at(SLOW_AT)).await;
    slow.iter().for_each(|node| node.set_slow());
    sleep_until(at(KILLED_AT)).await;
    killed.iter().for_each(|node| node.kill());
    tokio::time::sleep(Duration::from_secs_f64(args.detect)).await;
    killed.iter().for_each(|node| node.leave());
    sleep_until(at(DRAINED_AT)).await;
    for node in &others[..args.drained] {
        node.leave();
        let engine = node.engine.clone();
        tokio::spawn(async move { engine.drain().await });
    }
}
