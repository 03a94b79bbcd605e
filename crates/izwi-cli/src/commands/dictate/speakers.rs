//! Turns of a dictation that wait until it is known who says each part of them.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;

/// What one speaker says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Spoken {
    speaker: String,
    text: String,
}

/// Turns in order.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those that have ended, with their texts.
    ended: VecDeque<(u64, String)>,
    told: HashMap<u64, Vec<Spoken>>,
    /// The first turn that is not printed.
    next: u64,
}

impl Turns {
    /// Takes the end of a turn.
    pub(super) fn end(&mut self, turn: u64, text: &str) {
        if !text.is_empty() {
            self.ended.push_back((turn, text.to_owned()));
        }
    }

    /// Takes who says what of a turn, in place of what was told of it before. Turns that were printed stay as they are.
    pub(super) fn tell(&mut self, turn: u64, spoken: Vec<Spoken>) {
        if turn >= self.next {
            self.told.insert(turn, spoken);
        }
    }

    /// The lines of the first turns whose speakers are known to their ends; of all with `all`, and then those of which nobody is known
    /// have their text alone.
    pub(super) fn take(&mut self, all: bool) -> String {
        let mut lines = String::new();
        while let Some((turn, text)) = self.ended.front() {
            let spoken = self.told.get(turn).filter(|spoken| all || is_whole(spoken, text));
            match spoken {
                Some(spoken) => spoken
                    .iter()
                    .for_each(|Spoken { speaker, text }| lines.push_str(&format!("{speaker}: {text}\n"))),
                None if all => lines.push_str(&format!("{text}\n")),
                None => break,
            }
            self.next = turn + 1;
            self.told.retain(|turn, _| *turn >= self.next);
            self.ended.pop_front();
        }
        lines
    }
}

/// Whether all of a text is said by somebody.
fn is_whole(spoken: &[Spoken], text: &str) -> bool {
    let parts = spoken.iter().flat_map(|spoken| spoken.text.chars());
    parts.filter(|c| !c.is_whitespace()).eq(text.chars().filter(|c| !c.is_whitespace()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_printed_in_order_once_their_speakers_are_known() {
        let spoken =
            |speaker: &str, text: &str| Spoken { speaker: speaker.to_owned(), text: text.to_owned() };
        let mut turns = Turns::default();
        turns.tell(0, vec![spoken("A", "How are")]);
        turns.end(0, "How are you? Fine.");
        turns.end(1, "Good.");
        turns.tell(1, vec![spoken("A", "Good.")]);
        assert_eq!(turns.take(false), "", "the first waits for its end");
        turns.tell(0, vec![spoken("A", "How are you?"), spoken("B", "Fine.")]);
        assert_eq!(turns.take(false), "A: How are you?\nB: Fine.\nA: Good.\n");
        turns.tell(0, vec![spoken("C", "How are you? Fine.")]);
        assert!(turns.told.is_empty(), "it stays as it was printed");
        turns.end(2, "Bye.");
        turns.end(3, "");
        assert_eq!(turns.take(false), "");
        assert_eq!(turns.take(true), "Bye.\n", "nobody is known");
        assert_eq!(turns.take(true), "");
    }
}
