//! Beam search: the texts of a window that are continued side by side, and those that are finished.
//!
//! The algorithm is openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/decoding.py> (`BeamSearchDecoder`,
//! `MaximumLikelihoodRanker`). Knows no tensor and no block.

use rayon::prelude::*;

use super::sampling::spread;
use crate::keywords::{Keywords, Place};
use izwi_nn::sampling::argmax;
use izwi_types::{InputError, TranscriptionOptions};

/// Texts of a window that are continued side by side, unless the transcript is streamed or live.
const BEAM_SIZE: usize = 5;
/// The parameters of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BeamOptions {
    /// Texts that are continued side by side; 1 without a search.
    pub(super) beam_size: usize,
    /// Texts after which the search ends.
    candidates: usize,
    /// Exponent of the length; `None` for the mean of log-probabilities.
    length_penalty: Option<f32>,
}

impl BeamOptions {
    /// Tokens one by one.
    pub(super) const GREEDY: Self = Self { beam_size: 1, candidates: 1, length_penalty: None };

    /// The search of a request. The default is [`BEAM_SIZE`], or 1 if the request `is_greedy` by itself, and never more than
    /// `most`, which the engine has room for.
    ///
    /// # Errors
    /// The engine has no room for it.
    pub(super) fn new(
        search: &TranscriptionOptions,
        is_greedy: bool,
        most: usize,
    ) -> Result<Self, InputError> {
        let most = most.max(1);
        let wanted = search.beam_size.map(|size| size as usize);
        if let Some(size) = wanted.filter(|&size| size > most) {
            let message = format!(
                "beam_size {size} does not fit this engine, at most {most} does; lower it or raise max_blocks"
            );
            return Err(InputError { param: "beam_size", message });
        }
        let default = if is_greedy { 1 } else { BEAM_SIZE.min(most) };
        let beam_size = wanted.unwrap_or(default);
        // Halves to even, as Python rounds.
        let candidates = (beam_size as f32 * search.patience.unwrap_or(1.0)).round_ties_even().max(1.0);
        Ok(Self { beam_size, candidates: candidates as usize, length_penalty: search.length_penalty })
    }

    /// The score of a text of `tokens` tokens whose log-probability is `sum`.
    fn score(&self, sum: f32, tokens: usize) -> f32 {
        let tokens = tokens as f32;
        sum / self.length_penalty.map_or(tokens.max(1.0), |alpha| ((5.0 + tokens) / 6.0).powf(alpha))
    }
}

/// A text: its tokens without the end token, and the log-probability of each, that of the end token included if it has
/// ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Hypothesis {
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    /// Sum of the log-probabilities and of what keywords gain.
    sum: f32,
    /// How far it is in a keyword.
    place: Place,
}

/// A search over one window.
#[derive(Debug)]
pub(super) struct Beams {
    options: BeamOptions,
    /// Unfinished texts, the likeliest first; a branch of the sequence each. Before the first token one without tokens.
    live: Vec<Hypothesis>,
    finished: Vec<Hypothesis>,
}

/// A way to continue a text.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    parent: usize,
    token: u32,
    logprob: f32,
    /// Sum of the text with it, and its place.
    sum: f32,
    place: Place,
}

impl Beams {
    pub(super) fn new(options: BeamOptions) -> Self {
        Self { options, live: vec![Hypothesis::default()], finished: Vec::new() }
    }

    pub(super) fn beam_size(&self) -> usize {
        self.options.beam_size
    }

