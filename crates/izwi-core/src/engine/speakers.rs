//! Who says what: the words of a transcript joined with the turns of speakers.
//!
//! A word has the speaker whose turns cover most of it; where speech overlaps, it still has one. A word that no turn covers has
//! the speaker of the nearest turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use izwi_types::{Segment, Word};

/// The name of a speaker: a letter, in the order in which speakers begin.
pub fn speaker_name(speaker: u32) -> String {
    let letter = char::from(b'A' + (speaker % 26) as u8);
    match speaker / 26 {
        0 => letter.to_string(),
        more => speaker_name(more - 1) + &letter.to_string(),
    }
}

/// What the speaker of a segment is called: by name, or else by a letter; `None` where nobody is known to speak.
pub fn label(segment: &Segment) -> Option<String> {
    let letter = || segment.speaker.map(speaker_name);
    segment.speaker_name.as_deref().map(str::to_owned).or_else(letter)
}

/// Joins a transcript with turns while both are made. A segment leaves when no turn that follows can change it.
#[derive(Debug, Default)]
pub struct SpeakerJoin {
    turns: Turns,
    waiting: VecDeque<Segment>,
}

impl SpeakerJoin {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The segments of a whole transcript with the speakers of `turns`.
    pub fn whole(transcript: Vec<Segment>, turns: Vec<Segment>) -> Vec<Segment> {
        let mut join = Self::new();
        join.add_turns(turns);
        join.add(transcript);
        join.take(true)
    }

    /// Adds turns, in order of their starts.
    pub fn add_turns(&mut self, turns: impl IntoIterator<Item = Segment>) {
        turns.into_iter().for_each(|turn| self.turns.add(&turn));
    }

    /// Adds segments of the transcript, in order.
    pub fn add(&mut self, segments: impl IntoIterator<Item = Segment>) {
        self.waiting.extend(segments);
    }

    /// The segments whose speakers are known, or all if `turns_ended`: each has one speaker, and is cut where another one speaks.
    pub fn take(&mut self, turns_ended: bool) -> Vec<Segment> {
        let mut found = Vec::new();
        while let Some(segment) = self.waiting.pop_front_if(|segment| {
            let words = segment.words.iter().map(|word| word.end_s);
            turns_ended || words.fold(segment.end_s, f64::max) < self.turns.reached()
        }) {
            self.turns.cut(segment, &mut found);
        }
        found
    }
}

/// Turns by their starts.
#[derive(Debug, Default)]
struct Turns {
    turns: Vec<Turn>,
    names: BTreeMap<u32, Arc<str>>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    start_s: f64,
    end_s: f64,
    speaker: u32,
    /// The latest end of this and all before it, and whose it is.
    reach: (f64, u32),
}

impl Turns {
    fn add(&mut self, turn: &Segment) {
        let Some(speaker) = turn.speaker else { return };
        let Segment { start_s, end_s, .. } = *turn;
        if let Some(name) = &turn.speaker_name {
            self.names.insert(speaker, Arc::clone(name));
        }
        let before = self.turns.last().map(|last| last.reach).filter(|(end, _)| *end > end_s);
        self.turns.push(Turn { start_s, end_s, speaker, reach: before.unwrap_or((end_s, speaker)) });
    }

    /// No turn that follows starts earlier.
    fn reached(&self) -> f64 {
        self.turns.last().map_or(f64::NEG_INFINITY, |turn| turn.start_s)
    }

    /// Who speaks from `start_s` to `end_s`; `None` without any turn.
    fn speaker(&self, start_s: f64, end_s: f64) -> Option<u32> {
        let next = self.turns.partition_point(|turn| turn.start_s < end_s);
        let (before, after) = self.turns.split_at(next);
        let mut shares: Vec<(u32, f64)> = Vec::new();
        for turn in before.iter().rev().take_while(|turn| turn.reach.0 > start_s) {
            let share = turn.end_s.min(end_s) - turn.start_s.max(start_s);
            if share <= 0.0 {
                continue;
            }
            match shares.iter_mut().find(|(speaker, _)| *speaker == turn.speaker) {
                Some((_, sum)) => *sum += share,
                None => shares.push((turn.speaker, share)),
            }
        }
        let most = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        most.map(|(speaker, _)| speaker).or_else(|| {
            let before = before.last().map(|turn| (start_s - turn.reach.0, turn.reach.1));
            let after = after.first().map(|turn| (turn.start_s - end_s, turn.speaker));
            let nearest = before.into_iter().chain(after).min_by(|a, b| a.0.total_cmp(&b.0));
            nearest.map(|(_, speaker)| speaker)
        })
    }

    fn name(&self, speaker: Option<u32>) -> Option<Arc<str>> {
        self.names.get(&speaker?).cloned()
    }

