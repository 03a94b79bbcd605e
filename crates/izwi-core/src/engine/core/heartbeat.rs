//! A little work for a device between steps: a system may take back the memory of a GPU that is given none, and the next
//! step waits until all of it is there again.
//!
//! Must not know what a beat is.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::EngineCore;
use crate::engine::executor::ModelExecutor;
use crate::engine::metrics::count_device_fault;

/// From one beat, or the last step, to the next beat.
const EVERY: Duration = Duration::from_millis(1500);
/// A model without sequences is kept for so long after its last step.
const KEPT: Duration = Duration::from_secs(180);

/// When a device is given a beat.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// Whether the device needs it.
    is_on: bool,
    /// The end of the last step.
    stepped: Option<Instant>,
    /// The last beat.
    beat: Option<Instant>,
}

impl Heartbeat {
    pub(super) fn of(executor: &dyn ModelExecutor) -> Self {
        Self { is_on: executor.needs_beats(), stepped: None, beat: None }
    }

    /// Notes that a step has ended.
    pub(super) fn stepped(&mut self) {
        self.stepped = Some(Instant::now());
    }

    /// Waits until a beat is due; for ever where none is. `is_used`: whether there are sequences. Cancel-safe.
    pub(super) async fn is_due(&self, is_used: bool) {
        match self.stepped.filter(|_| self.is_on).and_then(|stepped| next(stepped, self.beat, is_used)) {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// The time of the next beat.
fn next(stepped: Instant, beat: Option<Instant>, is_used: bool) -> Option<Instant> {
    let at = beat.map_or(stepped, |beat| beat.max(stepped)) + EVERY;
    (is_used || at <= stepped + KEPT).then_some(at)
}

impl EngineCore {
    /// Gives the device a beat.
    pub(super) async fn beat(&mut self) {
        let Some(executor) = self.executor.take() else { return };
        let beat = move || {
            let told = executor.beat();
            (executor, told)
        };
        match tokio::task::spawn_blocking(beat).await {
            Ok((executor, told)) => {
                if let Err(error) = told {
                    tracing::warn!(%error, "the device did nothing between two steps");
                    self.heartbeat.is_on = false;
                }
                self.take_back(executor);
            }
            Err(lost) => {
                self.die(&format!("the device could not be kept awake: {lost}; restart the service"))
            }
        }
        self.heartbeat.beat = Some(Instant::now());
    }

    /// Takes the executor back after work, unless its device is lost.
    pub(super) fn take_back(&mut self, executor: Box<dyn ModelExecutor>) {
        if executor.has_lost_device() {
            count_device_fault(&executor.profile().device);
            self.die("its device gave up its work");
        } else {
            self.executor = Some(executor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_kept_while_a_model_is_used_and_three_minutes_longer() {
        let stepped = Instant::now();
        let after = |s: f32| stepped + Duration::from_secs_f32(s);
        assert_eq!(next(stepped, None, false), Some(after(1.5)));
        assert_eq!(next(stepped, Some(after(1.5)), false), Some(after(3.0)));
        let old = stepped - Duration::from_secs(60);
        assert_eq!(next(stepped, Some(old), true), Some(after(1.5)), "a step is a beat");
        assert_eq!(next(stepped, Some(after(178.5)), false), Some(after(180.0)));
        assert_eq!(next(stepped, Some(after(180.0)), false), None);
        assert_eq!(next(stepped, Some(after(180.0)), true), Some(after(181.5)));
    }

    #[tokio::test(start_paused = true)]
    async fn beats_come_between_steps_alone_and_only_where_they_are_needed() {
        let mut heart = Heartbeat { is_on: true, stepped: None, beat: None };
        async fn waits(heart: &Heartbeat, s: u64) -> bool {
            tokio::time::timeout(Duration::from_secs(s), heart.is_due(false)).await.is_err()
        }
        assert!(waits(&heart, 1000).await, "no step yet");
        heart.stepped();
        assert!(waits(&heart, 1).await);
        assert!(!waits(&heart, 1).await);
        heart.is_on = false;
        assert!(waits(&heart, 1000).await);
    }
}
