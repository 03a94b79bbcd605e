//! Splits the phonemes of sentences into units, one forward pass each.
//!
//! Owns the phoneme ids, and which of them say which part of the user's text. Knows no tensor.

use std::collections::HashMap;
use std::path::Path;

use super::json_file::read_json;
use izwi_nn::Error;
use izwi_types::SpokenWord;

/// Least ids of a unit at any limit.
const MIN_UNIT_IDS: usize = 8;
/// A longer first unit is split for an early first chunk.
const LONG_FIRST_UNIT: usize = 60;
/// Least symbols of both parts of a split first unit.
const MIN_FIRST_PART: usize = 16;

/// A sentence to speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// Phonemes of its words, separated by single spaces.
    pub(crate) phonemes: String,
    /// For each of the words, how many bytes of the user's text are said at its end.
    pub(crate) said: Vec<usize>,
}

/// A symbol, and how many bytes of the user's text are said at the end of its word; `None` for marks and between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Symbol {
    value: char,
    said: Option<usize>,
}

/// What one forward pass computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) ids: Vec<u32>,
    /// For each id, how many bytes of the user's text are said at the end of its word; `None` where it is no sound.
    pub(crate) said: Vec<Option<usize>>,
}

/// Phoneme symbols and their ids.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    ids: HashMap<char, u32>,
}

impl Vocabulary {
    /// Reads a file that maps symbols to ids, for a network of `symbols` ids.
    ///
    /// # Errors
    /// The file cannot be read, or an id is not below `symbols`.
    pub(crate) fn load(path: &Path, symbols: usize) -> Result<Self, Error> {
        let fault = |message| Error::File { path: path.display().to_string(), message };
        Self::new(read_json(path)?, symbols).map_err(fault)
    }

    /// From the id of each symbol, for a network of `symbols` ids.
    ///
    /// # Errors
    /// An id is not below `symbols`.
    pub(crate) fn new(ids: HashMap<char, u32>, symbols: usize) -> Result<Self, String> {
        match ids.iter().find(|&(_, &id)| id as usize >= symbols) {
            Some((symbol, id)) => Err(format!("symbol '{symbol}' has id {id}, the network knows {symbols}")),
            None => Ok(Self { ids }),
        }
    }

    /// The known symbols; others are dropped.
    fn known(&self, sentence: &Sentence) -> Vec<Symbol> {
        let words = sentence.phonemes.split_inclusive(' ').enumerate();
        let symbols = words.flat_map(|(word, phonemes)| {
            let said = sentence.said.get(word).copied();
            phonemes.chars().map(move |value| Symbol { value, said: said.filter(|_| value.is_alphabetic()) })
        });
        symbols.filter(|symbol| self.ids.contains_key(&symbol.value)).collect()
    }

    /// Ids between the two boundary marks.
    fn unit(&self, symbols: &[Symbol]) -> Unit {
        let inner = symbols.iter().filter_map(|symbol| Some((*self.ids.get(&symbol.value)?, symbol.said)));
        let (ids, said) = std::iter::once((0, None)).chain(inner).chain([(0, None)]).unzip();
        Unit { ids, said }
    }
}

/// Splits the phonemes of sentences into units of at most `max_ids` ids each; parts without letters are dropped.
pub(crate) fn cut(sentences: &[Sentence], vocabulary: &Vocabulary, max_ids: usize) -> Vec<Unit> {
    let most = max_ids.max(MIN_UNIT_IDS) - 2;
    let mut units: Vec<Unit> = Vec::new();
    for sentence in sentences {
        let symbols = vocabulary.known(sentence);
        let mut rest = trim(&symbols);
        if units.is_empty()
            && let Some(at) = early_clause(rest)
        {
            push_all(&mut units, &rest[..at], vocabulary, most);
            rest = &rest[at..];
        }
        push_all(&mut units, rest, vocabulary, most);
    }
    units
}

/// How many bytes of `text` are said before each of its units. Text after the last word that has sounds belongs to it.
pub(crate) fn bind_text(units: &mut [Unit], text: &str) -> Vec<usize> {
    let mut said = 0;
    let mut starts = Vec::with_capacity(units.len());
    for unit in &*units {
        starts.push(said);
        said = unit.said.iter().rev().find_map(|said| *said).unwrap_or(said);
    }
    let symbols = units.iter_mut().rev().flat_map(|unit| unit.said.iter_mut().rev().flatten());
    symbols.take_while(|end| **end == said).for_each(|end| *end = text.trim_end().len());
    starts
}

