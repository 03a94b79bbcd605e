//! The playback of a live stream: what a client that plays at once has heard, where it ran out of audio, and what steps
//! must know of it.
//!
//! Must not know samples or channels.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::types::PlaybackReport;

/// Why a client ran out of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum UnderrunCause {
    /// The audio was generated too late.
    Generation,
    /// The client did not read audio that was there.
    Reader,
    /// The client had the audio and did not play it, as its acknowledgements show.
    Client,
    /// The listener heard silence, as the client told. What made it may have been counted too.
    Heard,
}

impl UnderrunCause {
    pub(in crate::engine) fn label(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Reader => "reader",
            Self::Client => "client",
            Self::Heard => "heard",
        }
    }
}

/// A gap in the playback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Underrun {
    pub(in crate::engine) cause: UnderrunCause,
    pub(in crate::engine) gap: Duration,
}

/// Acknowledgements of which the one that came fastest is believed.
const ACKNOWLEDGEMENTS: usize = 4;

/// Starts when the first chunk leaves, and then runs with time. [`PlaybackClock::acknowledge`] corrects it.
#[derive(Debug, Default)]
pub(in crate::engine) struct PlaybackClock {
    /// When playback of the delivered audio ends; `None` before the first chunk.
    end: Option<Instant>,
    delivered: Duration,
    /// Gaps because audio was generated too late.
    underrun: Duration,
    /// When all of the delivered audio has been played, as each of the last acknowledgements says.
    acknowledged: VecDeque<Instant>,
    /// The silence that the client has told.
    silence: Duration,
    /// Pauses that the client was told.
    told: Duration,
}

impl PlaybackClock {
    /// When playback of the delivered audio ends; `None` before the first chunk.
    pub(in crate::engine) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Gaps because audio was generated too late.
    pub(in crate::engine) fn underrun(&self) -> Duration {
        self.underrun
    }

    /// Audio delivered and not played.
    pub(in crate::engine) fn slack(&self, now: Instant) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(now))
    }

    /// Records that a chunk of `length` leaves `now`, made at `made_at`. Before the first one the player waits
    /// `prebuffer`. Returns the gap that it ends.
    pub(in crate::engine) fn deliver(
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
        let gap = now.saturating_duration_since(end);
        self.advance(gap + length);
        if gap.is_zero() {
            return None;
        }
        let late = made_at.saturating_duration_since(end);
        let cause = if late.is_zero() { UnderrunCause::Reader } else { UnderrunCause::Generation };
        self.underrun += late;
        Some(Underrun { cause, gap })
    }

    /// The text had run out until `now`: what the listener missed is nobody's underrun.
    pub(in crate::engine) fn wait(&mut self, now: Instant) {
        let gap = self.end.map(|end| now.saturating_duration_since(end));
        self.advance(gap.unwrap_or_default());
    }

    /// The first chunk after a pause that the client was told leaves `now`. Returns the silence that it ends.
    pub(in crate::engine) fn pause(&mut self, now: Instant) -> Duration {
        let gap = self.end.map(|end| now.saturating_duration_since(end)).unwrap_or_default();
        self.advance(gap);
        self.told += gap;
        gap
    }

    /// A reader that had stopped, and has played what it took, plays on `now` with `length` of audio that waited for it.
    /// Returns the gap that it made.
    pub(in crate::engine) fn resume(&mut self, length: Duration, now: Instant) -> Option<Underrun> {
        let gap = now.saturating_duration_since(self.end?);
        if gap.is_zero() {
            return None;
        }
        self.advance(gap + length);
        Some(Underrun { cause: UnderrunCause::Reader, gap })
    }

    /// Corrects the clock by what the client had played of the delivered audio at `at`. An acknowledgement may be late and then
    /// tells of more audio ahead than there is, so of the last few the one with the least counts. Returns the gap that the client
    /// tells, or else the one that they show from the second one on: the first tells how late the client began.
    pub(in crate::engine) fn acknowledge(&mut self, report: PlaybackReport, at: Instant) -> Option<Underrun> {
        let PlaybackReport { played, silence } = report;
        let silence = silence.map(|silence| silence.saturating_sub(self.told));
        let before = self.end?;
        let is_first = self.acknowledged.is_empty();
        if self.acknowledged.len() == ACKNOWLEDGEMENTS {
            self.acknowledged.pop_front();
        }
        self.acknowledged.push_back(at + self.delivered.saturating_sub(played));
        self.end = self.acknowledged.iter().min().copied();
        let (cause, gap) = match silence {
            Some(silence) => (UnderrunCause::Heard, silence.saturating_sub(self.silence)),
            None if is_first => return None,
            None => (UnderrunCause::Client, self.end?.saturating_duration_since(before)),
        };
        self.silence = self.silence.max(silence.unwrap_or_default());
        (!gap.is_zero()).then_some(Underrun { cause, gap })
    }

    fn advance(&mut self, by: Duration) {
        for end in self.end.iter_mut().chain(&mut self.acknowledged) {
            *end += by;
        }
    }
}

/// A deadline of streams that play, on the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Deadline {
    /// When the first of them runs out of audio, in microseconds.
    pub(in crate::engine) at_us: u64,
    /// Time of the steps that are needed until then, in microseconds.
    pub(in crate::engine) work_us: u64,
}

/// The playback of a live stream, on the engine's clock. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Playback {
    /// When its delivered audio ends.
    pub end_us: u64,
    /// Audio that is missing until its next chunk leaves.
    pub missing_us: u64,
    /// Audio of a chunk.
    pub chunk_us: u64,
    /// Audio that a step makes, on average; 0 if nothing is known.
    pub step_us: u64,
    /// Audio of a step that makes some; chunks leave with whole ones.
    pub frame_us: u64,
}

