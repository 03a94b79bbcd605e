//! A text that is given: its tokens, and the likeliest path through the rows of each stretch that spells them.
//!
//! A path has one token or the blank in each row, so paths of all lengths of text compare: the stretch decides how much of the
//! rest of the text it has, and the next goes on after that. The last has all of it. Knows no tensor.

use super::vocabulary::Vocabulary;
use crate::given_text::{GivenText, Progress, SaidWord};
use izwi_nn::sampling::logprob;
use izwi_types::Segment;

/// A text as tokens, those of each word; none of a word that no tokens spell.
#[derive(Debug)]
pub(super) struct Given {
    text: GivenText,
    words: Vec<Vec<u32>>,
}

/// Rows of a token on a path: the first, the one after the last, and the sum of its log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spelled {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) logprob: f32,
}

impl Given {
    pub(super) fn new(text: GivenText, vocabulary: &Vocabulary) -> Self {
        let words = text.words.iter().map(|word| vocabulary.spell(&word.text)).collect();
        Self { text, words }
    }

    /// The segments that a stretch of speech completes, from its rows of logits; `is_last` ends the text. `at` is the time of
    /// a row, in seconds.
    pub(super) fn align(
        &self,
        progress: &mut Progress,
        logits: &[Vec<f32>],
        blank: usize,
        at: impl Fn(usize) -> f64,
        is_last: bool,
    ) -> Vec<Segment> {
        let words = &self.words[progress.timed()..];
        let tokens: Vec<u32> = words.iter().flatten().copied().take(logits.len()).collect();
        let has_all = words.iter().map(Vec::len).sum::<usize>() == tokens.len();
        let path = spell(logits, &tokens, blank, is_last && has_all);
        let mut next = 0;
        let said = words.iter().map_while(|word| {
            let spelled = &path[next.min(path.len())..path.len().min(next + word.len())];
            // A word that goes on in the next stretch is left to it, unless most of it is here.
            if spelled.len() * 2 < word.len() || !is_last && next >= path.len() {
                return None;
            }
            next += word.len();
            Some(
                match spelled {
                    [first, .., last] => Some((first, last)),
                    [only] => Some((only, only)),
                    [] => None,
                }
                .map(|(first, last)| {
                    let rows: usize = spelled.iter().map(|token| token.end - token.start).sum();
                    let logprob: f32 = spelled.iter().map(|token| token.logprob).sum();
                    SaidWord {
                        start_s: at(first.start),
                        end_s: at(last.end),
                        probability: (logprob / rows.max(1) as f32).exp().max(f32::MIN_POSITIVE),
                    }
                }),
            )
        });
        let said: Vec<Option<SaidWord>> = said.collect();
        let mut segments = progress.add(&self.text, said);
        if is_last {
            segments.extend(progress.end(&self.text));
        }
        segments
    }
}

/// The rows of each token on the likeliest path that spells the first of `tokens`, or all of them if it `reaches_end` and
/// there are as many rows: between two tokens there may be blanks, and between two equal ones there are.
pub(super) fn spell(logits: &[Vec<f32>], tokens: &[u32], blank: usize, reaches_end: bool) -> Vec<Spelled> {
    // State 2 n is the blank before token n, state 2 n + 1 that token.
    let states = 2 * tokens.len() + 1;
    let token = |state: usize| if state.is_multiple_of(2) { blank } else { tokens[state / 2] as usize };
    let mut scores = vec![f32::NEG_INFINITY; states];
    let mut steps = vec![0u8; states * logits.len()]; // states back
    for (row, logits) in logits.iter().enumerate() {
        let norm = -logprob(logits, blank) + logits[blank];
        for state in (0..states).rev() {
            let begins = if row == 0 && state < 2 { 0.0 } else { f32::NEG_INFINITY };
            let stays = if row == 0 { begins } else { scores[state] };
            let mut best = (stays, 0);
            let skips = state >= 3 && state % 2 == 1 && tokens[state / 2] != tokens[state / 2 - 1];
            for back in 1..=if row == 0 { 0 } else { 1 + usize::from(skips) }.min(state) {
                if scores[state - back] > best.0 {
                    best = (scores[state - back], back as u8);
                }
            }
            scores[state] = best.0 + logits[token(state)] - norm;
            steps[row * states + state] = best.1;
        }
    }
    let ends = (0..states).filter(|&state| scores[state] > f32::NEG_INFINITY);
    let all = ends.clone().filter(|&state| state + 2 >= states);
    let likeliest = |a: &usize, b: &usize| scores[*a].total_cmp(&scores[*b]);
    let last = if reaches_end { all.max_by(likeliest) } else { None };
    let Some(mut state) = last.or_else(|| ends.max_by(likeliest)) else { return Vec::new() };
    let mut spelled: Vec<Spelled> = vec![Spelled { start: 0, end: 0, logprob: 0.0 }; state.div_ceil(2)];
    for (row, logits) in logits.iter().enumerate().rev() {
        if state % 2 == 1 {
            let own = &mut spelled[state / 2];
            own.start = row;
            own.end = own.end.max(row + 1);
            own.logprob += logprob(logits, token(state));
        }
        state -= usize::from(steps[row * states + state]);
    }
    spelled
}
