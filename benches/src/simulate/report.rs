//! The result of a simulation, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use crate::Args;
use crate::disturbance::Disturbances;
use crate::tally::{Row, Tally, quantile};

/// Load from which a machine counts as saturated with live streams.
const SATURATED: f64 = 2.0;

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Seed.
    pub(crate) seed: u64,
    /// Simulated minutes of the rows.
    pub(crate) minutes: f64,
    /// The largest relative deviation of a step's time.
    pub(crate) noise: f64,
    /// What happened to the machines.
    pub(crate) disturbances: Disturbances,
    /// Steps of the rows and of the search for the best fixed batch.
    pub(crate) steps: u64,
    /// Live streams accepted.
    pub(crate) accepted: u64,
    /// Live streams refused.
    pub(crate) refused: u64,
    /// Requests that failed in another way.
    pub(crate) failed: u64,
    /// Seconds of silence in accepted live streams whose reader keeps up.
    pub(crate) underrun_s: f64,
    /// Streams with silence.
    pub(crate) underrun_streams: u64,
    /// Seconds of silence of pauses that streams told of, and the streams with one.
    pub(crate) paused_s: f64,
    /// As above.
    pub(crate) paused_streams: u64,
    /// The least over machines of goodput with admission over that of the best fixed batch.
    pub(crate) goodput_ratio: Option<f64>,
    /// Median of |predicted − actual| over actual first audio.
    pub first_audio_error_p50: Option<f64>,
    /// Its 99th percentile.
    pub first_audio_error_p99: Option<f64>,
    /// Median of |told − true| over true time until a refused stream would be accepted.
    pub retry_after_error_p50: Option<f64>,
    /// Refused streams by which that is measured.
    pub(crate) retry_after_probes: usize,
    /// Share of the streams that came back after the told time and were then accepted, with competition.
    pub(crate) retries_accepted: Option<f64>,
    /// The least share of a device's time for bulk requests in rows at twice what it can keep and above.
    pub(crate) bulk_share_at_saturation: Option<f64>,
    /// Rows.
    pub(crate) results: Vec<Row>,
    /// Goodput at saturation.
    pub(crate) goodput: Vec<Goodput>,
}

/// Goodput of a machine at saturation, in seconds of audio delivered in time per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Goodput {
    /// The machine.
    pub(crate) machine: String,
    /// The best fixed number of live streams.
    pub(crate) best_batch: usize,
    /// Its goodput.
    pub(crate) best_fixed: f64,
    /// Goodput with admission.
    pub(crate) admission: f64,
}
impl Report {
    /// Sums rows.
    pub(crate) fn new(args: &Args, rows: Vec<(Row, Tally)>, goodput: Vec<(Goodput, u64)>) -> Self {
        let mut all = Tally::default();
        rows.iter().for_each(|(_, tally)| all.add(tally));
        let rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
        let searched: u64 = goodput.iter().map(|(_, steps)| steps).sum();
        let goodput: Vec<Goodput> = goodput.into_iter().map(|(goodput, _)| goodput).collect();
        let ratios =
            goodput.iter().map(|goodput| goodput.admission / goodput.best_fixed.max(f64::MIN_POSITIVE));
        let saturated = rows.iter().filter(|row| row.load >= SATURATED).map(|row| row.bulk_share);
        Self {
            seed: args.seed,
            minutes: rows.iter().map(|row| row.minutes).sum(),
            noise: args.noise,
            disturbances: args.disturbances,
            steps: rows.iter().map(|row| row.steps).sum::<u64>() + searched,
            accepted: all.accepted,
            refused: all.refused,
            failed: all.failed,
            underrun_s: all.underrun.as_secs_f64(),
            underrun_streams: all.underrun_streams,
            paused_s: all.paused.as_secs_f64(),
            paused_streams: all.paused_streams,
            goodput_ratio: ratios.min_by(f64::total_cmp),
            first_audio_error_p50: quantile(&all.first_audio_errors, 0.5),
            first_audio_error_p99: quantile(&all.first_audio_errors, 0.99),
            retry_after_error_p50: quantile(&all.retry_after_errors, 0.5),
            retry_after_probes: all.retry_after_errors.len(),
            retries_accepted: (all.retries > 0).then(|| all.retries_accepted as f64 / all.retries as f64),
            bulk_share_at_saturation: saturated.min_by(f64::total_cmp),
            results: rows,
            goodput,
        }
    }

    /// A table for people.
    pub(crate) fn table(&self) -> String {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let mut text = format!("seed {}, {:.0} minutes, {} steps\n\n", self.seed, self.minutes, self.steps);
        let _ = writeln!(
            text,
            "{:16} {:>6} {:>9} {:>9} {:>7} {:>10} {:>8} {:>8} {:>8} {:>9} {:>9} {:>6} {:>6}",
            "machine",
            "load",
            "accepted",
            "refused",
            "failed",
            "underrun s",
            "streams",
            "paused",
            "ttfa p50",
            "ttfa err",
            "retry err",
            "bulk",
            "idle"
        );
        for row in &self.results {
            let _ = writeln!(
                text,
                "{:16} {:>6} {:>9} {:>9} {:>7} {:>10.3} {:>8} {:>8} {:>8} {:>9} {:>9} {:>6.3} {:>6.3}",
                row.machine,
                row.load,
                row.accepted,
                row.refused,
                row.failed,
                row.underrun_s,
                row.underrun_streams,
                row.paused_streams,
                shown(row.first_audio_p50_s),
                shown(row.first_audio_error_p99),
                shown(row.retry_after_error_p50),
                row.bulk_share,
                row.idle_share
            );
        }
        for goodput in &self.goodput {
            let Goodput { machine, best_batch, best_fixed, admission } = goodput;
            let _ = writeln!(
                text,
                "goodput {machine}: {admission:.3}, best of {best_batch} fixed {best_fixed:.3}"
            );
        }
        let _ = writeln!(
            text,
            "\naccepted {}, refused {}, failed {}, underrun {:.3} s in {} streams, told pauses {:.3} s in {} \
             streams\ngoodput ratio {}, first audio error p50 {} \
             p99 {}, retry-after error p50 {} of {}, retries accepted {}, bulk share at saturation {}",
            self.accepted,
            self.refused,
            self.failed,
            self.underrun_s,
            self.underrun_streams,
            self.paused_s,
            self.paused_streams,
            shown(self.goodput_ratio),
            shown(self.first_audio_error_p50),
            shown(self.first_audio_error_p99),
            shown(self.retry_after_error_p50),
            self.retry_after_probes,
            shown(self.retries_accepted),
            shown(self.bulk_share_at_saturation)
        );
        text
    }
}