    /// Cuts a segment into stretches of one speaker each.
    fn cut(&self, mut segment: Segment, found: &mut Vec<Segment>) {
        let said = |word: &Word| self.speaker(word.start_s, word.end_s);
        let stretches: Vec<(Option<u32>, Vec<Word>)> = segment
            .words
            .iter()
            .map(|word| (said(word), word.clone()))
            .collect::<Vec<_>>()
            .chunk_by(|(one, _), (other, _)| one == other)
            .map(|words| (words[0].0, words.iter().map(|(_, word)| word.clone()).collect()))
            .collect();
        if stretches.len() < 2 {
            let whole = || self.speaker(segment.start_s, segment.end_s);
            segment.speaker = stretches.first().map_or_else(whole, |(speaker, _)| *speaker);
            segment.speaker_name = self.name(segment.speaker);
            found.push(segment);
            return;
        }
        let stretch = |(speaker, words): (Option<u32>, Vec<Word>)| Segment {
            start_s: words.first().map_or(segment.start_s, |word| word.start_s),
            end_s: words.last().map_or(segment.end_s, |word| word.end_s),
            text: words.iter().map(|word| word.text.as_str()).collect(),
            words,
            speaker,
            speaker_name: self.name(speaker),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            ..segment.clone()
        };
        found.extend(stretches.into_iter().map(stretch));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn turn(start_s: f64, end_s: f64, speaker: u32) -> Segment {
        Segment { start_s, end_s, speaker: Some(speaker), ..Segment::default() }
    }

    fn said(words: &[(&str, f64, f64)]) -> Segment {
        let word = |&(text, start_s, end_s): &(&str, f64, f64)| Word {
            text: text.to_owned(),
            start_s,
            end_s,
            probability: 1.0,
        };
        let words: Vec<Word> = words.iter().map(word).collect();
        Segment {
            start_s: words[0].start_s,
            end_s: words[words.len() - 1].end_s,
            text: words.iter().map(|word| word.text.as_str()).collect(),
            words,
            ..Segment::default()
        }
    }

    fn told(segments: &[Segment]) -> Vec<(Option<u32>, &str)> {
        segments.iter().map(|segment| (segment.speaker, segment.text.as_str())).collect()
    }

    #[test]
    fn segments_are_cut_where_the_speaker_changes() {
        let turns = vec![turn(0.0, 1.1, 0), turn(0.9, 2.0, 1), turn(5.0, 6.0, 0)];
        let transcript = vec![
            said(&[(" Are", 0.0, 0.4), (" you?", 0.5, 1.0), (" Yes.", 1.0, 1.4), (" So.", 2.1, 2.2)]),
            said(&[(" Well.", 4.9, 5.0)]),
            Segment { start_s: 0.2, end_s: 0.4, text: " No words.".to_owned(), ..Segment::default() },
        ];
        let found = SpeakerJoin::whole(transcript.clone(), turns);
        let expected =
            [(Some(0), " Are you?"), (Some(1), " Yes. So."), (Some(0), " Well."), (Some(0), " No words.")];
        assert_eq!(told(&found), expected);
        assert_eq!((found[1].start_s, found[1].end_s), (1.0, 2.2));
        let mut named = turn(0.0, 2.2, 3);
        named.speaker_name = Some("Ann".into());
        let by_name = SpeakerJoin::whole(transcript.clone(), vec![named, turn(4.9, 6.0, 1)]);
        let labels: Vec<_> = by_name.iter().map(label).collect();
        assert_eq!(labels, ["Ann", "B", "Ann"].map(|name| Some(name.to_owned())));
        let unknown = SpeakerJoin::whole(transcript, Vec::new());
        assert_eq!(told(&unknown)[0], (None, " Are you? Yes. So."));
    }

    #[test]
    fn speakers_are_named_by_letters() {
        let names = [0, 3, 25, 26, 27, 701, 702].map(speaker_name);
        assert_eq!(names, ["A", "D", "Z", "AA", "AB", "ZZ", "AAA"]);
        assert!(!speaker_name(u32::MAX).is_empty());
    }

    proptest! {
        #[test]
        fn no_word_is_lost_or_has_two_speakers_and_pieces_are_the_whole(
            turns in prop::collection::vec((0u32..4, 0u8..60, 1u8..30), 0..20),
            segments in prop::collection::vec(prop::collection::vec((0u8..6, 0u8..10), 1..6), 0..8),
            order in prop::collection::vec(any::<bool>(), 0..30),
        ) {
            let mut turns: Vec<Segment> = turns
                .into_iter()
                .map(|(speaker, start, length)| {
                    let start_s = f64::from(start) / 4.0;
                    turn(start_s, start_s + f64::from(length) / 4.0, speaker)
                })
                .collect();
            turns.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
            let (mut at, mut number) = (0.0, 0);
            let transcript: Vec<Segment> = segments
                .iter()
                .map(|words| {
                    let words: Vec<(String, f64, f64)> = words
                        .iter()
                        .map(|&(gap, length)| {
                            let start = at + f64::from(gap) / 4.0;
                            at = start + f64::from(length) / 4.0;
                            number += 1;
                            (format!(" {number}"), start, at)
                        })
                        .collect();
                    said(&words.iter().map(|(text, start, end)| (text.as_str(), *start, *end)).collect::<Vec<_>>())
                })
                .collect();
            let whole = SpeakerJoin::whole(transcript.clone(), turns.clone());
            let text = |segments: &[Segment]| segments.iter().map(|segment| segment.text.clone()).collect::<String>();
            prop_assert_eq!(text(&whole), text(&transcript));
            prop_assert!(whole.iter().all(|segment| segment.speaker.is_some() != turns.is_empty()));

            let (mut join, mut found) = (SpeakerJoin::new(), Vec::new());
            let (mut turns, mut transcript) = (turns.into_iter(), transcript.into_iter());
            for is_turn in order {
                if is_turn { join.add_turns(turns.next()) } else { join.add(transcript.next()) }
                found.extend(join.take(false));
            }
            join.add(transcript);
            join.add_turns(turns);
            found.extend(join.take(true));
            prop_assert_eq!(found, whole);
        }
    }
}
