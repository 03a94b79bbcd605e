//! When a model whose engine failed is loaded again, and when it is given up.
//!
//! It counts failures. It knows no engine and no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How soon and how often a model is loaded again after its engine failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Pause before the first reload. It doubles with each further failure in the window.
    pub first_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
    /// Failures within the window with which the model is given up.
    pub max_failures: usize,
    /// How long a failure counts.
    pub window: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
            max_failures: 6,
            window: Duration::from_secs(600),
        }
    }
}

/// The recent failures of one model.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures(VecDeque<Instant>);

impl Failures {
    /// Records a failure. Returns the pause before the next load; `None` if the model is given up.
    pub(super) fn record(&mut self, policy: &RestartPolicy, now: Instant) -> Option<Duration> {
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= policy.window) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        if self.0.len() >= policy.max_failures {
            return None;
        }
        let doublings = u32::try_from(self.0.len() - 1).unwrap_or(u32::MAX).min(31);
        Some(policy.first_pause.saturating_mul(1 << doublings).min(policy.max_pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_model_is_given_up() {
        let policy = RestartPolicy { max_pause: Duration::from_secs(6), ..RestartPolicy::default() };
        let mut failures = Failures::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let pauses: Vec<_> = (0..6).map(|second| failures.record(&policy, at(second))).collect();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(pauses, [seconds(1), seconds(2), seconds(4), seconds(6), seconds(6), None]);
        assert_eq!(failures.record(&policy, at(599)), None, "all still count");
        assert_eq!(
            failures.record(&policy, at(1_199)),
            seconds(1),
            "failures outside the window do not count"
        );
    }
}
