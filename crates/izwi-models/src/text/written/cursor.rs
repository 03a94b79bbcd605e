//! The next words of a transcript, as far as rules may look.

use std::cell::Cell;

/// The most words that one rule sees: those after them wait no longer for what follows.
pub(super) const MAX_WORDS: usize = 32;

/// A word, or a part of one with hyphens.
#[derive(Debug)]
struct Atom {
    /// In lower case, without marks around it.
    key: String,
    /// Words up to and with its own.
    words: usize,
    /// Whether its word ends with it.
    is_last: bool,
}

/// The words of a run that no mark interrupts, as atoms.
#[derive(Debug)]
pub(super) struct Cursor {
    atoms: Vec<Atom>,
    /// Whether words may follow the last atom.
    is_open: bool,
    /// Whether a rule asked for them.
    is_wanting: Cell<bool>,
}

/// A word without white space and marks around it; the full stops of `a.m.` belong to it.
pub(super) fn bare(word: &str) -> &str {
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let end = word.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
    let is_abbreviation = end > 1 && word[..end].contains('.') && word[end..].starts_with('.');
    &word[..end + usize::from(is_abbreviation)]
}

/// White space and marks before a word, and marks after it.
pub(super) fn around(word: &str) -> (&str, &str) {
    let bare = bare(word);
    match word.find(bare).filter(|_| !bare.is_empty()) {
        Some(at) => (&word[..at], &word[at + bare.len()..]),
        None => (word, ""),
    }
}

impl Cursor {
    /// The run that `words` begin with; unless it `ends` with them, words may follow.
    pub(super) fn new<'a>(words: impl Iterator<Item = &'a str>, ends: bool) -> Self {
        let (mut atoms, mut is_open) = (Vec::new(), !ends);
        for (at, word) in words.enumerate() {
            let (before, after) = around(word);
            let is_joined = !before.starts_with(char::is_whitespace) || !before.trim().is_empty();
            let key = bare(word).to_lowercase();
            if at == MAX_WORDS || at > 0 && is_joined || key.is_empty() {
                is_open = false;
                break;
            }
            let last = key.matches('-').count();
            atoms.extend(key.split('-').enumerate().map(|(part, key)| Atom {
                key: key.to_owned(),
                words: at + 1,
                is_last: part == last,
            }));
            if !after.is_empty() {
                is_open = false;
                break;
            }
        }
        is_open &= atoms.last().is_none_or(|atom| atom.words < MAX_WORDS);
        Self { atoms, is_open, is_wanting: Cell::new(false) }
    }

    /// The atom at a place; `None` behind the run.
    pub(super) fn key(&self, at: usize) -> Option<&str> {
        if at >= self.atoms.len() && self.is_open {
            self.is_wanting.set(true);
        }
        self.atoms.get(at).map(|atom| atom.key.as_str())
    }

    /// The place behind `keys`, if they are at a place.
    pub(super) fn after(&self, at: usize, keys: &[&str]) -> Option<usize> {
        let is_there = keys.iter().enumerate().all(|(n, key)| self.key(at + n) == Some(key));
        is_there.then_some(at + keys.len())
    }

    /// Words before a place; `None` within one.
    pub(super) fn words(&self, end: usize) -> Option<usize> {
        self.atoms.get(end.checked_sub(1)?).filter(|atom| atom.is_last).map(|atom| atom.words)
    }

    /// Whether what was asked for depends on words that have not come.
    pub(super) fn is_wanting(&self) -> bool {
        self.is_wanting.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_a_mark_and_waits_only_where_it_is_asked_to() {
        let cursor = Cursor::new([" Twenty-five", " p.m.", " well-known,", " then"].into_iter(), false);
        let keys: Vec<_> = (0..6).map_while(|at| cursor.key(at)).collect();
        assert_eq!(keys, ["twenty", "five", "p.m.", "well", "known"]);
        assert_eq!([0, 1, 2, 3].map(|end| cursor.words(end)), [None, None, Some(1), Some(2)]);
        assert!(!cursor.is_wanting());
        let cursor = Cursor::new([" ten"].into_iter(), false);
        assert!(cursor.key(0).is_some() && !cursor.is_wanting() && cursor.key(1).is_none());
        assert!(cursor.is_wanting());
        let cursor = Cursor::new(std::iter::repeat_n(" ten", 40), false);
        assert!(cursor.key(MAX_WORDS).is_none() && !cursor.is_wanting(), "a run is bounded");
    }

    #[test]
    fn marks_around_a_word() {
        for (word, parts) in [
            (" (ten),", (" (", "),")),
            (" p.m.", (" ", "")),
            (" p.m.,", (" ", ",")),
            (" end.", (" ", ".")),
            (" …", (" …", "")),
            ("", ("", "")),
        ] {
            assert_eq!(around(word), parts, "{word}");
        }
    }
}
