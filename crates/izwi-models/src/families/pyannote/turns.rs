//! What windows tell of their own speakers as turns of the speakers of the recording. Knows no tensor.
//!
//! Source: `speaker_count`, `reconstruct` and `to_annotation` of the pipeline of the Python package `pyannote.audio` 4.0.

use super::segmentation::{FRAMES, SPEAKERS};

/// Seconds of a frame, from one frame to the next, and of a window.
const FRAME_S: f64 = 0.061_937_5;
const STEP_S: f64 = 0.016_875;
const WINDOW_S: f64 = 10.0;
/// Seconds from one window to the next.
pub(super) const WINDOW_STEP_S: f64 = 1.0;

/// A stretch in which one speaker speaks, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    pub(super) start_s: f64,
    pub(super) end_s: f64,
    /// Counted from 0, in order of their first words.
    pub(super) speaker: usize,
}

/// The first frame of a window.
fn first_frame(window: usize) -> usize {
    (window as f64 * WINDOW_STEP_S / STEP_S).round_ties_even() as usize
}

/// Frames of the recording that `windows` windows cover.
fn frames(windows: usize) -> usize {
    let end = WINDOW_S + windows.saturating_sub(1) as f64 * WINDOW_STEP_S;
    ((end / STEP_S).round_ties_even() as usize + 1).max(first_frame(windows.saturating_sub(1)) + FRAMES)
}

/// Who speaks in each frame of the recording, by falling support: `windows` has the speakers of each frame of each window, a bit
/// for each, and `names` the speaker of the recording for each of them.
pub(super) fn speaking(windows: &[Vec<u8>], names: &[[Option<usize>; SPEAKERS]]) -> Vec<Vec<usize>> {
    let count = frames(windows.len());
    let (mut speakers, mut covered) = (vec![0u32; count], vec![0u32; count]);
    let mut votes: Vec<Vec<(usize, u32)>> = vec![Vec::new(); count];
    for (window, (masks, names)) in windows.iter().zip(names).enumerate() {
        for (frame, &mask) in (first_frame(window)..count).zip(masks) {
            speakers[frame] += mask.count_ones();
            covered[frame] += 1;
            for place in (0..SPEAKERS).filter(|place| mask >> place & 1 == 1) {
                let Some(speaker) = names[place] else { continue };
                match votes[frame].iter_mut().find(|(known, _)| *known == speaker) {
                    Some((_, votes)) => *votes += 1,
                    None => votes[frame].push((speaker, 1)),
                }
            }
        }
    }
    let frames = speakers.into_iter().zip(covered).zip(votes).map(|((speakers, covered), mut votes)| {
        let at_once = (f64::from(speakers) / f64::from(covered.max(1))).round_ties_even() as usize;
        votes.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
        votes.truncate(at_once);
        votes.into_iter().map(|(speaker, _)| speaker).collect()
    });
    frames.collect()
}

/// The turns of a recording of `length_s` seconds, by their starts, and which speaker of `speaking` each of theirs is. Pauses of a
/// speaker up to `min_pause_s` are speech.
pub(super) fn turns(speaking: &[Vec<usize>], length_s: f64, min_pause_s: f64) -> (Vec<Turn>, Vec<usize>) {
    let middle = |frame: usize| (frame as f64 * STEP_S + FRAME_S / 2.0).min(length_s);
    let count = speaking.iter().flatten().max().map_or(0, |last| last + 1);
    let mut open: Vec<Option<usize>> = vec![None; count];
    let mut found: Vec<Turn> = Vec::new();
    for frame in 0..=speaking.len() {
        let own = speaking.get(frame).map_or(&[][..], |speakers| &speakers[..]);
        for (speaker, open) in open.iter_mut().enumerate() {
            match (*open, own.contains(&speaker)) {
                (None, true) => *open = Some(frame),
                (Some(first), false) => {
                    *open = None;
                    let (start_s, end_s) = (middle(first), middle(frame.min(speaking.len() - 1)));
                    let last = found.iter_mut().rev().find(|turn| turn.speaker == speaker);
                    match last.filter(|last| min_pause_s > 0.0 && start_s - last.end_s <= min_pause_s) {
                        Some(last) => last.end_s = end_s,
                        None => found.push(Turn { start_s, end_s, speaker }),
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|turn| turn.end_s > turn.start_s);
    found.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.speaker.cmp(&b.speaker)));
    let mut order: Vec<usize> = Vec::new();
    for turn in &mut found {
        let known = order.iter().position(|&speaker| speaker == turn.speaker);
        let name = known.unwrap_or(order.len());
        if known.is_none() {
            order.push(turn.speaker);
        }
        turn.speaker = name;
    }
    (found, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speakers_have_the_order_in_which_they_begin_and_frames_the_speakers_of_most_windows() {
        let mut masks = vec![0u8; FRAMES];
        masks[100..200].fill(0b010);
        masks[150..300].fill(0b011);
        let mut shifted = vec![0u8; FRAMES];
        shifted[..300 - first_frame(1)].copy_from_slice(&masks[first_frame(1)..300]);
        shifted.iter_mut().for_each(|mask| *mask = (*mask & 1) << 2 | (*mask & 2) >> 1);
        let names = [[Some(4), Some(1), None], [Some(1), None, Some(4)]];
        let speaking = speaking(&[masks, shifted], &names);
        assert_eq!(
            (&speaking[99][..], &speaking[120][..], &speaking[250][..]),
            (&[][..], &[1][..], &[1, 4][..])
        );
        let (found, order) = turns(&speaking, 20.0, 0.0);
        assert_eq!(order, [1, 4]);
        let at = |frame: usize| frame as f64 * STEP_S + FRAME_S / 2.0;
        let turn = |first, last, speaker| Turn { start_s: at(first), end_s: at(last), speaker };
        assert_eq!(found, [turn(100, 300, 0), turn(150, 300, 1)]);
        let (cut, _) = turns(&speaking, 3.0, 0.0);
        assert!(cut.iter().all(|turn| turn.end_s <= 3.0) && cut.len() == 2);
    }

    #[test]
    fn short_pauses_are_speech_where_the_settings_have_it_so() {
        let mut speaking = vec![vec![0]; 100];
        speaking[40..50].fill(Vec::new());
        assert_eq!(turns(&speaking, 20.0, 0.0).0.len(), 2);
        assert_eq!(turns(&speaking, 20.0, 0.2).0.len(), 1);
        assert_eq!(turns(&[], 0.0, 0.0), (Vec::new(), Vec::new()));
    }
}
