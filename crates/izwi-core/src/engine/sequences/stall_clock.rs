//! How far a listener's reading is behind real time, while chunks wait for it.
//!
//! Must not know channels or sequences.

use std::time::Duration;

/// Share of real time at which a listener has to read. Below 1, so that a pause is forgiven in the course of time.
const REQUIRED_RATE: f64 = 0.9;

/// The lag of one listener: time during which a chunk waited for it, less the audio it took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StallClock {
    lag: Duration,
}

impl StallClock {
    /// Records that a chunk waited for `time`.
    pub(super) fn wait(&mut self, time: Duration) {
        self.lag = self.lag_after(time);
    }

    /// Records that the listener took `audio`.
    pub(super) fn take(&mut self, audio: Duration) {
        self.lag = self.lag.saturating_sub(audio);
    }

    /// The lag once a chunk has waited for `time` more.
    pub(super) fn lag_after(&self, time: Duration) -> Duration {
        self.lag + time.mul_f64(REQUIRED_RATE)
    }

    /// How long a chunk has to wait until the lag is `limit`.
    pub(super) fn time_to(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.lag).div_f64(REQUIRED_RATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Seconds until a listener is stalled that waits and takes in turns, `None` if it is not within a day.
    fn stalls(mut turns: impl FnMut(u32) -> (f64, f64)) -> Option<f64> {
        let (mut clock, mut seconds) = (StallClock::default(), 0.0);
        for turn in 0.. {
            let (wait, audio) = turns(turn);
            if clock.time_to(LIMIT) <= Duration::from_secs_f64(wait) {
                return Some(seconds + clock.time_to(LIMIT).as_secs_f64());
            }
            clock.wait(Duration::from_secs_f64(wait));
            clock.take(Duration::from_secs_f64(audio));
            seconds += wait;
            if seconds > 86_400.0 {
                return None;
            }
        }
        None
    }

    #[test]
    fn a_listener_slower_than_real_time_is_stalled_and_one_that_pauses_is_not() {
        let never = stalls(|_| (3_600.0, 0.0));
        assert!(never.is_some_and(|seconds| (30.0..40.0).contains(&seconds)), "{never:?}");
        let a_chunk_every_29_s = stalls(|_| (29.0, 0.2));
        assert!(a_chunk_every_29_s.is_some_and(|seconds| seconds < 60.0), "{a_chunk_every_29_s:?}");
        let half_as_fast = stalls(|_| (0.4, 0.2));
        assert!(half_as_fast.is_some_and(|seconds| seconds < 120.0), "{half_as_fast:?}");
        assert_eq!(stalls(|_| (0.2, 0.2)), None, "real time");
        // A pause of 10 s every five minutes, in which nothing is caught up.
        assert_eq!(stalls(|turn| if turn % 1_500 == 0 { (10.0, 0.2) } else { (0.2, 0.2) }), None);
        // Reading ahead earns no credit.
        let mut clock = StallClock::default();
        clock.take(Duration::from_secs(3_600));
        assert!(clock.lag_after(Duration::from_secs(34)) > LIMIT);
    }
}
