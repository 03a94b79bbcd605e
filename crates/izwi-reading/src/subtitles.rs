//! Subtitles of a reading: its sentences, where the model tells when words are said, else its units.

use izwi_core::engine::Segment;
use izwi_core::engine::request::sentence_ends;

use crate::sound::{EDGE_S, Word};

/// The cues of a unit that starts at `start_s`.
pub(crate) fn cues(
    text: &str,
    words: &[Word],
    start_s: f64,
    seconds: f64,
    sample_rate_hz: u32,
) -> Vec<Segment> {
    let cue = |text: &str, start_s, end_s| Segment {
        start_s,
        end_s,
        text: text.trim().to_owned(),
        ..Segment::default()
    };
    let whole = || vec![cue(text, start_s + EDGE_S, start_s + (seconds - EDGE_S).max(EDGE_S))];
    let mut cues = Vec::new();
    let mut from = 0;
    let at = |sample: u64| start_s + sample as f64 / f64::from(sample_rate_hz);
    for end in sentence_ends(text).into_iter().chain([text.len()]) {
        let Some(sentence) = text.get(from..end).filter(|sentence| !sentence.trim().is_empty()) else {
            continue;
        };
        let said = words.iter().filter(|word| (from..end).contains(&word.text_start));
        let times = said.clone().map(|word| word.start).min().zip(said.map(|word| word.end).max());
        // A sentence without words, such as a number that belongs to the one before, has no time of its own.
        let Some((first, last)) = times else { return whole() };
        cues.push(cue(sentence, at(first), at(last)));
        from = end;
    }
    cues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_the_times_of_their_words() {
        let text = "It rains. Nobody minds.";
        let word = |text_start, start, end| Word { text_start, start, end };
        let words = [
            word(0, 1_200, 4_800),
            word(3, 4_800, 12_000),
            word(10, 24_000, 30_000),
            word(17, 30_000, 48_000),
        ];
        let found: Vec<_> = cues(text, &words, 10.0, 2.1, 24_000)
            .into_iter()
            .map(|cue| (cue.text, cue.start_s, cue.end_s))
            .collect();
        assert_eq!(found, [("It rains.".to_owned(), 10.05, 10.5), ("Nobody minds.".to_owned(), 11.0, 12.0)]);
        let whole = cues(text, &[], 10.0, 2.1, 24_000);
        assert_eq!((whole.len(), whole[0].start_s), (1, 10.05));
    }
}
