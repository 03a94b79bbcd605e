//! Probabilities of speakers to turns, as rows come: each turn is told once it is final, in order of their starts.
//!
//! Source: `vad_utils` of the Python package `nemo-toolkit` 3.0.0 (`binarization`, `filtering`), on its grid of 10 ms; where its
//! merging depends on the order of equal starts, turns are united.

use super::latency::{Row, SPEAKERS};

/// Values of the grid to a row, and seconds of a value.
const VALUES_PER_ROW: usize = 8;
const VALUE_S: f64 = 0.01;

/// When a speaker speaks.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
pub(super) struct Thresholds {
    /// The probability above which a turn begins, and below which it ends.
    onset: f64,
    offset: f64,
    /// Seconds added before and after it.
    pad_onset: f64,
    pad_offset: f64,
    /// The shortest turn, and the shortest pause between two, in seconds.
    min_duration_on: f64,
    min_duration_off: f64,
}

impl Thresholds {
    /// Those of the publisher for recordings of many kinds (its files for DIHARD III), of models for recordings in pieces.
    pub(super) const IN_PIECES: Self = Self {
        onset: 0.56,
        offset: 1.0,
        pad_onset: 0.063,
        pad_offset: 0.002,
        min_duration_on: 0.007,
        min_duration_off: 0.151,
    };
    /// The same of models for whole recordings.
    pub(super) const WHOLE: Self = Self {
        onset: 0.64,
        offset: 0.74,
        pad_onset: 0.06,
        pad_offset: 0.0,
        min_duration_on: 0.1,
        min_duration_off: 0.15,
    };
}

/// A stretch in which one speaker speaks, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    /// Counted from 0, in order of their first words.
    pub(super) speaker: usize,
}

/// The turns of a recording.
#[derive(Debug)]
pub(super) struct Turns {
    thresholds: Thresholds,
    speakers: [Track; SPEAKERS],
    /// Values so far.
    values: usize,
    /// Final turns that wait for others that start before them.
    waiting: Vec<Turn>,
}

/// One speaker.
#[derive(Debug, Default)]
struct Track {
    /// Start of the speech that goes on.
    open: Option<f64>,
    /// The last turn that may be joined with the next, and the one before that was long enough.
    last: Option<(f64, f64)>,
    held: Option<(f64, f64)>,
}

impl Track {
    /// Adds a turn; the final one before it, if there is one.
    fn add(&mut self, start: f64, end: f64, thresholds: &Thresholds) -> Option<(f64, f64)> {
        if end <= start {
            return None;
        }
        match &mut self.last {
            Some(last) if start <= last.1 => {
                last.1 = last.1.max(end);
                None
            }
            _ => {
                let ended = self.settle(thresholds);
                self.last = Some((start, end));
                ended
            }
        }
    }

    /// Joins the last turn with the one before or drops it; the final one before it, if there is one.
    fn settle(&mut self, thresholds: &Thresholds) -> Option<(f64, f64)> {
        let last = self.last.take();
        let (start, end) = last.filter(|(start, end)| end - start >= thresholds.min_duration_on)?;
        match &mut self.held {
            Some(held) if start - held.1 < thresholds.min_duration_off => {
                held.1 = end;
                None
            }
            held => held.replace((start, end)),
        }
    }

    /// A turn that is final since none starts before `next`.
    fn release(&mut self, next: f64, thresholds: &Thresholds) -> [Option<(f64, f64)>; 2] {
        let before = match self.last {
            Some((_, end)) if end < next => self.settle(thresholds),
            _ => None,
        };
        let next = self.last.map_or(next, |(start, _)| start);
        [before, self.held.take_if(|held| next > held.1 && next - held.1 > thresholds.min_duration_off)]
    }
}