/// When the words of a unit are spoken in its samples. `text_start` bytes of the text are said before it.
///
/// `durations` are those of the ids in frames of `frame_samples`.
pub(crate) fn words(
    unit: &Unit,
    text_start: usize,
    durations: &[usize],
    frame_samples: usize,
) -> Vec<SpokenWord> {
    let mut words: Vec<SpokenWord> = Vec::new();
    let mut frames = 0;
    for (said, duration) in unit.said.iter().zip(durations) {
        let sample_start = (frames * frame_samples) as u64;
        frames += duration;
        let sample_end = (frames * frame_samples) as u64;
        let Some(text_end) = *said else { continue };
        let text_start = match words.last_mut() {
            // The front end has added sounds before the first word of the text.
            _ if text_end == 0 => continue,
            Some(last) if last.text_end == text_end => {
                last.sample_end = sample_end;
                continue;
            }
            last => last.map_or(text_start, |last| last.text_end),
        };
        words.push(SpokenWord { text_start, text_end, sample_start, sample_end });
    }
    words
}

/// Splits at the last boundary until the rest fits.
fn push_all(units: &mut Vec<Unit>, symbols: &[Symbol], vocabulary: &Vocabulary, most: usize) {
    let mut rest = trim(symbols);
    while rest.len() > most {
        let at = last_boundary(rest, most);
        push(units, &rest[..at], vocabulary);
        rest = trim(&rest[at..]);
    }
    push(units, rest, vocabulary);
}

fn push(units: &mut Vec<Unit>, symbols: &[Symbol], vocabulary: &Vocabulary) {
    let symbols = trim(symbols);
    if symbols.iter().any(|symbol| symbol.value.is_alphabetic()) {
        units.push(vocabulary.unit(symbols));
    }
}

fn trim(mut symbols: &[Symbol]) -> &[Symbol] {
    while let [Symbol { value: ' ', .. }, rest @ ..] | [rest @ .., Symbol { value: ' ', .. }] = symbols {
        symbols = rest;
    }
    symbols
}

fn ends_clause(symbol: char) -> bool {
    matches!(symbol, ',' | ';' | ':' | '—')
}

/// Where to split a long first sentence: after its first clause of some length.
fn early_clause(symbols: &[Symbol]) -> Option<usize> {
    if symbols.len() <= LONG_FIRST_UNIT {
        return None;
    }
    let last = symbols.len() - MIN_FIRST_PART;
    let is_clause = |at: usize| ends_clause(symbols[at - 1].value) && symbols[at].value == ' ';
    (MIN_FIRST_PART..last).find(|&at| is_clause(at) && parts_words(symbols, at))
}

/// The last boundary in the first `most` symbols: after a clause, else a word, else anywhere, and within a word of the
/// user's text only where there is none between two. At least one symbol.
fn last_boundary(symbols: &[Symbol], most: usize) -> usize {
    let last = |is_end: &dyn Fn(&Symbol) -> bool, is_between: bool| {
        let ends = |at: &usize| is_end(&symbols[at - 1]) && (!is_between || parts_words(symbols, *at));
        (1..=most).rev().find(ends)
    };
    let clause = |symbol: &Symbol| ends_clause(symbol.value);
    let word = |symbol: &Symbol| symbol.value == ' ';
    last(&clause, true)
        .or_else(|| last(&word, true))
        .or_else(|| last(&clause, false))
        .or_else(|| last(&word, false))
        .unwrap_or(most)
        .max(1)
}

