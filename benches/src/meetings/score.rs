//! The diarization error rate: speech that is missed, invented, or of another speaker, over all speech of all speakers.
//!
//! Source of the definition: the rich transcription evaluations of NIST, as the Python package `pyannote.metrics` computes it:
//! names are matched so that the error is least, overlapping speech counts for each speaker, and stretches around the starts and
//! ends of true turns may be left out. Counted in frames of 10 ms.

use std::ops::{Add, AddAssign};

use super::rttm::{Turn, speakers};

const FRAMES_PER_S: f64 = 100.0;

/// Frames of speech, and of errors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Errors {
    speech: u64,
    missed: u64,
    invented: u64,
    confused: u64,
}

impl Errors {
    /// In percent.
    pub(crate) fn rate(&self) -> f64 {
        self.share(self.missed + self.invented + self.confused)
    }

    fn share(&self, frames: u64) -> f64 {
        100.0 * frames as f64 / self.speech.max(1) as f64
    }

    pub(crate) fn parts(&self) -> String {
        let [missed, invented, confused] =
            [self.missed, self.invented, self.confused].map(|part| self.share(part));
        format!("missed {missed:.1} %, invented {invented:.1} %, of another speaker {confused:.1} %")
    }
}

impl Add for Errors {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            speech: self.speech + other.speech,
            missed: self.missed + other.missed,
            invented: self.invented + other.invented,
            confused: self.confused + other.confused,
        }
    }
}

impl AddAssign for Errors {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

fn frame(seconds: f64) -> usize {
    (seconds.max(0.0) * FRAMES_PER_S).round() as usize
}

/// Who speaks in each frame: `[speakers][frames]`.
fn spoken(turns: &[Turn], frames: usize) -> Vec<Vec<bool>> {
    let names = speakers(turns);
    let mut spoken = vec![vec![false; frames]; names.len()];
    for turn in turns {
        let Ok(at) = names.binary_search(&&*turn.speaker) else { continue };
        let end = frame(turn.end_s).min(frames);
        spoken[at][frame(turn.start_s).min(end)..end].fill(true);
    }
    spoken
}

/// The errors of `found`, without the frames up to `collar_s` around starts and ends of `truth`.
pub(crate) fn compare(truth: &[Turn], found: &[Turn], collar_s: f64) -> Errors {
    let frames = truth.iter().chain(found).map(|turn| frame(turn.end_s)).max().unwrap_or(0);
    let mut counts = vec![true; frames];
    for edge_s in truth.iter().flat_map(|turn| [turn.start_s, turn.end_s]).filter(|_| collar_s > 0.0) {
        let end = frame(edge_s + collar_s).min(frames);
        counts[frame(edge_s - collar_s).min(end)..end].fill(false);
    }
    let (truth, found) = (spoken(truth, frames), spoken(found, frames));
    let counted: Vec<usize> = (0..frames).filter(|&frame| counts[frame]).collect();
    let shared =
        |one: &[bool], other: &[bool]| counted.iter().filter(|&&at| one[at] && other[at]).count() as i64;
    let gains: Vec<Vec<i64>> =
        truth.iter().map(|one| found.iter().map(|other| shared(one, other)).collect()).collect();
    let pairs = matched(&gains);
    let mut errors = Errors::default();
    for &at in &counted {
        let at_once = |all: &[Vec<bool>]| all.iter().filter(|speaker| speaker[at]).count() as u64;
        let (own, heard) = (at_once(&truth), at_once(&found));
        let right = pairs.iter().filter(|&&(one, other)| truth[one][at] && found[other][at]).count() as u64;
        errors.speech += own;
        errors.missed += own.saturating_sub(heard);
        errors.invented += heard.saturating_sub(own);
        errors.confused += own.min(heard) - right;
    }
    errors
}

/// Pairs of rows and columns with the largest sum, each used once at most.
///
/// Source: the Hungarian algorithm with potentials, in the order of rows.
fn matched(gains: &[Vec<i64>]) -> Vec<(usize, usize)> {
    let columns = gains.first().map_or(0, Vec::len);
    let size = gains.len().max(columns);
    // Rows and columns from 1 on; what is missing gains nothing.
    let cost = |row: usize, column: usize| {
        -gains.get(row - 1).and_then(|row| row.get(column - 1)).copied().unwrap_or(0)
    };
    let (mut of_row, mut of_column, mut row_of) = (vec![0; size + 1], vec![0; size + 1], vec![0; size + 1]);
    for row in 1..=size {
        let (mut least, mut before, mut used) =
            (vec![i64::MAX; size + 1], vec![0; size + 1], vec![false; size + 1]);
        let mut column = 0;
        row_of[0] = row;
        while row_of[column] != 0 {
            used[column] = true;
            let (own, mut delta, mut next) = (row_of[column], i64::MAX, 0);
            for other in (1..=size).filter(|&other| !used[other]) {
                let reduced = cost(own, other) - of_row[own] - of_column[other];
                if reduced < least[other] {
                    (least[other], before[other]) = (reduced, column);
                }
                if least[other] < delta {
                    (delta, next) = (least[other], other);
                }
            }
            for other in 0..=size {
                if used[other] {
                    of_row[row_of[other]] += delta;
                    of_column[other] -= delta;
                } else {
                    least[other] = least[other].saturating_sub(delta);
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let pairs = (1..=size).map(|column| (row_of[column] - 1, column - 1));
    pairs.filter(|&(row, column)| row < gains.len() && column < columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(all: &[(f64, f64, &str)]) -> Vec<Turn> {
        let turn = |&(start_s, end_s, speaker): &(f64, f64, &str)| Turn {
            start_s,
            end_s,
            speaker: speaker.to_owned(),
        };
        all.iter().map(turn).collect()
    }

    #[test]
    fn each_kind_of_error_counts() {
        let truth = turns(&[(0.0, 4.0, "x"), (4.0, 8.0, "y"), (7.0, 10.0, "x")]);
        let rate = |found: &[(f64, f64, &str)], collar_s| compare(&truth, &turns(found), collar_s).rate();
        assert_eq!(rate(&[(0.0, 4.0, "1"), (4.0, 8.0, "2"), (7.0, 10.0, "1")], 0.0), 0.0);
        let late = [(0.0, 4.2, "2"), (4.2, 8.0, "1"), (7.0, 10.0, "2")];
        assert!((rate(&late, 0.0) - 100.0 * 0.2 / 11.0).abs() < 1e-9);
        assert_eq!(rate(&late, 0.25), 0.0);
        assert!(
            (rate(&[(0.0, 10.0, "1")], 0.0) - 100.0 * 4.0 / 11.0).abs() < 1e-9,
            "one second missed, three confused"
        );
        assert!((rate(&[], 0.0) - 100.0).abs() < 1e-9);
        let more = [(0.0, 4.0, "1"), (4.0, 8.0, "2"), (7.0, 10.0, "1"), (10.0, 11.1, "3")];
        assert!((rate(&more, 0.0) - 10.0).abs() < 1e-9);
        assert_eq!(compare(&[], &[], 0.0).rate(), 0.0);
    }

    #[test]
    fn pairs_have_the_largest_sum() {
        let best = matched(&[vec![5, 4], vec![4, 0], vec![0, 0]]);
        assert_eq!(best.iter().map(|&(row, column)| [[5, 4], [4, 0], [0, 0]][row][column]).sum::<i32>(), 8);
        assert_eq!(matched(&[]), []);
    }
}