impl Turns {
    pub(super) fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, speakers: Default::default(), values: 0, waiting: Vec::new() }
    }

    /// Takes the next rows.
    pub(super) fn push(&mut self, rows: &[Row]) {
        let Self { thresholds, speakers, waiting, .. } = self;
        for row in rows {
            for place in self.values..self.values + VALUES_PER_ROW {
                let at = place as f64 * VALUE_S;
                for (speaker, (track, &value)) in speakers.iter_mut().zip(row).enumerate() {
                    let value = f64::from(value);
                    match track.open {
                        Some(start) if value < thresholds.offset => {
                            track.open = None;
                            let start = (start - thresholds.pad_onset).max(0.0);
                            let ended = track.add(start, at + thresholds.pad_offset, thresholds);
                            waiting.extend(ended.map(|ended| turn(ended, speaker)));
                        }
                        None if value > thresholds.onset => track.open = Some(at),
                        _ => {}
                    }
                }
            }
            self.values += VALUES_PER_ROW;
        }
    }

    /// The turns that are final, or all where nothing follows, by their starts.
    pub(super) fn take(&mut self, is_all: bool) -> Vec<Turn> {
        let now = self.now_s();
        let Self { thresholds, speakers, waiting, .. } = self;
        let mut first = f64::INFINITY;
        for (speaker, track) in speakers.iter_mut().enumerate() {
            let mut ended = Vec::new();
            if is_all {
                if let Some(start) = track.open.take() {
                    let end = self.values.saturating_sub(1) as f64 * VALUE_S + thresholds.pad_offset;
                    ended.extend(track.add((start - thresholds.pad_onset).max(0.0), end, thresholds));
                }
                ended.extend(track.settle(thresholds));
                ended.extend(track.held.take());
            } else {
                let next = (track.open.unwrap_or(now) - thresholds.pad_onset).max(0.0);
                ended.extend(track.release(next, thresholds).into_iter().flatten());
                let pending = [track.held, track.last].into_iter().flatten().map(|(start, _)| start);
                first = pending.fold(first.min(next), f64::min);
            }
            waiting.extend(ended.into_iter().map(|ended| turn(ended, speaker)));
        }
        sort(waiting);
        let count = waiting.partition_point(|turn| turn.start_s < first);
        waiting.drain(..count).map(Turn::rounded).collect()
    }

    /// The turns that may still change, as they are so far, by their starts.
    pub(super) fn open(&self) -> Vec<Turn> {
        let mut open = self.waiting.clone();
        for (speaker, track) in self.speakers.iter().enumerate() {
            let start = track.open.map(|start| (start - self.thresholds.pad_onset).max(0.0));
            let spoken =
                [track.held, track.last, start.map(|start| (start, self.now_s()))].into_iter().flatten();
            open.extend(spoken.filter(|(start, end)| end > start).map(|spoken| turn(spoken, speaker)));
        }
        sort(&mut open);
        open.into_iter().map(Turn::rounded).collect()
    }

    /// How far the rows so far reach, in seconds.
    pub(super) fn now_s(&self) -> f64 {
        self.values as f64 * VALUE_S
    }
}

fn sort(turns: &mut [Turn]) {
    turns.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.speaker.cmp(&b.speaker)));
}

fn turn((start_s, end_s): (f64, f64), speaker: usize) -> Turn {
    Turn { start_s, end_s, speaker }
}

impl Turn {
    /// With times in whole hundredths of a second.
    fn rounded(self) -> Self {
        // The nearest decimal, as the reference does it: a product with 100 would round twice.
        let round = |seconds: f64| format!("{seconds:.2}").parse().unwrap_or(seconds);
        Self { start_s: round(self.start_s), end_s: round(self.end_s), ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn turns_are_those_of_all_rows_at_once_and_in_order(
            rows in prop::collection::vec(prop::array::uniform4(prop::sample::select(vec![0.0f32, 0.3, 0.7, 1.0])), 0..120),
            cuts in prop::collection::vec(0usize..40, 1..20),
            in_pieces: bool,
        ) {
            let thresholds = if in_pieces { Thresholds::IN_PIECES } else { Thresholds::WHOLE };
            let mut whole = Turns::new(thresholds);
            whole.push(&rows);
            let expected = whole.take(true);
            prop_assert!(expected.is_sorted_by_key(|turn| turn.start_s));
            prop_assert!(expected.iter().all(|turn| turn.end_s > turn.start_s));
            let (mut turns, mut rest, mut found) = (Turns::new(thresholds), &rows[..], Vec::new());
            for cut in cuts {
                let (piece, others) = rest.split_at(cut.min(rest.len()));
                turns.push(piece);
                found.extend(turns.take(false));
                rest = others;
            }
            turns.push(rest);
            found.extend(turns.take(true));
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_turn_is_told_as_soon_as_none_can_change_it() {
        let mut turns = Turns::new(Thresholds::IN_PIECES);
        turns.push(&[[1.0, 0.0, 0.0, 0.0]; 10]);
        assert_eq!(turns.take(false), []);
        assert_eq!(turns.open(), [Turn { start_s: 0.0, end_s: 0.8, speaker: 0 }]);
        turns.push(&[[0.0; SPEAKERS]; 4]);
        assert_eq!(turns.take(false), [Turn { start_s: 0.0, end_s: 0.8, speaker: 0 }]);
        assert_eq!((turns.open(), turns.take(true)), (vec![], vec![]));
    }
}