/// Whether the sounds before and behind `at` belong to different words of the user's text.
fn parts_words(symbols: &[Symbol], at: usize) -> bool {
    let (before, behind) = symbols.split_at(at);
    let before = before.iter().rev().find_map(|symbol| symbol.said);
    before != behind.iter().find_map(|symbol| symbol.said)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary { ids: "abcdefghij ,;:—.".chars().zip(1..).collect() }
    }

    fn sentence(phonemes: &str) -> Sentence {
        let said = (1..=phonemes.split(' ').count()).collect();
        Sentence { phonemes: phonemes.to_owned(), said }
    }

    fn text(vocabulary: &Vocabulary, unit: &Unit) -> String {
        let symbol =
            |id: &u32| vocabulary.ids.iter().find(|(_, known)| *known == id).map(|(symbol, _)| *symbol);
        unit.ids.iter().filter_map(symbol).collect()
    }

    fn check(sentences: &[&str], max_ids: usize, expected: &[&str]) {
        let vocabulary = vocabulary();
        let sentences: Vec<Sentence> = sentences.iter().map(|phonemes| sentence(phonemes)).collect();
        let units = cut(&sentences, &vocabulary, max_ids);
        let texts: Vec<String> = units.iter().map(|unit| text(&vocabulary, unit)).collect();
        assert_eq!(texts, expected);
        let bounded = |ids: &[u32]| ids[0] == 0 && ids[ids.len() - 1] == 0 && ids.len() <= max_ids;
        assert!(units.iter().all(|unit| bounded(&unit.ids) && unit.said.len() == unit.ids.len()));
    }

    #[test]
    fn a_sentence_that_fits_is_one_unit() {
        check(&["ab zz cd."], 400, &["ab  cd."]);
        check(&["ab.", "...", "", "cd."], 400, &["ab.", "cd."]);
    }

    #[test]
    fn long_sentences_split_at_clauses_then_words_then_anywhere() {
        check(&["abc, def ghi jab"], 12, &["abc,", "def ghi", "jab"]);
        check(&["abcdefghijabcdefghij"], 12, &["abcdefghij", "abcdefghij"]);
    }

    #[test]
    fn a_long_first_sentence_splits_after_its_first_clause() {
        let clause = "abcd abcd abcd abcd,";
        let rest = "abcd abcd abcd abcd abcd abcd abcd abcd abcd.";
        check(&[&format!("{clause} {rest}")], 400, &[clause, rest]);
        check(&["ab, cd."], 400, &["ab, cd."]);
        let later = format!("{clause} {rest}");
        check(&["ab.", &later], 400, &["ab.", &later]);
    }

    #[test]
    fn a_word_of_the_text_is_split_only_where_nothing_else_is() {
        let vocabulary = vocabulary();
        // "ab" and then one written word of three clauses.
        let sentence = Sentence { phonemes: "ab cd, ef, gh".to_owned(), said: vec![2, 9, 9, 9] };
        let units = cut(std::slice::from_ref(&sentence), &vocabulary, 14);
        let texts: Vec<String> = units.iter().map(|unit| text(&vocabulary, unit)).collect();
        assert_eq!(texts, ["ab", "cd, ef, gh"]);
        let units = cut(&[sentence], &vocabulary, 8);
        let texts: Vec<String> = units.iter().map(|unit| text(&vocabulary, unit)).collect();
        assert_eq!(texts, ["ab", "cd,", "ef, gh"]);
    }

    #[test]
    fn symbols_know_what_is_said_at_the_end_of_their_word() {
        let vocabulary = vocabulary();
        let units = cut(&[sentence("ab zz cd."), sentence("abcdefghij ab")], &vocabulary, 12);
        let said: Vec<Vec<Option<usize>>> = units.into_iter().map(|unit| unit.said).collect();
        let [first, second, third] = &said[..] else { panic!("{said:?}") };
        let one = Some(1);
        assert_eq!(first[..], [None, one, one, None, None, Some(3), Some(3), None, None]);
        assert_eq!((second[1], third[1], third.len()), (one, Some(2), 4));
    }

    proptest! {
        #[test]
        fn no_letter_is_lost(sentences in prop::collection::vec("[a-j ,.:—]{0,600}", 0..4), max in 1usize..500) {
            let vocabulary = vocabulary();
            let spoken: Vec<Sentence> = sentences.iter().map(|phonemes| sentence(phonemes)).collect();
            let units = cut(&spoken, &vocabulary, max);
            let sounds = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
            let joined: String = units.iter().map(|unit| text(&vocabulary, unit)).collect();
            prop_assert_eq!(sounds(&joined), sounds(&sentences.concat()));
            prop_assert!(units.iter().all(|unit| unit.ids.len() <= max.max(MIN_UNIT_IDS)));
        }
    }
}
