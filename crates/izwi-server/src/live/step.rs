//! A step: the transcript of a window in progress, and the words of it that follow what was decided.

use izwi_core::engine::{Segment, Word};
use izwi_types::TokenLogprob;
use tokio::time::Instant;

use super::agreement::LiveWord;

/// A transcript of a window in progress.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) end_ms: u64,
    pub(super) start_ms: u64,
    pub(super) decided: String,
    pub(super) is_thorough: bool,
    pub(super) segments: Vec<Segment>,
    pub(super) begun: Instant,
}

/// A word of audio that begins at `start_ms` of the stream.
pub(super) fn live_word(word: &Word, start_ms: u64) -> LiveWord {
    let ms = |seconds: f64| start_ms + (seconds.max(0.0) * 1e3) as u64;
    let Word { text, probability, .. } = word;
    LiveWord {
        text: text.clone(),
        start_ms: ms(word.start_s),
        end_ms: ms(word.end_s),
        probability: *probability,
        certainty: *probability,
    }
}

/// The words of a step after what was decided; `None` if its transcript does not begin with that.
pub(super) fn words_behind(step: &Step) -> Option<Vec<LiveWord>> {
    let ms = |seconds: f64| (step.start_ms + (seconds.max(0.0) * 1e3) as u64).min(step.end_ms);
    let mut left = step.decided.as_str();
    let mut words = Vec::new();
    for segment in &step.segments {
        let mut tokens = TokenProbabilities::new(segment);
        for word in &segment.words {
            let probability = word.probability;
            let certainty = tokens.least(&word.text).unwrap_or(probability);
            let text = word.text.as_str();
            if let Some(rest) = left.strip_prefix(text) {
                left = rest;
                continue;
            }
            // A mark or an ending that joins the last decided word.
            let text = text.strip_prefix(std::mem::take(&mut left))?;
            let (start_ms, end_ms) = (ms(word.start_s), ms(word.end_s));
            let text = text.to_owned();
            words.push(LiveWord { text, start_ms, end_ms, probability, certainty });
        }
    }
    drop_unheard(&mut words);
    left.is_empty().then_some(words)
}

/// The probabilities of a segment's tokens, word by word.
struct TokenProbabilities<'a> {
    tokens: std::slice::Iter<'a, TokenLogprob>,
    /// Bytes that the tokens so far are ahead of the words.
    ahead: usize,
}

impl<'a> TokenProbabilities<'a> {
    fn new(segment: &'a Segment) -> Self {
        Self { tokens: segment.logprobs.iter(), ahead: 0 }
    }

    /// The least probability of the tokens of the next word, without the marks after it: an unlikely full stop says nothing
    /// about the word. `None` without tokens.
    fn least(&mut self, word: &str) -> Option<f32> {
        let spoken = word.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
        let (mut least, mut at) = (None, self.ahead.min(word.len()));
        self.ahead -= at;
        while at < word.len() {
            let token = self.tokens.next()?;
            if at < spoken {
                let probability = token.logprob.exp();
                least = Some(least.map_or(probability, |least: f32| least.min(probability)));
            }
            at += token.bytes.len().max(1);
        }
        self.ahead += at.saturating_sub(word.len());
        least
    }
}

/// Drops the end of a transcript from the first of several words without a duration on: a decoder that repeats itself behind
/// the last word finds no audio for them.
fn drop_unheard(words: &mut Vec<LiveWord>) {
    const RUN: usize = 3;
    let is_unheard = |run: &[LiveWord]| run.iter().all(|word| word.start_ms >= word.end_ms);
    if let Some(at) = words.windows(RUN).position(is_unheard) {
        words.truncate(at);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn words_behind_the_decided_text() {
        let behind = |decided: &str, words: &[&str]| {
            let word =
                |text: &&str| Word { text: (*text).to_owned(), start_s: 0.5, end_s: 1.0, probability: 1.0 };
            let segment = Segment { words: words.iter().map(word).collect(), ..Segment::default() };
            let mut step = Step {
                start_ms: 1_000,
                end_ms: 1_800,
                decided: decided.to_owned(),
                is_thorough: false,
                segments: vec![segment],
                begun: Instant::now(),
            };
            let words = words_behind(&step)?;
            step.segments.clear();
            assert!(words.iter().all(|word| (word.start_ms, word.end_ms) == (1_500, 1_800)));
            Some(words.into_iter().map(|word| word.text).collect::<Vec<_>>())
        };
        assert_eq!(behind("", &[" And", " so"]).unwrap(), [" And", " so"]);
        assert_eq!(behind(" And so", &[" And", " so", " my"]).unwrap(), [" my"]);
        assert_eq!(behind(" And so", &[" And", " so,", " my"]).unwrap(), [",", " my"]);
        assert_eq!(behind(" And so", &[" And", " so"]).unwrap(), [""; 0]);
        assert_eq!(behind(" And so", &[" And"]), None);
        assert_eq!(behind(" And so", &[]), None);
        assert_eq!(behind(" And so", &[" End", " so"]), None);
    }

    #[test]
    fn a_word_is_as_certain_as_its_least_certain_token() {
        let word = |text: &str| Word { text: text.to_owned(), start_s: 0.0, end_s: 0.1, probability: 0.8 };
        let token = |&(text, probability): &(&str, f32)| TokenLogprob {
            bytes: text.as_bytes().to_vec(),
            logprob: probability.ln(),
        };
        let tokens =
            [(" an", 1.0), (" ill", 0.9), ("-", 0.6), ("sp", 0.7), (",", 0.1), (" y\u{fc}", 0.5), ("n", 0.4)];
        let segment = Segment {
            words: [" an", " ill-sp,", " y\u{fc}", "n"].map(word).to_vec(),
            logprobs: tokens.iter().map(token).collect(),
            ..Segment::default()
        };
        let step = |segment| Step {
            start_ms: 0,
            end_ms: 1_000,
            decided: " an".to_owned(),
            is_thorough: false,
            segments: vec![segment],
            begun: Instant::now(),
        };
        let certainty = |segment| -> Vec<u32> {
            let words = words_behind(&step(segment)).unwrap();
            words.iter().map(|word| (word.certainty * 100.0).round() as u32).collect()
        };
        assert_eq!(certainty(segment.clone()), [60, 50, 40]);
        assert_eq!(
            certainty(Segment { logprobs: Vec::new(), ..segment.clone() }),
            [80, 80, 80],
            "without tokens"
        );
        // Half of a character, and a token that two words share.
        let mut split = Segment { logprobs: tokens[..1].iter().map(token).collect(), ..segment };
        split.logprobs.push(TokenLogprob { bytes: b" ill-sp, y\xc3".to_vec(), logprob: 0.3f32.ln() });
        split.logprobs.push(TokenLogprob { bytes: b"\xbcn".to_vec(), logprob: 0.2f32.ln() });
        assert_eq!(certainty(split), [30, 20, 80], "without a token of its own it has its mean");
    }
}
