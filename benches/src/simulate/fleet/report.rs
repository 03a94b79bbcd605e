//! The result of a fleet, as JSON and as a table.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::FleetArgs;
use super::balancer::Policy;
use super::listener::Tally;
use crate::tally::quantile;

/// What the plan says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Streams that a node keeps.
    pub(crate) streams: usize,
    /// Predicted seconds to the first audio alongside as many streams.
    pub(crate) first_audio_s: f64,
    /// Nodes, if their places are one pool.
    pub(crate) pool: usize,
    /// Nodes, if each has its own listeners.
    pub(crate) separate: usize,
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The policy.
    pub(crate) policy: Policy,
    /// Nodes, spare ones included.
    pub(crate) nodes: usize,
    /// Utterances that were asked for.
    pub(crate) utterances: u64,
    /// Share that was refused at the first time.
    pub(crate) refused_share: f64,
    /// Utterances that were refused each time.
    pub(crate) given_up: u64,
    /// Streams that failed although their node lives, and listeners that were never answered.
    pub(crate) failed: u64,
    /// Streams with a gap whose node lives.
    pub(crate) gaps: u64,
    /// Seconds of silence in them.
    pub(crate) gap_s: f64,
    /// Streams that were cut because their node died.
    pub(crate) cut: u64,
    /// Attempts to connect to a dead node.
    pub(crate) unreachable: u64,
    /// Median seconds to the first audio.
    pub(crate) first_audio_p50_s: Option<f64>,
    /// Its 99th percentile.
    pub(crate) first_audio_p99_s: Option<f64>,
    /// 99th percentile of the seconds from the death of a node to the audio of the utterance that began again.
    pub(crate) back_p99_s: Option<f64>,
    /// Seconds of audio.
    pub(crate) audio_s: f64,
    /// Steps of all engines.
    pub(crate) steps: u64,
    /// Seconds that the run took.
    #[serde(skip)]
    pub(crate) took_s: f64,
}

impl Row {
    /// The row of a run.
    pub(crate) fn new(
        policy: Policy,
        nodes: usize,
        tally: &Tally,
        unanswered: u64,
        steps: u64,
        took: Duration,
    ) -> Self {
        Self {
            policy,
            nodes,
            utterances: tally.utterances,
            refused_share: tally.refused as f64 / tally.utterances.max(1) as f64,
            given_up: tally.given_up,
            failed: tally.failed + unanswered,
            gaps: tally.gaps,
            gap_s: tally.gap.as_secs_f64(),
            cut: tally.cut,
            unreachable: tally.unreachable,
            first_audio_p50_s: quantile(&tally.first_audio_s, 0.5),
            first_audio_p99_s: quantile(&tally.first_audio_s, 0.99),
            back_p99_s: quantile(&tally.back_s, 0.99),
            audio_s: tally.audio_s,
            steps,
            took_s: took.as_secs_f64(),
        }
    }
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Seed.
    pub(crate) seed: u64,
    /// Kind of the nodes.
    pub(crate) machine: String,
    /// Listeners.
    pub(crate) listeners: usize,
    /// Share of the time in which they hear speech.
    pub(crate) duty: f64,
    /// Counted seconds.
    pub(crate) seconds: f64,
    /// Nodes that were killed, drained and slowed down.
    pub(crate) failures: [usize; 3],
    /// The plan.
    pub(crate) plan: Plan,
    /// Rows.
    pub(crate) results: Vec<Row>,
}

impl Report {
    /// The report of all rows.
    pub(crate) fn new(args: &FleetArgs, machine: &str, plan: Plan, results: Vec<Row>) -> Self {
        Self {
            seed: args.seed,
            machine: machine.to_owned(),
            listeners: args.listeners,
            duty: args.duty,
            seconds: args.seconds,
            failures: [args.killed, args.drained, args.slow],
            plan,
            results,
        }
    }

    /// The report as text.
    pub(crate) fn table(&self) -> String {
        let [killed, drained, slow] = self.failures;
        let mut text = format!(
            "{} listeners, {} of the time, {} s; {}: {} streams a node, first audio {:.2} s\n\
             planned nodes: {} as a pool, {} separate; killed {killed}, drained {drained}, slow {slow}\n",
            self.listeners,
            self.duty,
            self.seconds,
            self.machine,
            self.plan.streams,
            self.plan.first_audio_s,
            self.plan.pool,
            self.plan.separate,
        );
        text.push_str("| policy | nodes | utterances | refused | given up | gaps | cut | first audio p50, p99 | back p99 | steps | took |\n");
        text.push_str("|---|---|---|---|---|---|---|---|---|---|---|\n");
        let shown = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2} s"));
        for row in &self.results {
            let policy = serde_json::to_string(&row.policy).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.3} % | {} | {} | {} | {}, {} | {} | {} | {:.0} s |",
                policy.trim_matches('"'),
                row.nodes,
                row.utterances,
                100.0 * row.refused_share,
                row.given_up + row.failed,
                row.gaps,
                row.cut,
                shown(row.first_audio_p50_s),
                shown(row.first_audio_p99_s),
                shown(row.back_p99_s),
                row.steps,
                row.took_s,
            );
        }
        text
    }
}
