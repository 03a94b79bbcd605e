//! The playback clock of a stream: what a client that plays at once has heard, and where it ran out of audio.
//!
//! Must not know samples or channels.

use std::time::Duration;

use tokio::time::Instant;

/// Why a client ran out of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum UnderrunCause {
    /// The audio was generated too late.
    Generation,
    /// The client did not read audio that was there.
    Reader,
}

impl UnderrunCause {
    pub(in crate::engine) fn label(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Reader => "reader",
        }
    }
}

/// A gap in the playback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Underrun {
    pub(in crate::engine) cause: UnderrunCause,
    pub(in crate::engine) gap: Duration,
}

/// Starts when the first chunk leaves, and then runs with time. [`PlaybackClock::acknowledge`] corrects it.
#[derive(Debug, Default)]
pub(super) struct PlaybackClock {
    /// When playback of the delivered audio ends; `None` before the first chunk.
    end: Option<Instant>,
    delivered: Duration,
    /// Gaps because audio was generated too late.
    underrun: Duration,
}

impl PlaybackClock {
    /// When playback of the delivered audio ends; `None` before the first chunk.
    pub(super) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Gaps because audio was generated too late.
    pub(super) fn underrun(&self) -> Duration {
        self.underrun
    }

    /// Audio delivered and not played.
    pub(super) fn slack(&self, now: Instant) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(now))
    }

    /// Records that a chunk of `length` leaves `now`, made at `made_at`. Before the first one the player waits
    /// `prebuffer`. Returns the gap that it ends.
    pub(super) fn deliver(
        &mut self,
        length: Duration,
        made_at: Instant,
        now: Instant,
        prebuffer: Duration,
    ) -> Option<Underrun> {
        self.delivered += length;
        let Some(end) = self.end else {
            self.end = Some(now + prebuffer + length);
            return None;
        };
        self.end = Some(end.max(now) + length);
        let gap = now.saturating_duration_since(end);
        if gap.is_zero() {
            return None;
        }
        let late = made_at.saturating_duration_since(end);
        let cause = if late.is_zero() { UnderrunCause::Reader } else { UnderrunCause::Generation };
        self.underrun += late;
        Some(Underrun { cause, gap })
    }

    /// The text had run out until `now`: what the listener missed is nobody's underrun.
    pub(super) fn wait(&mut self, now: Instant) {
        self.end = self.end.map(|end| end.max(now));
    }

    /// Corrects the clock: the client has played `played` of the delivered audio `now`.
    pub(super) fn acknowledge(&mut self, played: Duration, now: Instant) {
        if self.end.is_some() {
            self.end = Some(now + self.delivered.saturating_sub(played));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn playback_starts_with_the_first_chunk_and_a_gap_ends_when_the_next_one_leaves() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        assert_eq!(clock.deliver(ms(200), start, start, ms(0)), None);
        assert_eq!(clock.slack(start + ms(50)), Some(ms(150)));
        // Made in time, and left when the reader took it.
        let reader = clock.deliver(ms(200), start + ms(100), start + ms(300), ms(0));
        assert_eq!(reader, Some(Underrun { cause: UnderrunCause::Reader, gap: ms(100) }));
        assert_eq!((clock.end(), clock.underrun()), (Some(start + ms(500)), ms(0)));
        let late = clock.deliver(ms(200), start + ms(530), start + ms(530), ms(0));
        assert_eq!(late, Some(Underrun { cause: UnderrunCause::Generation, gap: ms(30) }));
        assert_eq!((clock.end(), clock.underrun()), (Some(start + ms(730)), ms(30)));
    }

    #[test]
    fn a_prebuffer_and_an_acknowledgement_move_the_clock() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        clock.acknowledge(ms(100), start);
        clock.deliver(ms(200), start, start, ms(1_000));
        assert_eq!(clock.end(), Some(start + ms(1_200)));
        clock.acknowledge(ms(50), start + ms(400));
        assert_eq!(clock.end(), Some(start + ms(550)));
        clock.acknowledge(ms(900), start + ms(420));
        assert_eq!(clock.end(), Some(start + ms(420)));
    }
}