    /// Forgets all texts.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.options);
    }

    /// Tokens of the likeliest unfinished text.
    pub(super) fn likeliest(&self) -> &[u32] {
        self.live.first().map_or(&[], |live| &live.tokens)
    }

    /// The newest token of each unfinished text; none before the first.
    pub(super) fn newest(&self) -> Vec<u32> {
        self.live.iter().filter_map(|live| live.tokens.last().copied()).collect()
    }

    /// Tokens of each text so far.
    pub(super) fn len(&self) -> usize {
        self.likeliest().len()
    }

    /// Continues each text by `logits`, `[vocabulary]` for each of them, to which `rules` are applied first, and by what tokens of
    /// `keywords` gain. Returns the parents of those that go on.
    pub(super) fn advance(
        &mut self,
        rules: impl Fn(&mut [f32], &[u32]) + Sync,
        keywords: Option<&Keywords>,
        end: u32,
        logits: &mut [Vec<f32>],
    ) -> Vec<usize> {
        let count = self.options.beam_size + 1;
        let candidates: Vec<Vec<Candidate>> = self
            .live
            .par_iter()
            .zip(logits.par_iter_mut())
            .enumerate()
            .map(|(parent, (live, logits))| {
                rules(logits, &live.tokens);
                let best = argmax(logits);
                let total = logits[best] + spread(logits, logits[best]);
                let candidate = |(token, logit): (u32, f32)| {
                    let logprob = logit - total;
                    let score = |keywords: &Keywords| {
                        keywords.score(live.place, token, keywords.behind(logits, best, token))
                    };
                    let (gain, place) = keywords.map_or((0.0, live.place), score);
                    Candidate { parent, token, logprob, sum: live.sum + logprob + gain, place }
                };
                let mut tokens = largest(logits, count);
                if let Some(keywords) = keywords {
                    let least = tokens.last().map_or(f32::INFINITY, |token| token.1);
                    let others = keywords.tokens(live.place).into_iter();
                    let others = others.map(|token| (token, logits[token as usize]));
                    tokens.extend(others.filter(|(_, logit)| *logit < least && *logit > f32::NEG_INFINITY));
                }
                tokens.into_iter().map(candidate).collect()
            })
            .collect();
        let mut candidates: Vec<Candidate> = candidates.into_iter().flatten().collect();
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        let mut live = Vec::with_capacity(count);
        let mut parents = Vec::with_capacity(count);
        for candidate in candidates {
            let Candidate { parent, token, logprob, sum, place } = candidate;
            let Hypothesis { mut tokens, mut logprobs, .. } = self.live[parent].clone();
            logprobs.push(logprob);
            if token == end {
                if self.finished.len() < self.options.candidates {
                    self.finished.push(Hypothesis { tokens, logprobs, sum, place });
                }
                continue;
            }
            tokens.push(token);
            live.push(Hypothesis { tokens, logprobs, sum, place });
            parents.push(parent);
            if live.len() == self.options.beam_size {
                break;
            }
        }
        self.live = live;
        parents
    }

    /// Whether enough texts are finished, or none continues.
    pub(super) fn is_complete(&self) -> bool {
        self.live.is_empty() || self.finished.len() >= self.options.candidates
    }

    /// The best text: finished ones, and where they are fewer than the beam, the likeliest of the others.
    pub(super) fn best(&mut self) -> Hypothesis {
        let missing = self.options.beam_size.saturating_sub(self.finished.len());
        let live = std::mem::take(&mut self.live);
        let all = std::mem::take(&mut self.finished).into_iter().chain(live.into_iter().take(missing));
        let score = |text: &Hypothesis| self.options.score(text.sum, text.tokens.len());
        let best = all.reduce(|best, other| if score(&other) > score(&best) { other } else { best });
        best.unwrap_or_default()
    }
}

