//! LocalAgreement-2: a word is decided once two consecutive transcripts of a growing window have it at the same place, and all
//! before it. Source: Macháček, Dabre, Bojar (2023), <https://arxiv.org/abs/2307.14743>. Here the less certain a word is, the
//! more audio must follow it: what follows is what changes it.

use izwi_core::engine::Said;

/// A word of a live transcript, or marks alone, which belong to the word before.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveWord {
    /// With its punctuation and leading space.
    pub text: String,
    /// Milliseconds from the start of the stream.
    pub start_ms: u64,
    /// As `start_ms`.
    pub end_ms: u64,
    /// Mean probability of its tokens.
    pub probability: f32,
    /// The least probability of its tokens.
    pub(super) certainty: f32,
}

impl Said for LiveWord {
    fn text(&self) -> &str {
        &self.text
    }

    fn merged(words: &[Self], text: String) -> Self {
        let sum: f32 = words.iter().map(|word| word.probability).sum();
        Self {
            text,
            start_ms: words.first().map_or(0, |word| word.start_ms),
            end_ms: words.last().map_or(0, |word| word.end_ms),
            probability: sum / words.len().max(1) as f32,
            certainty: words.iter().map(|word| word.certainty).fold(1.0, f32::min),
        }
    }
}

/// A word of this certainty needs `SURE_MS` of audio after it, one of `UNSURE` needs `UNSURE_MS`, between them in proportion;
/// below `UNSURE` a word needs `DOUBTFUL_MS`.
const SURE: f32 = 0.9;
const SURE_MS: f32 = 200.0;
const UNSURE: f32 = 0.65;
const UNSURE_MS: f32 = 500.0;
const DOUBTFUL_MS: f32 = 1_500.0;
/// A thorough transcript decides the words that end this long before its end, without a second one.
const SETTLED_MS: u64 = 700;
/// A full stop so near to the end of the audio is not believed.
const FULL_STOP_MS: u64 = 600;
/// A last word below this probability is dropped at the end of a turn, unless it was there before.
const MIN_PROBABILITY: f32 = 0.5;

impl LiveWord {
    /// Milliseconds of audio after the word before it is decided.
    fn needed_ms(&self) -> u64 {
        let share = ((self.certainty - UNSURE) / (SURE - UNSURE)).min(1.0);
        let needed_ms =
            if self.is_doubtful() { DOUBTFUL_MS } else { UNSURE_MS + (SURE_MS - UNSURE_MS) * share };
        needed_ms.round() as u64
    }

    /// Whether a better transcript may well have another word.
    pub(super) fn is_doubtful(&self) -> bool {
        self.certainty < UNSURE
    }

    /// Letters and digits, in lower case: how words are compared.
    fn key(&self) -> String {
        self.text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    }

    /// Whether a sentence ends with it.
    pub(super) fn ends_sentence(&self) -> bool {
        self.text.trim_end_matches(['"', '\'', '”', ')']).ends_with(['.', '?', '!', '。', '？', '！'])
    }
}

/// The words after those that are decided, as last transcribed.
#[derive(Debug, Clone, Default)]
pub(super) struct Agreement {
    tail: Vec<LiveWord>,
}

impl Agreement {
    /// Takes the next transcript of what is not decided, and returns the words that are decided now. Of the last word of a
    /// transcript the punctuation must agree too, and a full stop so near to `end_ms` is not believed yet: audio that ends
    /// within a sentence often gets one. A transcript without words says nothing.
    pub(super) fn agree(&mut self, mut next: Vec<LiveWord>, end_ms: u64) -> Vec<LiveWord> {
        if next.is_empty() {
            return next;
        }
        let is_decided = |at: &usize| match (self.tail.get(*at), next.get(*at)) {
            (Some(last), Some(word)) => {
                let is_inside = at + 1 < self.tail.len().min(next.len());
                let is_early =
                    at + 1 == next.len() && word.ends_sentence() && word.end_ms + FULL_STOP_MS > end_ms;
                let is_covered = word.end_ms + word.needed_ms() <= end_ms;
                last.key() == word.key() && (is_inside || last.text == word.text) && !is_early && is_covered
            }
            _ => false,
        };
        let count = (0..next.len()).take_while(is_decided).count();
        let decided = next.drain(..count).collect();
        self.tail = next;
        decided
    }

    /// Takes the next transcript, and decides none of it. One without words says nothing.
    pub(super) fn hold(&mut self, next: Vec<LiveWord>) -> Vec<LiveWord> {
        if !next.is_empty() {
            self.tail = next;
        }
        Vec::new()
    }

    /// Takes a thorough transcript of audio up to `end_ms`, and returns the words that are decided now.
    pub(super) fn settle(&mut self, next: Vec<LiveWord>, end_ms: u64) -> Vec<LiveWord> {
        self.decide(next, end_ms.saturating_sub(SETTLED_MS))
    }

    /// Decides the words of the last transcript of a turn whose speech ended at `speech_end_ms`. Decoders like to add words
    /// in the silence after it: the last ones must have been said by then, and the improbable ones twice. Where the last
    /// transcript has no words, those of the one before count.
    pub(super) fn finish(&mut self, mut next: Vec<LiveWord>, speech_end_ms: u64) -> Vec<LiveWord> {
        if next.is_empty() {
            next = std::mem::take(&mut self.tail);
        }
        while let Some(last) = next.last() {
            let before = self.tail.get(next.len() - 1);
            let is_sure =
                last.probability >= MIN_PROBABILITY || before.is_some_and(|word| word.key() == last.key());
            if is_sure && last.start_ms.midpoint(last.end_ms) <= speech_end_ms {
                break;
            }
            next.pop();
        }
        self.decide(next, u64::MAX)
    }

