//! The pauses of a device: steps that took longer than any that is counted on, because something else held the machine up.
//!
//! Must not know what the steps were.

use std::time::Duration;

use tokio::time::Instant;

/// How long a pause is remembered.
const MEMORY: Duration = Duration::from_secs(3_600);
/// So soon after a pause streams begin as if it came again.
const RECENT: Duration = Duration::from_secs(300);
/// Shorter ones are not counted.
const SHORTEST: Duration = Duration::from_millis(20);
/// Longer ones count as this long: nobody stays that far ahead.
const LONGEST: Duration = Duration::from_secs(1);
/// Longer ones are not counted: the machine slept.
const SLEEP: Duration = Duration::from_secs(5);

/// The pauses of the last hour, each longer than all after it.
#[derive(Debug, Default)]
pub(super) struct Pauses(Vec<(Instant, Duration)>);

impl Pauses {
    /// A step that ended at `now` took so much longer than was counted on.
    pub(super) fn record(&mut self, now: Instant, length: Duration) {
        if length < SHORTEST || length > SLEEP {
            return;
        }
        let length = length.min(LONGEST);
        // Those of nearly the same length need no place of their own.
        while self.0.last().is_some_and(|(_, shorter)| *shorter < length + SHORTEST / 2) {
            self.0.pop();
        }
        self.0.push((now, length));
    }

    /// The longest of the last hour.
    pub(super) fn longest(&self, now: Instant) -> Duration {
        self.longest_within(MEMORY, now)
    }

    /// The longest of the last minutes.
    pub(super) fn longest_recent(&self, now: Instant) -> Duration {
        self.longest_within(RECENT, now)
    }

    fn longest_within(&self, memory: Duration, now: Instant) -> Duration {
        let is_recent = |(at, _): &&(Instant, Duration)| now.saturating_duration_since(*at) <= memory;
        self.0.iter().find(is_recent).map_or(Duration::ZERO, |(_, length)| *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_longest_pause_of_an_hour_is_known_and_few_are_kept() {
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        let mut pauses = Pauses::default();
        for (after, length) in [(0, ms(400)), (10, ms(150)), (20, ms(200)), (30, ms(5)), (31, ms(60_000))] {
            pauses.record(start + after * minute, length);
        }
        assert_eq!(pauses.longest(start + 59 * minute), ms(400));
        assert_eq!(pauses.longest(start + 61 * minute), ms(200));
        assert_eq!(
            (pauses.longest_recent(start + 25 * minute), pauses.longest_recent(start + 26 * minute)),
            (ms(200), ms(0))
        );
        assert_eq!(pauses.longest(start + 82 * minute), ms(0));
        pauses.record(start, ms(1_500));
        assert_eq!(pauses.longest(start), LONGEST);
        for step in 0..100_000 {
            pauses.record(start, LONGEST.saturating_sub(Duration::from_micros(step * 9)));
        }
        assert!(pauses.0.len() <= 100, "{}", pauses.0.len());
    }
}
