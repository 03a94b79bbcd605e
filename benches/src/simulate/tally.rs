//! What the clients of a run saw.
//!
//! Must not know engines.

use std::time::Duration;

use serde::Serialize;

/// Counts and measurements of one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Live streams that were accepted.
    pub(crate) accepted: u64,
    /// Live streams that were refused, retries included.
    pub(crate) refused: u64,
    /// Requests that failed in another way.
    pub(crate) failed: u64,
    /// Silence in streams whose reader keeps up.
    pub(crate) underrun: Duration,
    /// Streams with silence.
    pub(crate) underrun_streams: u64,
    /// Silence of pauses that streams told of, and the streams with one.
    pub(crate) paused: Duration,
    /// As above.
    pub(crate) paused_streams: u64,
    /// Audio of live streams, and the part of it that arrived in time, in seconds.
    pub(crate) audio_s: f64,
    /// As above.
    pub(crate) in_time_s: f64,
    /// |predicted − actual| over actual time to the first audio.
    pub(crate) first_audio_errors: Vec<f64>,
    /// Actual times to the first audio, in seconds.
    pub(crate) first_audio_s: Vec<f64>,
    /// |told − true| over true time until a stream would be accepted.
    pub(crate) retry_after_errors: Vec<f64>,
    /// Streams that came back after the told time, and those of them that were accepted.
    pub(crate) retries: u64,
    /// As above.
    pub(crate) retries_accepted: u64,
    /// Bulk requests that ended.
    pub(crate) bulk: u64,
}

impl Tally {
    /// Adds another run's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.failed += other.failed;
        self.underrun += other.underrun;
        self.underrun_streams += other.underrun_streams;
        self.paused += other.paused;
        self.paused_streams += other.paused_streams;
        self.audio_s += other.audio_s;
        self.in_time_s += other.in_time_s;
        self.first_audio_errors.extend(&other.first_audio_errors);
        self.first_audio_s.extend(&other.first_audio_s);
        self.retry_after_errors.extend(&other.retry_after_errors);
        self.retries += other.retries;
        self.retries_accepted += other.retries_accepted;
        self.bulk += other.bulk;
    }
}

/// Nearest-rank quantile; `None` without values.
pub(crate) fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = ((q * sorted.len() as f64).ceil() as usize).max(1) - 1;
    sorted.get(rank).copied()
}

/// One machine at one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The machine.
    pub(crate) machine: String,
    /// Offered live audio over what the machine can keep.
    pub(crate) load: f64,
    /// Simulated minutes.
    pub(crate) minutes: f64,
    /// Steps of all engines.
    pub(crate) steps: u64,
    /// Live streams that were accepted.
    pub(crate) accepted: u64,
    /// Live streams that were refused.
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
    /// Seconds of live audio per second.
    pub(crate) live_audio: f64,
    /// Median seconds to the first audio.
    pub first_audio_p50_s: Option<f64>,
    /// 99th percentile of |predicted − actual| over actual first audio.
    pub first_audio_error_p99: Option<f64>,
    /// Median of |told − true| over true time until a refused stream would be accepted.
    pub retry_after_error_p50: Option<f64>,
    /// Share of the device's time for bulk requests.
    pub(crate) bulk_share: f64,
    /// Share of the time in which the device does nothing, while bulk requests are always there.
    pub(crate) idle_share: f64,
}

impl Row {
    /// The row of a run that took `simulated` time, `busy_s` and of it `bulk_s` in steps.
    pub(crate) fn new(
        name: &str,
        load: f64,
        tally: &Tally,
        simulated: Duration,
        steps: u64,
        busy: (f64, f64),
    ) -> Self {
        let seconds = simulated.as_secs_f64();
        Self {
            machine: name.to_owned(),
            load,
            minutes: seconds / 60.0,
            steps,
            accepted: tally.accepted,
            refused: tally.refused,
            failed: tally.failed,
            underrun_s: tally.underrun.as_secs_f64(),
            underrun_streams: tally.underrun_streams,
            paused_s: tally.paused.as_secs_f64(),
            paused_streams: tally.paused_streams,
            live_audio: tally.audio_s / seconds,
            first_audio_p50_s: quantile(&tally.first_audio_s, 0.5),
            first_audio_error_p99: quantile(&tally.first_audio_errors, 0.99),
            retry_after_error_p50: quantile(&tally.retry_after_errors, 0.5),
            bulk_share: busy.1 / seconds,
            idle_share: 1.0 - busy.0 / seconds,
        }
    }
}