    /// Decides all words of a last transcript that end by `until_ms`.
    pub(super) fn decide(&mut self, mut next: Vec<LiveWord>, until_ms: u64) -> Vec<LiveWord> {
        let count = next.iter().take_while(|word| word.end_ms <= until_ms).count();
        let decided = next.drain(..count).collect();
        self.tail = next;
        decided
    }

    /// The words that are not decided.
    pub(super) fn tail(&self) -> &[LiveWord] {
        &self.tail
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<LiveWord> {
        let word = |(n, text): (usize, &str)| LiveWord {
            text: format!(" {text}"),
            start_ms: 100 * n as u64,
            end_ms: 100 * n as u64 + 100,
            probability: if text.starts_with('~') { 0.4 } else { 0.9 },
            certainty: if text.starts_with('~') { 0.4 } else { 0.9 },
        };
        text.split_whitespace().enumerate().map(word).collect()
    }

    fn text(words: &[LiveWord]) -> String {
        words.iter().map(|word| word.text.as_str()).collect::<String>().trim().to_owned()
    }

    #[test]
    fn an_empty_last_transcript_loses_no_likely_word() {
        let finished = |said: &str, speech_end_ms| {
            let mut agreement = Agreement::default();
            agreement.agree(words(said), 300);
            agreement.agree(Vec::new(), 400);
            text(&agreement.finish(Vec::new(), speech_end_ms))
        };
        assert_eq!(finished("and so my", 300), "and so my");
        assert_eq!(finished("and so ~you", 300), "and so", "an unlikely word was not said twice");
        assert_eq!(finished("and so my", 200), "and so", "nor one after the speech");
    }

    #[test]
    fn words_are_decided_once_two_transcripts_agree() {
        let mut agreement = Agreement::default();
        let mut agree = |next: &str| text(&agreement.agree(words(next), 10_000));
        assert_eq!(agree("And so my"), "");
        assert_eq!(agree("and so my fellow"), "and so my", "case is no difference");
        assert_eq!(agree("fell"), "");
        assert_eq!(agree("fellow. Americans"), "");
        assert_eq!(agree("fellow Americans, ask"), "fellow", "punctuation inside is no difference");
        assert_eq!(agree("Americans, ask"), "Americans, ask");
        assert_eq!(text(agreement.tail()), "");
    }

    #[test]
    fn an_improbable_word_waits_for_audio_or_a_thorough_transcript() {
        let mut agreement = Agreement::default();
        agreement.agree(words("an ~ill man"), 900);
        assert_eq!(text(&agreement.agree(words("an ~ill man"), 1_000)), "an");
        assert_eq!(text(&agreement.agree(words("~ill man"), 1_599)), "");
        assert_eq!(text(&agreement.agree(words("~ill man"), 1_600)), "~ill man", "1.5 s after the first");
        agreement.agree(words("young ~an"), 1_000);
        assert_eq!(text(&agreement.settle(words("young ~man"), 899)), "young");
        assert_eq!(text(agreement.tail()), "~man");
    }

    #[test]
    fn the_less_certain_a_word_the_more_audio_it_needs() {
        let needed_ms = |certainty| LiveWord { certainty, ..words("a").remove(0) }.needed_ms();
        assert_eq!([1.0, 0.9, 0.775, 0.65, 0.64, 0.0].map(needed_ms), [200, 200, 350, 500, 1_500, 1_500]);
        let mut agreement = Agreement::default();
        agreement.agree(words("an"), 200);
        assert_eq!(text(&agreement.agree(words("an"), 299)), "");
        assert_eq!(text(&agreement.agree(words("an"), 300)), "an");
    }

    #[test]
    fn a_full_stop_at_the_end_of_the_audio_is_not_believed() {
        let mut agreement = Agreement::default();
        agreement.agree(words("country."), 200);
        assert_eq!(text(&agreement.agree(words("country."), 600)), "");
        assert_eq!(text(&agreement.agree(words("country."), 700)), "country.");
    }

    #[test]
    fn words_behind_the_speech_are_dropped_at_the_end() {
        let mut agreement = Agreement::default();
        agreement.agree(words("than ~he"), 500);
        assert_eq!(text(&agreement.finish(words("than ~he ~was"), 1_000)), "than ~he");
        assert_eq!(text(&agreement.finish(words("than he was it's"), 360)), "than he was it's");
        assert_eq!(text(&agreement.finish(words("than he was it's"), 340)), "than he was");
    }

    #[test]
    fn a_full_window_decides_by_time() {
        let mut agreement = Agreement::default();
        assert_eq!(text(&agreement.decide(words("one two three"), 200)), "one two");
        assert_eq!(text(agreement.tail()), "three");
    }

    proptest! {
        #[test]
        fn decided_words_are_a_prefix_of_what_was_said_last(
            transcripts in prop::collection::vec(prop::collection::vec("[ab]{1,2}", 0..6), 1..6),
        ) {
            let mut agreement = Agreement::default();
            for transcript in transcripts {
                let next = words(&transcript.join(" "));
                let before = agreement.tail().to_vec();
                let decided = agreement.agree(next.clone(), 500);
                let both = [decided.as_slice(), agreement.tail()].concat();
                prop_assert_eq!(both, if next.is_empty() { before } else { next });
            }
        }
    }
}
