//! Rescoring of a transcript with keywords in place of unsure words that sound like them.
//!
//! A search finds a keyword only if each of its tokens is likely by itself. One that begins unlike what was written may as a whole be
//! nearly as likely: the network scores the transcript with it, and it stays if it is. Knows no tensor and no state.

use std::ops::Range;

use super::segments::DecodingResult;
use super::tokens::Vocabulary;
use crate::keywords::phonetic_key;

/// Words whose tokens have a higher mean log-probability are sure.
const SURE_LOGPROB: f32 = -0.25;
/// The least similarity of the phonetic keys of a keyword and of what was written.
const MIN_SIMILARITY: f64 = 0.6;
/// By how much a keyword may be less likely, in nats for each of its bytes.
const NATS_PER_BYTE: f32 = 1.5;
/// The most candidates of a window, each of which costs a pass.
const MAX_CANDIDATES: usize = 8;
/// The most words that a keyword was transcribed as.
const MAX_WORDS: usize = 3;
/// Tokens after a keyword whose scores count, too.
const CONTEXT_TOKENS: usize = 4;

/// A keyword in place of some tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    tokens: Range<usize>,
    keyword: Vec<u32>,
    bytes: usize,
    similarity: f64,
}

/// A transcript that is rescored.
#[derive(Debug)]
pub(super) struct Rescoring {
    result: DecodingResult,
    /// What precedes the transcript in a pass.
    prompt: Vec<u32>,
    /// From the first place of the transcript to the last, which is scored first: one that stays moves none of those that remain.
    candidates: Vec<Candidate>,
}

impl Rescoring {
    /// Of a result that follows `prompt`.
    pub(super) fn new(
        result: DecodingResult,
        prompt: Vec<u32>,
        keywords: &[String],
        vocabulary: &Vocabulary,
    ) -> Self {
        let candidates = candidates(&result, keywords, vocabulary);
        Self { result, prompt, candidates }
    }

    pub(super) fn into_result(self) -> DecodingResult {
        self.result
    }

    /// Drops candidates with more tokens than there is room for.
    pub(super) fn keep_within(&mut self, most: usize) {
        self.candidates.retain(|candidate| candidate.keyword.len() < most);
    }

    /// The tokens to score next, and how many of them are the prompt.
    pub(super) fn next_tokens(&self) -> Option<(Vec<u32>, usize)> {
        let Candidate { tokens, keyword, .. } = self.candidates.last()?;
        let own = &self.result.tokens;
        let tokens = [&self.prompt, &own[..tokens.start], keyword, &own[tokens.end..]].concat();
        Some((tokens, self.prompt.len()))
    }

    /// Takes the log-probabilities of the next tokens, those of the prompt left out.
    pub(super) fn take_scores(&mut self, logprobs: &[f32], vocabulary: &Vocabulary) {
        let Some(Candidate { tokens, keyword, bytes, .. }) = self.candidates.pop() else { return };
        let after = self.result.tokens[tokens.end..].iter().take(CONTEXT_TOKENS);
        let after = after.take_while(|&&id| vocabulary.is_text(id)).count();
        let written: f32 = self.result.logprobs[tokens.start..tokens.end + after].iter().sum();
        let own = tokens.start..tokens.start + keyword.len();
        let Some(scores) = logprobs.get(own.start..own.end + after) else { return };
        if scores.iter().sum::<f32>() + NATS_PER_BYTE * (bytes as f32) < written {
            return;
        }
        self.candidates.retain(|other| other.tokens.end <= tokens.start);
        self.result.logprobs.splice(tokens.clone(), logprobs[own].iter().copied());
        self.result.tokens.splice(tokens, keyword);
        self.result.text = vocabulary.text(&self.result.tokens);
    }
}

/// The candidates, by places; of those of a place the most similar comes last.
fn candidates(result: &DecodingResult, keywords: &[String], vocabulary: &Vocabulary) -> Vec<Candidate> {
    let keys: Vec<String> = keywords.iter().map(|keyword| phonetic_key(keyword)).collect();
    let words = words(&result.tokens, vocabulary);
    let parts: Vec<&str> = keywords.iter().flat_map(|keyword| keyword.split(' ')).collect();
    let is_keyword = |word: &Written| parts.iter().any(|part| part.eq_ignore_ascii_case(word.text.trim()));
    let mut found = Vec::new();
    for first in 0..words.len() {
        for count in 1..=MAX_WORDS.min(words.len() - first) {
            let run = &words[first..first + count];
            if is_unsure(run, result) && !run.iter().any(is_keyword) {
                found.extend(alike(run, keywords, &keys, vocabulary));
            }
        }
    }
    found.sort_by(|a, b| b.similarity.total_cmp(&a.similarity));
    found.truncate(MAX_CANDIDATES);
    found.reverse();
    found.sort_by_key(|candidate| (candidate.tokens.end, candidate.tokens.start));
    found
}

/// A word of a transcript: a mark is one of its own.
#[derive(Debug)]
struct Written {
    /// With the space before it.
    text: String,
    tokens: Range<usize>,
}

impl Written {
    fn is_spoken(&self) -> bool {
        self.text.contains(char::is_alphanumeric)
    }
}

/// Whether words follow one another, begin and end with spoken ones, and each is unsure.
fn is_unsure(run: &[Written], result: &DecodingResult) -> bool {
    let is_adjacent = run.windows(2).all(|pair| pair[0].tokens.end == pair[1].tokens.start);
    let is_spoken = |word: Option<&Written>| word.is_some_and(Written::is_spoken);
    let is_sure = |word: &Written| {
        let logprobs = result.logprobs.get(word.tokens.clone()).unwrap_or_default();
        logprobs.iter().sum::<f32>() > SURE_LOGPROB * logprobs.len() as f32
    };
    let mut spoken = run.iter().filter(|word| word.is_spoken());
    is_adjacent && is_spoken(run.first()) && is_spoken(run.last()) && !spoken.any(is_sure)
}

/// The keywords that sound like a run of words.
fn alike(run: &[Written], keywords: &[String], keys: &[String], vocabulary: &Vocabulary) -> Vec<Candidate> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Vec::new() };
    let written = phonetic_key(&run.iter().map(|word| word.text.as_str()).collect::<String>());
    let space = if first.text.starts_with(' ') { " " } else { "" };
    let pairs = keywords.iter().zip(keys);
    let alike = pairs.filter_map(|(keyword, key)| {
        let similarity = strsim::normalized_levenshtein(&written, key);
        let text = format!("{space}{keyword}");
        (similarity >= MIN_SIMILARITY).then(|| Candidate {
            tokens: first.tokens.start..last.tokens.end,
            keyword: vocabulary.encode(&text),
            bytes: text.len(),
            similarity,
        })
    });
    alike.collect()
}

/// The words of a transcript.
fn words(tokens: &[u32], vocabulary: &Vocabulary) -> Vec<Written> {
    let mut words = Vec::new();
    let mut start = 0;
    for run in tokens.chunk_by(|&a, &b| vocabulary.is_text(a) && vocabulary.is_text(b)) {
        let is_text = run.iter().all(|&id| vocabulary.is_text(id));
        let found = if is_text { vocabulary.words(run, false) } else { Vec::new() };
        let mut at = start;
        words.extend(found.into_iter().map(|(text, count)| {
            at += count;
            Written { text, tokens: at - count..at }
        }));
        start += run.len();
    }
    words
}