/// The `count` largest finite logits and their tokens, the largest first, of equal ones the first.
fn largest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut kept: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > least {
            let at = kept.partition_point(|&(_, other)| other >= logit);
            kept.insert(at, (token as u32, logit));
            kept.truncate(count);
            if kept.len() == count {
                least = kept[count - 1].1;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::keywords::TokenBytes;

    const END: u32 = 3;

    fn options(beam_size: u64, patience: f32, length_penalty: Option<f32>) -> BeamOptions {
        let search = TranscriptionOptions {
            beam_size: Some(beam_size),
            patience: Some(patience),
            length_penalty,
            ..TranscriptionOptions::default()
        };
        BeamOptions::new(&search, false, 10).unwrap()
    }

    fn logits(probabilities: [f32; 4]) -> Vec<f32> {
        probabilities.map(f32::ln).to_vec()
    }

    /// A step without rules over four tokens.
    fn step(beams: &mut Beams, rows: &[[f32; 4]]) -> Vec<usize> {
        let mut rows: Vec<Vec<f32>> = rows.iter().map(|row| logits(*row)).collect();
        beams.advance(|_, _| (), None, END, &mut rows)
    }

    fn texts(beams: &Beams) -> Vec<Vec<u32>> {
        beams.live.iter().map(|live| live.tokens.clone()).collect()
    }

    #[test]
    fn the_likeliest_continuations_of_all_texts_go_on() {
        let mut beams = Beams::new(options(2, 1.0, None));
        assert_eq!(step(&mut beams, &[[0.5, 0.4, 0.1, 0.0]]), [0, 0]);
        assert_eq!((texts(&beams), beams.newest()), (vec![vec![0], vec![1]], vec![0, 1]));
        // 0.4 · 0.9 beats 0.5 · 0.6 and 0.5 · 0.4, of which the former ends.
        assert_eq!(step(&mut beams, &[[0.0, 0.4, 0.0, 0.6], [0.9, 0.0, 0.1, 0.0]]), [1, 0]);
        assert_eq!(texts(&beams), [[1, 0], [0, 1]]);
        assert_eq!((beams.finished.len(), beams.is_complete()), (1, false));
        let ended = &beams.finished[0];
        assert_eq!((&ended.tokens[..], ended.logprobs.len()), (&[0][..], 2));
        step(&mut beams, &[[0.1, 0.0, 0.0, 0.9], [0.1, 0.0, 0.0, 0.9]]);
        assert!(beams.is_complete());
        // ln(0.36 · 0.9) / 2 is more than ln 0.3.
        assert_eq!(beams.best().tokens, [1, 0]);
    }

    #[test]
    fn a_keyword_gains_in_its_text_and_loses_where_it_does_not_go_on() {
        let tokens = [" a", " b", "b", ""].map(|text| text.as_bytes().into());
        let words = ["bb".to_owned()];
        let keywords = Keywords::new(&words, &Arc::new(TokenBytes::new(tokens.into()))).unwrap();
        let run = |second: [f32; 4]| {
            let mut beams = Beams::new(options(2, 1.0, None));
            beams.advance(|_, _| (), Some(&keywords), END, &mut [logits([0.6, 0.3, 0.1, 0.0])]);
            let first = texts(&beams);
            beams.advance(|_, _| (), Some(&keywords), END, &mut [logits(second), logits(second)]);
            (first, texts(&beams))
        };
        assert_eq!(run([0.3, 0.1, 0.6, 0.0]), (vec![vec![1], vec![0]], vec![vec![1, 2], vec![0, 1]]));
        let (_, left) = run([0.9, 0.1, 0.0, 0.0]);
        assert_eq!(left[0], [0, 0], "0.6 · 0.9, without the gain of the other text");
    }

    #[test]
    fn patience_waits_for_more_texts_and_the_penalty_prefers_longer_ones() {
        let run = |patience, penalty| {
            let mut beams = Beams::new(options(2, patience, penalty));
            let row = [0.1, 0.05, 0.0, 0.85];
            let mut steps = 0;
            while !beams.is_complete() && steps < 9 {
                let rows = vec![row; beams.live.len()];
                step(&mut beams, &rows);
                steps += 1;
            }
            (steps, beams.best().tokens.len())
        };
        let (steps, tokens) = run(1.0, Some(0.0));
        let (patient, _) = run(3.0, Some(0.0));
        assert!(steps < patient, "{steps} and {patient} steps");
        assert_eq!(tokens, 0, "the sum alone prefers the shortest text");
        assert_eq!(options(5, 0.5, None).candidates, 2, "halves round to even");
        // A longer text of the same mean is as good, and by the exponent better than by the sum.
        let alpha = options(5, 1.0, Some(1.0));
        assert!(alpha.score(-4.0, 7) > alpha.score(-4.0, 1) && (alpha.score(-4.0, 7) + 2.0).abs() < 1e-6);
    }

    #[test]
    fn too_few_finished_texts_are_joined_by_the_likeliest_others() {
        let mut beams = Beams::new(options(3, 1.0, None));
        step(&mut beams, &[[0.6, 0.3, 0.1, 0.0]]);
        assert_eq!(beams.best().tokens, [0], "nothing has ended");
        let mut beams = Beams::new(options(2, 1.0, None));
        assert!(step(&mut beams, &[[0.0, 0.0, 0.0, 1.0]]).is_empty());
        assert!(beams.is_complete() && beams.best().tokens.is_empty());
    }

    #[test]
    fn the_largest_come_first_and_of_equal_ones_the_first_token() {
        let never = f32::NEG_INFINITY;
        assert_eq!(largest(&[1.0, 3.0, never, 3.0, 2.0], 3), [(1, 3.0), (3, 3.0), (4, 2.0)]);
        assert_eq!(largest(&[never, 1.0], 3), [(1, 1.0)]);
    }

    #[test]
    fn the_default_depends_on_the_request_and_on_the_room_for_it() {
        let size = |beam_size, is_greedy, most| {
            let search = TranscriptionOptions { beam_size, ..TranscriptionOptions::default() };
            BeamOptions::new(&search, is_greedy, most).map(|options| options.beam_size)
        };
        assert_eq!([size(None, false, 8), size(None, true, 8), size(None, false, 2)], [Ok(5), Ok(1), Ok(2)]);
        assert_eq!(
            [size(Some(3), true, 8), size(Some(1), false, 8), size(None, false, 0)],
            [Ok(3), Ok(1), Ok(1)]
        );
        assert_eq!(size(Some(9), false, 8).unwrap_err().param, "beam_size");
    }
}
