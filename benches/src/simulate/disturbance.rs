//! What happens to a real machine: minutes in which it is slower, pauses, and a speed that drifts with its temperature.
//!
//! Must not know engines. Times count from the start of a run, on its paused clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use crate::random::Random;

/// Minutes of which one is slow.
const SLOW_MINUTE: u64 = 10;
/// Time in which the speed drifts down and up again.
const DRIFT_PERIOD: Duration = Duration::from_secs(1_200);
/// Mean time between pauses.
const PAUSE_PERIOD: Duration = Duration::from_secs(60);

/// Disturbances of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize)]
pub(crate) struct Disturbances {
    /// How many times as long steps take in every tenth minute.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) slow: f64,
    /// How many times as long steps take at the hottest, every twenty minutes.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) drift: f64,
    /// Milliseconds by which one step in each minute takes longer.
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ms: u64,
}

/// The disturbances of one device, whose engines share them.
#[derive(Debug)]
pub(crate) struct Disturbed {
    of: Disturbances,
    seed: u64,
    start: Instant,
    /// Pauses so far.
    pauses: AtomicU64,
}

impl Disturbed {
    /// Disturbances that count from now.
    pub(crate) fn new(of: Disturbances, seed: u64) -> Self {
        Self { of, seed, start: Instant::now(), pauses: AtomicU64::new(0) }
    }

    /// How long a step takes that begins now and would take `time`.
    pub(crate) fn step(&self, time: Duration) -> Duration {
        let elapsed = self.start.elapsed();
        let is_slow = elapsed.as_secs() / 60 % SLOW_MINUTE == SLOW_MINUTE - 1;
        let heat = 0.5 - 0.5 * (std::f64::consts::TAU * elapsed.div_duration_f64(DRIFT_PERIOD)).cos();
        let slowness = if is_slow { self.of.slow } else { 1.0 } * (1.0 + (self.of.drift - 1.0) * heat);
        let time = time.mul_f64(slowness);
        if self.of.pause_ms > 0 && elapsed + time >= self.next_pause() {
            self.pauses.fetch_add(1, Ordering::Relaxed);
            return time + Duration::from_millis(self.of.pause_ms);
        }
        time
    }

    /// When the next pause comes: at a time of its minute that the seed says.
    fn next_pause(&self) -> Duration {
        let minute = self.pauses.load(Ordering::Relaxed);
        let at = Random::new(self.seed, minute).unit();
        PAUSE_PERIOD.mul_f64(minute as f64 + at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_minute_of_ten_is_slow_and_each_has_a_pause() {
        let disturbed = Disturbed::new(Disturbances { slow: 2.0, drift: 1.0, pause_ms: 400 }, 3);
        let (mut slow, mut pauses, step) = (0, 0, Duration::from_millis(100));
        for _ in 0..12_000 {
            let time = disturbed.step(step);
            slow += u64::from(time == 2 * step);
            pauses += u64::from(time > 2 * step);
            tokio::time::advance(step).await;
        }
        assert!((1_198..=1_200).contains(&slow), "{slow} of two minutes");
        assert!((19..=21).contains(&pauses), "{pauses}");
    }
}
