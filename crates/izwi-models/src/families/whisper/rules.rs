//! Constraints on logits: suppressed tokens and the grammar of timestamps. Knows no tensor.
//!
//! The rules are openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/decoding.py> (`SuppressBlank`,
//! `SuppressTokens`, `ApplyTimestampRules`).

use super::config::Settings;
use super::sampling::spread;
use super::tokens::Vocabulary;
use izwi_nn::sampling::argmax;

const NEVER: f32 = f32::NEG_INFINITY;
/// Upper limit of the first timestamp in steps of 20 ms, 1.0 s: openai-whisper's `max_initial_timestamp`.
const MAX_FIRST_TIMESTAMP: u32 = 50;

/// The rules of one checkpoint.
#[derive(Debug)]
pub(super) struct Rules {
    suppress: Vec<u32>,
    begin_suppress: Vec<u32>,
    end: u32,
    first_timestamp: u32,
}

impl Rules {
    /// Rules of a checkpoint's lists. Special tokens that only occur in prompts are always suppressed.
    pub(super) fn new(settings: &Settings, vocabulary: &Vocabulary) -> Self {
        let known = |id: &u32| (*id as usize) < vocabulary.size;
        let prompt_only = [
            vocabulary.start,
            vocabulary.transcribe,
            vocabulary.translate,
            vocabulary.previous,
            vocabulary.no_speech,
            vocabulary.no_timestamps,
        ];
        let mut begin_suppress = settings.begin_suppress.clone();
        if begin_suppress.is_empty() {
            begin_suppress = vocabulary.encode(" ");
            begin_suppress.push(vocabulary.end);
        }
        begin_suppress.retain(known);
        Self {
            suppress: settings.suppress.iter().copied().filter(known).chain(prompt_only).collect(),
            begin_suppress,
            end: vocabulary.end,
            first_timestamp: vocabulary.first_timestamp,
        }
    }

    /// Suppresses the logits of tokens that must not follow `generated`, the tokens of this window so far.
    pub(super) fn apply(&self, logits: &mut [f32], generated: &[u32]) {
        let timestamps = self.first_timestamp as usize;
        for &id in &self.suppress {
            logits[id as usize] = NEVER;
        }
        self.pair(logits, generated);
        if generated.is_empty() {
            for &id in &self.begin_suppress {
                logits[id as usize] = NEVER;
            }
            logits[..timestamps].fill(NEVER);
            if let Some(late) = logits.get_mut(timestamps + MAX_FIRST_TIMESTAMP as usize + 1..) {
                late.fill(NEVER);
            }
        }
        let (text, times) = logits.split_at_mut(timestamps);
        let (best_text, best_time) = (text[argmax(text)], times[argmax(times)]);
        if best_time > NEVER && best_time + spread(times, best_time) > best_text {
            text.fill(NEVER);
        }
    }

    /// Timestamps come in pairs, except before the end, and do not decrease.
    fn pair(&self, logits: &mut [f32], generated: &[u32]) {
        let timestamps = self.first_timestamp as usize;
        let is_time = |id: &u32| *id >= self.first_timestamp;
        let last = generated.last().is_some_and(is_time);
        let before = generated.len() < 2 || is_time(&generated[generated.len() - 2]);
        if last && before {
            logits[timestamps..].fill(NEVER);
        } else if last {
            logits[..self.end as usize].fill(NEVER);
        }
        if let Some(&latest) = generated.iter().rev().find(|id| is_time(id)) {
            // A segment must not be empty; the next may start where the last one ended.
            let earliest = if last && !before { latest } else { latest + 1 };
            let earliest = (earliest as usize).min(logits.len());
            logits[timestamps..earliest].fill(NEVER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids 0..6 are text, 6 ends, 7 is another special token, timestamps begin at 8.
    fn rules() -> Rules {
        Rules { suppress: vec![2, 7], begin_suppress: vec![0, 6], end: 6, first_timestamp: 8 }
    }

    /// Ids allowed of 80 after `generated`, with logits `text` and `time`.
    fn left(generated: &[u32], text: f32, time: f32) -> Vec<u32> {
        let mut logits = vec![text; 8];
        logits.resize(80, time);
        rules().apply(&mut logits, generated);
        (0..80).filter(|&id| logits[id as usize] > NEVER).collect()
    }

    #[test]
    fn the_first_token_is_a_timestamp_within_a_second() {
        assert_eq!(left(&[], 9.0, 0.0), (8..=58).collect::<Vec<_>>());
    }

    #[test]
    fn text_follows_an_opening_timestamp() {
        assert_eq!(left(&[10], 9.0, 0.0), [0, 1, 3, 4, 5, 6]);
        assert_eq!(left(&[10, 1, 12, 12], 9.0, 0.0), [0, 1, 3, 4, 5, 6]);
    }

    #[test]
    fn a_closing_timestamp_is_followed_by_an_opening_one_or_the_end() {
        let mut expected = vec![6];
        expected.extend(12..80);
        assert_eq!(left(&[10, 1, 12], 9.0, 0.0), expected);
        assert_eq!(left(&[10, 1, 12], 0.0, 9.0), (12..80).collect::<Vec<_>>());
    }

    #[test]
    fn segments_are_not_empty_and_timestamps_do_not_decrease() {
        let mut expected = vec![0, 1, 3, 4, 5, 6];
        expected.extend(11..80);
        assert_eq!(left(&[10, 1], 9.0, 0.0), expected);
        assert_eq!(left(&[10, 1, 1], 9.0, 0.0), expected);
        assert_eq!(left(&[10, 1, 79, 79, 1], 9.0, 0.0), [0, 1, 3, 4, 5, 6]);
    }

    #[test]
    fn timestamps_more_likely_in_sum_than_any_text_are_forced() {
        // 69 timestamps at -4 weigh e^0.23 together.
        assert_eq!(left(&[10, 1], 0.0, -4.0), (11..80).collect::<Vec<_>>());
        assert_eq!(left(&[10, 1], 0.3, -4.0).len(), 6 + 69);
    }
}
