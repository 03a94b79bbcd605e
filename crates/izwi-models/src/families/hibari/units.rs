//! Splits the phonemes of sentences into units, one forward pass each.
//!
//! Owns the phoneme ids. Knows neither text nor tensors.

use std::collections::HashMap;
use std::path::Path;

use super::files::read_json;
use super::network::SYMBOLS;
use izwi_nn::Error;

/// Longest sequence of the network's training.
pub(super) const MAX_UNIT_IDS: usize = 400;
/// Least ids of a unit at any limit.
const MIN_UNIT_IDS: usize = 8;
/// A longer first unit is split for an early first chunk.
const LONG_FIRST_UNIT: usize = 60;
/// Least symbols of both parts of a split first unit.
const MIN_FIRST_PART: usize = 16;

/// Phoneme symbols and their ids.
#[derive(Debug)]
pub(super) struct Vocabulary {
    ids: HashMap<char, u32>,
}

impl Vocabulary {
    /// Reads `vocab.json`.
    pub(super) fn load(path: &Path) -> Result<Self, Error> {
        let ids: HashMap<char, u32> = read_json(path)?;
        match ids.iter().find(|&(_, &id)| id as usize >= SYMBOLS) {
            Some((symbol, id)) => Err(Error::File {
                path: path.display().to_string(),
                message: format!("symbol '{symbol}' has id {id}, the network knows {SYMBOLS}"),
            }),
            None => Ok(Self { ids }),
        }
    }

    /// The known symbols; others are dropped.
    fn known(&self, phonemes: &str) -> Vec<char> {
        phonemes.chars().filter(|symbol| self.ids.contains_key(symbol)).collect()
    }

    /// Ids between the two boundary marks.
    fn ids(&self, symbols: &[char]) -> Vec<u32> {
        let inner = symbols.iter().filter_map(|symbol| self.ids.get(symbol).copied());
        std::iter::once(0).chain(inner).chain([0]).collect()
    }
}

/// Splits the phonemes of sentences into units of at most `max_ids` ids each; parts without letters are dropped.
pub(super) fn cut(sentences: &[String], vocabulary: &Vocabulary, max_ids: usize) -> Vec<Vec<u32>> {
    let most = max_ids.clamp(MIN_UNIT_IDS, MAX_UNIT_IDS) - 2;
    let mut units: Vec<Vec<u32>> = Vec::new();
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

/// Splits at the last boundary until the rest fits.
fn push_all(units: &mut Vec<Vec<u32>>, symbols: &[char], vocabulary: &Vocabulary, most: usize) {
    let mut rest = trim(symbols);
    while rest.len() > most {
        let at = last_boundary(&rest[..most]);
        push(units, &rest[..at], vocabulary);
        rest = trim(&rest[at..]);
    }
    push(units, rest, vocabulary);
}

fn push(units: &mut Vec<Vec<u32>>, symbols: &[char], vocabulary: &Vocabulary) {
    let symbols = trim(symbols);
    if symbols.iter().any(|symbol| symbol.is_alphabetic()) {
        units.push(vocabulary.ids(symbols));
    }
}

fn trim(mut symbols: &[char]) -> &[char] {
    while let [' ', rest @ ..] | [rest @ .., ' '] = symbols {
        symbols = rest;
    }
    symbols
}

fn ends_clause(symbol: char) -> bool {
    matches!(symbol, ',' | ';' | ':' | '—')
}

/// Where to split a long first sentence: after its first clause of some length.
fn early_clause(symbols: &[char]) -> Option<usize> {
    if symbols.len() <= LONG_FIRST_UNIT {
        return None;
    }
    let last = symbols.len() - MIN_FIRST_PART;
    (MIN_FIRST_PART..last).find(|&at| ends_clause(symbols[at - 1]) && symbols[at] == ' ')
}

/// The last boundary: after a clause, else a word, else anywhere. At least one symbol.
fn last_boundary(symbols: &[char]) -> usize {
    let after = |found: Option<usize>| found.map(|at| at + 1);
    after(symbols.iter().rposition(|&symbol| ends_clause(symbol)))
        .or_else(|| after(symbols.iter().rposition(|&symbol| symbol == ' ')))
        .unwrap_or(symbols.len())
        .max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary { ids: "abcdefghij ,;:—.".chars().zip(1..).collect() }
    }

    fn text(vocabulary: &Vocabulary, unit: &[u32]) -> String {
        let symbol =
            |id: &u32| vocabulary.ids.iter().find(|(_, known)| *known == id).map(|(symbol, _)| *symbol);
        unit.iter().filter_map(symbol).collect()
    }

    fn check(sentences: &[&str], max_ids: usize, expected: &[&str]) {
        let vocabulary = vocabulary();
        let sentences: Vec<String> = sentences.iter().map(|sentence| sentence.to_string()).collect();
        let units = cut(&sentences, &vocabulary, max_ids);
        let texts: Vec<String> = units.iter().map(|unit| text(&vocabulary, unit)).collect();
        assert_eq!(texts, expected);
        assert!(units.iter().all(|unit| unit[0] == 0 && unit[unit.len() - 1] == 0 && unit.len() <= max_ids));
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

    proptest! {
        #[test]
        fn no_letter_is_lost(sentences in prop::collection::vec("[a-j ,.:—]{0,600}", 0..4), max in 1usize..500) {
            let vocabulary = vocabulary();
            let units = cut(&sentences, &vocabulary, max);
            let sounds = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
            let joined: String = units.iter().map(|unit| text(&vocabulary, unit)).collect();
            prop_assert_eq!(sounds(&joined), sounds(&sentences.concat()));
            prop_assert!(units.iter().all(|unit| unit.len() <= max.clamp(MIN_UNIT_IDS, MAX_UNIT_IDS)));
        }
    }
}