impl Playback {
    /// Steps until its next chunk leaves.
    pub(in crate::engine) fn steps(self) -> u32 {
        self.steps_for(self.missing_us)
    }

    /// Steps for a chunk.
    pub(in crate::engine) fn chunk_steps(self) -> u32 {
        self.steps_for(self.chunk_us)
    }

    /// Steps that make so much audio, at least one. The average is not exact: a tenth of a step more is none.
    fn steps_for(self, audio_us: u64) -> u32 {
        let (frame_us, step_us) = (self.frame_us.max(1), self.step_us);
        let whole_us = audio_us.div_ceil(frame_us).saturating_mul(frame_us);
        let steps = if step_us > 0 { whole_us.saturating_sub(step_us / 10).div_ceil(step_us) } else { 1 };
        u32::try_from(steps.max(1)).unwrap_or(u32::MAX)
    }

    /// When it runs out of audio, and the steps by then: for its next chunk, and for each after it.
    pub(super) fn chunks(self) -> impl Iterator<Item = (u64, u32)> {
        let chunks = move |played: u64| played.saturating_mul(self.chunk_us.max(1));
        (0..).map(move |index| {
            let steps = self.steps_for(self.missing_us.saturating_add(chunks(index)));
            (self.end_us.saturating_add(chunks(index)), steps)
        })
    }

    /// The playback after the stream's next step.
    pub(in crate::engine) fn after_a_step(self) -> Self {
        if self.steps() > 1 {
            return Self { missing_us: self.missing_us.saturating_sub(self.step_us), ..self };
        }
        let missing_us = (self.missing_us + self.chunk_us).saturating_sub(self.step_us.max(self.frame_us));
        Self { end_us: self.end_us + self.chunk_us, missing_us, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn played(played: u64) -> PlaybackReport {
        PlaybackReport { played: ms(played), silence: None }
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
        clock.acknowledge(played(100), start);
        clock.deliver(ms(200), start, start, ms(1_000));
        assert_eq!(clock.end(), Some(start + ms(1_200)));
        clock.acknowledge(played(50), start + ms(400));
        assert_eq!(clock.end(), Some(start + ms(550)));
        clock.acknowledge(played(900), start + ms(420));
        assert_eq!(clock.end(), Some(start + ms(420)));
    }

    #[test]
    fn a_reader_that_had_stopped_plays_on_with_what_waited_for_it() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        assert_eq!(clock.resume(ms(200), start), None);
        clock.deliver(ms(200), start, start, ms(0));
        assert_eq!(clock.resume(ms(200), start + ms(150)), None, "it has not played all of it");
        let stopped = clock.resume(ms(200), start + ms(5_200));
        assert_eq!(stopped, Some(Underrun { cause: UnderrunCause::Reader, gap: ms(5_000) }));
        let late = clock.deliver(ms(200), start + ms(5_300), start + ms(5_300), ms(0));
        assert_eq!((late, clock.end()), (None, Some(start + ms(5_600))));
    }

    #[test]
    fn late_acknowledgements_are_not_believed_and_a_gap_at_the_client_is() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        clock.deliver(ms(10_000), start, start, ms(0));
        assert_eq!(clock.acknowledge(played(20), start + ms(100)), None, "it began 80 ms late");
        assert_eq!(clock.end(), Some(start + ms(10_080)));
        for (at, after) in [(200, 120), (500, 220), (800, 320), (400, 320)] {
            assert_eq!(clock.acknowledge(played(after), start + ms(at)), None, "{at}");
            assert_eq!(clock.end(), Some(start + ms(10_080)), "{at}");
        }
        // It stands still for a second.
        let gaps: Vec<_> =
            (5..10).filter_map(|n| clock.acknowledge(played(100 * n), start + ms(1_080 + 100 * n))).collect();
        assert_eq!(gaps, [Underrun { cause: UnderrunCause::Client, gap: ms(1_000) }]);
        assert_eq!(clock.end(), Some(start + ms(11_080)));
    }

    #[test]
    fn acknowledgements_before_a_gap_count_after_it() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        clock.deliver(ms(200), start, start, ms(0));
        clock.acknowledge(played(100), start + ms(100));
        clock.deliver(ms(200), start + ms(500), start + ms(500), ms(0));
        assert_eq!(clock.end(), Some(start + ms(700)));
        clock.acknowledge(played(300), start + ms(600));
        assert_eq!(clock.end(), Some(start + ms(700)));
    }

    #[test]
    fn a_client_that_tells_its_gaps_may_play_more_slowly() {
        let (mut clock, start) = (PlaybackClock::default(), Instant::now());
        clock.deliver(ms(10_000), start, start, ms(0));
        let mut tell = |played, silence, at| {
            let report = PlaybackReport { played: ms(played), silence: Some(ms(silence)) };
            clock.acknowledge(report, start + ms(at)).map(|gap| (gap.cause, gap.gap))
        };
        assert_eq!(tell(400, 0, 400), None);
        assert_eq!(tell(760, 0, 800), None, "stretched by a tenth");
        assert_eq!(tell(960, 200, 1_200), Some((UnderrunCause::Heard, ms(200))));
        assert_eq!(tell(1_360, 200, 1_600), None);
        assert_eq!(tell(1_400, 150, 1_650), None, "silence is not taken back");
        assert_eq!(tell(1_700, 260, 2_060), Some((UnderrunCause::Heard, ms(60))));
        assert!(clock.end() > Some(start + ms(10_000)), "it plays on for longer");
    }
}
