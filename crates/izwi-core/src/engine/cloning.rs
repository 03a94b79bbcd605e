//! Time of the networks that clone a voice, learned by the length of the recording.
//!
//! Must not know networks or devices.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::qos::cost::{CostModel, StepShape, safety};

/// Time for a second of a recording, in seconds, before the first voice is cloned.
const UNKNOWN: f64 = 0.5;

/// The learned time. A hundredth of a second of the recording counts as a token of an encoder.
#[derive(Debug, Default)]
pub(super) struct CloningTime(Mutex<CostModel>);

impl CloningTime {
    /// Expected time for a recording of `length`, and the longest that is counted on.
    pub(super) fn predict(&self, length: Duration) -> (Duration, Duration) {
        let costs = self.lock();
        let expected = if costs.is_known() { costs.predict(shape(length)) } else { length.mul_f64(UNKNOWN) };
        (expected, expected.mul_f64(safety(&costs)))
    }

    /// Learns that a recording of `length` took `time`.
    pub(super) fn observe(&self, length: Duration, time: Duration) {
        self.lock().observe(shape(length), time);
    }

    /// Ignores poisoning: a model of times is usable at any time.
    fn lock(&self) -> MutexGuard<'_, CostModel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shape(length: Duration) -> StepShape {
    let encoder_tokens = usize::try_from(length.as_millis() / 10).unwrap_or(usize::MAX);
    StepShape { encoder_tokens, ..StepShape::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_grows_with_the_recording_from_the_first_voice_on() {
        let (times, s) = (CloningTime::default(), Duration::from_secs);
        assert_eq!(times.predict(s(10)).0, s(5));
        times.observe(s(2), Duration::from_millis(400));
        let (expected, longest) = times.predict(s(30));
        assert!((5.0..6.5).contains(&expected.as_secs_f64()) && longest > expected, "{expected:?}");
        for _ in 0..20 {
            times.observe(s(2), Duration::from_millis(500));
            times.observe(s(20), Duration::from_millis(1_400));
        }
        // 0.4 s for any recording, and 50 ms for each second.
        let expected = times.predict(s(30)).0.as_secs_f64();
        assert!((1.7..2.1).contains(&expected), "{expected}");
    }
}
