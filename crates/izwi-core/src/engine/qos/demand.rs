//! The demand of streams that play: by when a device must have worked how long for them.
//!
//! Must not know streams or devices.

use super::playback::{Deadline, Playback};

/// How far ahead of its first deadline the demand of an engine is looked at, in microseconds.
const HORIZON_US: u64 = 500_000;
/// The most steps that are looked at: those of a chunk of minutes.
const MOST_STEPS: usize = 4_096;

/// Time of a step, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct StepTime {
    /// The longest that is counted on.
    pub(in crate::engine) longest_us: u64,
    /// The expected one.
    pub(in crate::engine) expected_us: u64,
}

/// Deadlines of the steps that continue all of these playbacks, the earliest first, each with the work since the one before.
/// The first step may take longest; of all in a row that is not expected.
pub(in crate::engine) fn of_playbacks(
    playing: impl Iterator<Item = Playback>,
    times: StepTime,
) -> Vec<Deadline> {
    // When each step must have ended.
    let mut ends_us: Vec<u64> = Vec::new();
    let mut until_us = u64::MAX;
    for playback in playing {
        until_us = until_us.min(playback.end_us.saturating_add(HORIZON_US));
        for (end_us, steps) in playback.chunks().take_while(|(end_us, _)| *end_us <= until_us) {
            let step = (steps.max(1) as usize).min(MOST_STEPS) - 1;
            ends_us.resize(ends_us.len().max(step + 1), u64::MAX);
            ends_us[step] = ends_us[step].min(end_us);
        }
    }
    // Steps are done one after another.
    for step in (1..ends_us.len()).rev() {
        ends_us[step - 1] = ends_us[step - 1].min(ends_us[step]);
    }
    let mut deadlines: Vec<Deadline> = Vec::new();
    for at_us in ends_us.into_iter().take_while(|at_us| *at_us <= until_us && *at_us < u64::MAX) {
        let work_us = if deadlines.is_empty() { times.longest_us } else { times.expected_us };
        match deadlines.last_mut().filter(|last| last.at_us == at_us) {
            Some(last) => last.work_us += work_us,
            None => deadlines.push(Deadline { at_us, work_us }),
        }
    }
    deadlines
}

/// When work on all of this must begin at the latest, if the earliest deadline goes first. Sorts the deadlines.
pub(in crate::engine) fn latest_start_us(deadlines: &mut [Deadline]) -> Option<u64> {
    deadlines.sort_unstable_by_key(|deadline| deadline.at_us);
    let starts = deadlines.iter().scan(0, |work_us, deadline| {
        *work_us += deadline.work_us;
        Some(deadline.at_us.saturating_sub(*work_us))
    });
    starts.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: StepTime = StepTime { longest_us: 50, expected_us: 40 };

    /// Chunks of 200 ms that 2.5 steps make, and a chunk that leaves after `missing_us` of audio.
    fn playback(end_us: u64, missing_us: u64) -> Playback {
        Playback { end_us, missing_us, chunk_us: 200_000, step_us: 80_000, frame_us: 80_000 }
    }

    #[test]
    fn the_demand_has_all_steps_of_the_next_chunks() {
        // Steps 1 to 3 for the first chunk, to 5 and 8 for those after it; another stream needs its third step first.
        let first = playback(1_000_000, 200_000);
        let deadline = |at_us, work_us| Deadline { at_us, work_us };
        let alone = of_playbacks([first].into_iter(), TIMES);
        let expected = [deadline(1_000_000, 130), deadline(1_200_000, 80), deadline(1_400_000, 120)];
        assert_eq!(alone, expected);
        let both = of_playbacks([first, playback(950_000, 80_000)].into_iter(), TIMES);
        // The other one: step 1 by 950,000, step 4 by 1,150,000, step 6 by 1,350,000.
        let expected = [
            deadline(950_000, 50),
            deadline(1_000_000, 80),
            deadline(1_150_000, 40),
            deadline(1_200_000, 40),
            deadline(1_350_000, 40),
            deadline(1_400_000, 80),
        ];
        assert_eq!(both, expected);
        assert_eq!(of_playbacks(std::iter::empty(), TIMES), []);
        let chunk_us = 20_000_000;
        let long = Playback { missing_us: chunk_us, chunk_us, ..first };
        assert_eq!(of_playbacks([long].into_iter(), TIMES), [deadline(1_000_000, 50 + 249 * 40)]);
    }

    #[test]
    fn work_begins_in_time_for_each_deadline() {
        let deadline = |at_us, work_us| Deadline { at_us, work_us };
        assert_eq!(latest_start_us(&mut []), None);
        assert_eq!(latest_start_us(&mut [deadline(100, 30)]), Some(70));
        assert_eq!(latest_start_us(&mut [deadline(110, 60), deadline(100, 30)]), Some(20));
        assert_eq!(latest_start_us(&mut [deadline(10, 30)]), Some(0));
    }
}
