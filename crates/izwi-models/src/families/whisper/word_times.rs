//! Assigns timed words to segments.
//!
//! Segments take the times of their first and last word if those are plausible. Source:
//! <https://github.com/openai/whisper/blob/main/whisper/timing.py> (`add_word_timestamps`).

use super::alignment::{TimedWord, merge_punctuation};
use izwi_types::{Segment, Word};

/// Largest difference to a word's time at which the word's time replaces the segment's, in seconds.
const TOLERANCE_S: f64 = 0.5;
/// A first word that ends this many median durations after the last speech follows a pause.
const PAUSE: f64 = 4.0;

/// Assigns `words`, timed from the start of a window, to its `segments` of `text_tokens` text tokens each. `offset_s` is
/// the start of the window, `usual_s` the median word duration, `last_speech_s` the end of the previous word.
pub(super) fn place(
    segments: &mut [Segment],
    text_tokens: &[usize],
    mut words: Vec<TimedWord>,
    (offset_s, usual_s, mut last_speech_s): (f64, f64, f64),
) {
    merge_punctuation(&mut words);
    let mut words = words.into_iter();
    for (segment, &count) in segments.iter_mut().zip(text_tokens) {
        let mut saved = 0;
        let mut own: Vec<Word> = Vec::new();
        while saved < count {
            let Some(word) = words.next() else { break };
            saved += word.tokens;
            if !word.text.is_empty() {
                own.push(Word {
                    text: word.text,
                    start_s: hundredths(offset_s + word.start_s),
                    end_s: hundredths(offset_s + word.end_s),
                    probability: word.probability,
                });
            }
        }
        shorten_after_pause(&mut own, usual_s, last_speech_s);
        agree(segment, &mut own, usual_s);
        if !own.is_empty() {
            last_speech_s = segment.end_s;
        }
        segment.words = own;
    }
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// Limits the first two words after a pause to twice the median duration.
fn shorten_after_pause(words: &mut [Word], usual_s: f64, last_speech_s: f64) {
    let longest = 2.0 * usual_s;
    let [first, rest @ ..] = words else { return };
    let second_end = rest.first().map(|second| second.end_s);
    let long = first.end_s - first.start_s > longest
        || second_end.is_some_and(|end| end - first.start_s > 2.0 * longest);
    if first.end_s - last_speech_s <= PAUSE * usual_s || !long {
        return;
    }
    if let Some(second) = rest.first_mut().filter(|second| second.end_s - second.start_s > longest) {
        let boundary = (second.end_s / 2.0).max(second.end_s - longest);
        first.end_s = boundary;
        second.start_s = boundary;
    }
    first.start_s = (first.end_s - longest).max(0.0);
}

/// Reconciles the times of a segment with those of its first and last word.
fn agree(segment: &mut Segment, words: &mut [Word], usual_s: f64) {
    if let Some(first) = words.first_mut() {
        if segment.start_s < first.end_s && segment.start_s - TOLERANCE_S > first.start_s {
            first.start_s = (first.end_s - usual_s).min(segment.start_s).max(0.0);
        } else {
            segment.start_s = first.start_s;
        }
    }
    if let Some(last) = words.last_mut() {
        if segment.end_s > last.start_s && segment.end_s + TOLERANCE_S < last.end_s {
            last.end_s = (last.start_s + usual_s).max(segment.end_s);
        } else {
            segment.end_s = last.end_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start_s: f64, end_s: f64) -> Segment {
        Segment { start_s, end_s, ..Segment::default() }
    }

    fn word(text: &str, tokens: usize, start_s: f64, end_s: f64) -> TimedWord {
        TimedWord { text: text.to_owned(), tokens, start_s, end_s, probability: 1.0 }
    }

    #[test]
    fn words_go_to_the_segment_that_holds_their_tokens() {
        let mut segments = [segment(10.0, 11.0), segment(11.0, 12.0)];
        let words = vec![
            word(" one", 2, 0.0, 0.4),
            word(" two", 1, 0.4, 0.8),
            word(".", 1, 0.8, 0.9),
            word(" three", 1, 1.1, 1.6),
        ];
        place(&mut segments, &[4, 1], words, (10.0, 0.4, 9.9));
        let texts = |segment: &Segment| segment.words.iter().map(|w| w.text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&segments[0]), [" one", " two."]);
        assert_eq!(texts(&segments[1]), [" three"]);
        assert_eq!((segments[0].start_s, segments[0].end_s), (10.0, 10.8));
        assert_eq!((segments[1].start_s, segments[1].end_s), (11.1, 11.6));
    }

    #[test]
    fn a_first_word_after_a_pause_is_shortened() {
        let mut segments = [segment(5.0, 6.0)];
        place(&mut segments, &[1], vec![word(" late", 1, 0.0, 5.6)], (0.0, 0.3, 0.0));
        assert!((segments[0].words[0].start_s - 5.0).abs() < 1e-9);
        assert_eq!(segments[0].words[0].end_s, 5.6);
    }
}
