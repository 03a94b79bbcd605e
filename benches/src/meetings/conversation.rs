//! Who says what when: speakers in turns, some of whom begin before the one before has ended.

use std::rc::Rc;

use anyhow::Result;
use izwi_tests::Dice;

use super::rttm::Turn;
use super::voices::{Cast, Utterance};

/// Smallest and largest share of overlapped speech that a meeting aims at, in percent.
const OVERLAP: (usize, usize) = (5, 20);
/// Shortest and longest pause between two speakers and overlap of two, in milliseconds.
const PAUSE_MS: (usize, usize) = (100, 900);
const OVERLAP_MS: (usize, usize) = (300, 2_500);

/// A meeting.
pub(crate) struct Meeting {
    /// What is said: its start in seconds, and the number of its speaker.
    pub(crate) said: Vec<(f64, usize, Rc<Utterance>)>,
    /// The truth, by starts.
    pub(crate) turns: Vec<Turn>,
}

impl Meeting {
    /// The share of speech in which more than one speaks.
    pub(crate) fn overlap(&self) -> f64 {
        overlap(&self.turns)
    }
}

/// A number from one to the other.
pub(crate) fn between((least, most): (usize, usize), dice: &mut Dice) -> usize {
    least + dice.roll(most - least + 1)
}

fn overlap(turns: &[Turn]) -> f64 {
    let mut edges: Vec<(f64, i32)> =
        turns.iter().flat_map(|turn| [(turn.start_s, 1), (turn.end_s, -1)]).collect();
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut speech, mut both, mut at_once, mut before) = (0.0, 0.0, 0, 0.0);
    for (at, change) in edges {
        let length = at - before;
        speech += if at_once > 0 { length } else { 0.0 };
        both += if at_once > 1 { length } else { 0.0 };
        at_once += change;
        before = at;
    }
    if speech > 0.0 { both / speech } else { 0.0 }
}

/// A meeting of about `seconds` in which each speaker speaks.
pub(crate) async fn generate(
    cast: &mut Cast,
    speakers: usize,
    seconds: f64,
    dice: &mut Dice,
) -> Result<Meeting> {
    let people = cast.draw(speakers, dice)?;
    let target = between(OVERLAP, dice) as f64 / 100.0;
    let mut meeting = Meeting { said: Vec::new(), turns: Vec::new() };
    // Where the last one ends, and where each has ended: nobody overlaps with himself.
    let (mut end, mut last) = (0.5, usize::MAX);
    let mut ends = vec![0.0; speakers];
    let mut order: Vec<usize> = (0..speakers).collect();
    while end < seconds || !order.is_empty() {
        // At first each once, then anybody but the last one.
        let speaker = match order.is_empty() {
            false => order.swap_remove(dice.roll(order.len())),
            true => (last.wrapping_add(1) + dice.roll(speakers - 1)) % speakers,
        };
        let said = cast.say(&people[speaker], dice).await?;
        let interrupts = last != usize::MAX && overlap(&meeting.turns) < target;
        let start: f64 = match interrupts {
            true => end - between(OVERLAP_MS, dice) as f64 / 1e3,
            false => end + between(PAUSE_MS, dice) as f64 / 1e3,
        };
        let start = start.max(ends[speaker]).max(0.0);
        let name = people[speaker].name();
        for (from, to) in &said.speech {
            meeting.turns.push(Turn { start_s: start + from, end_s: start + to, speaker: name.to_owned() });
        }
        let own_end = start + said.samples.len() as f64 / f64::from(izwi_benches::clips::RATE_HZ);
        ends[speaker] = own_end;
        end = own_end.max(end);
        last = speaker;
        meeting.said.push((start, speaker, said));
    }
    meeting.turns.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
    Ok(meeting)
}
