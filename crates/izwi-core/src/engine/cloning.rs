//! Time of the networks that clone a voice, learned by the length of the recording.
//!
//! Must not know networks or devices.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::qos::arbiter::{TurnRequest, TurnTimes};
use super::qos::cost::{CostModel, StepShape, safety};
use super::qos::pieces::Pieces;

/// Time for a second of a recording, in seconds, before the first voice is cloned.
const UNKNOWN: f64 = 0.5;

/// The learned time. A hundredth of a second of the recording counts as a token of an encoder.
#[derive(Debug, Default)]
pub(super) struct CloningTime(Mutex<(CostModel, Pieces)>);

impl CloningTime {
    /// What a recording of `length` asks of the device.
    pub(super) fn turn(&self, length: Duration) -> TurnRequest {
        let known = self.lock();
        let (costs, pieces) = &*known;
        let expected = if costs.is_known() { costs.predict(shape(length)) } else { length.mul_f64(UNKNOWN) };
        let predicted = expected.mul_f64(safety(costs));
        let piece = Some(predicted.mul_f64(pieces.longest_of_prompts()));
        TurnRequest { expected, predicted, piece, ..TurnRequest::default() }
    }

    /// Learns that a recording of `length` took `time` in its turn.
    pub(super) fn observe(&self, length: Duration, time: Duration, turn: TurnTimes) {
        let (costs, pieces) = &mut *self.lock();
        let (shape, time) = (shape(length), time.saturating_sub(turn.rested));
        costs.observe(shape, time);
        pieces.observe(shape, time, turn.longest_piece);
    }

    /// Ignores poisoning: a model of times is usable at any time.
    fn lock(&self) -> MutexGuard<'_, (CostModel, Pieces)> {
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
        let observe = |length, time| times.observe(length, time, TurnTimes::default());
        assert_eq!(times.turn(s(10)).expected, s(5));
        observe(s(2), Duration::from_millis(400));
        let TurnRequest { expected, predicted, .. } = times.turn(s(30));
        assert!((5.0..6.5).contains(&expected.as_secs_f64()) && predicted > expected, "{expected:?}");
        for _ in 0..20 {
            observe(s(2), Duration::from_millis(500));
            observe(s(20), Duration::from_millis(1_400));
        }
        // 0.4 s for any recording, and 50 ms for each second.
        let expected = times.turn(s(30)).expected.as_secs_f64();
        assert!((1.7..2.1).contains(&expected), "{expected}");
    }
}
