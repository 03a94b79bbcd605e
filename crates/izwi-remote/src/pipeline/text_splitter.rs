//! Splits the text of an answer into pieces to speak; code is shown and not spoken.
//!
//! Knows no server and no model.

use izwi_core::engine::request::{first_end, plain_text, sentence_ends};

/// The fewest bytes of the first piece: a shorter one sounds cut off.
const FIRST_BYTES: usize = 12;
/// A sentence that is longer is cut at a clause.
const LONG_BYTES: usize = 160;
/// A clause that is longer is cut between words.
const MAX_BYTES: usize = 400;
/// A link that is longer is text.
const MAX_LINK_BYTES: usize = 400;

/// A piece of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// As it is written.
    pub(super) shown: String,
    /// As it is spoken; blank for what is not.
    pub(super) spoken: String,
}

/// Where pieces end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// With words, for models that take text while they speak.
    Words,
    /// With sentences; the first with a clause, so that it is heard soon.
    Clauses,
}

/// The text of an answer that is not spoken yet.
#[derive(Debug, Default)]
pub(super) struct TextSplitter {
    waiting: String,
    is_in_code: bool,
    /// Whether `waiting` begins within a line.
    is_within_line: bool,
    has_spoken: bool,
}

impl TextSplitter {
    pub(super) fn push(&mut self, text: &str) {
        self.waiting.push_str(text);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next piece, if there is enough text for one; `is_all` says that no more comes.
    pub(super) fn next(&mut self, cut: Cut, is_all: bool) -> Option<Piece> {
        if self.waiting.is_empty() {
            return None;
        }
        let fence = self.fence();
        if self.is_in_code || fence == Some(0) {
            // The line that opens or closes code, and all lines within.
            let end = if self.is_in_code { fence } else { Some(0) };
            let end = end.and_then(|at| self.waiting[at..].find('\n').map(|line| at + line + 1));
            let end = end.or(is_all.then_some(self.waiting.len()))?;
            self.is_in_code = !self.is_in_code;
            return Some(Piece { shown: self.take(end), spoken: String::new() });
        }
        let text = &self.waiting[..fence.unwrap_or(self.waiting.len())];
        let is_closed = is_all || self.is_fence(fence);
        let end = match cut {
            // The mark of a list belongs to the word after it.
            Cut::Words => first_end(text).filter(|end| text[..*end].contains(char::is_alphanumeric)),
            Cut::Clauses => self.clause_end(text),
        };
        let end = end.filter(|end| !is_open(&text[..*end]));
        let end = end.or((is_closed && !text.is_empty()).then(|| longest(text)))?;
        let shown = self.take(end);
        let spoken = plain_text(&shown);
        self.has_spoken |= spoken.chars().any(char::is_alphanumeric);
        Some(Piece { shown, spoken })
    }

    fn take(&mut self, end: usize) -> String {
        let rest = self.waiting.split_off(end);
        let taken = std::mem::replace(&mut self.waiting, rest);
        self.is_within_line = !taken.ends_with('\n');
        taken
    }

    /// Where a line begins that opens or closes code, or may.
    fn fence(&self) -> Option<usize> {
        let lines = std::iter::once((0, self.is_within_line));
        let breaks = self.waiting.match_indices('\n').map(|(at, _)| (at + 1, false));
        lines.chain(breaks).filter(|(_, within)| !within).map(|(at, _)| at).find(|&at| {
            let line = self.waiting[at..].trim_start_matches([' ', '\t']);
            let is_mark = |mark: &str| {
                line.starts_with(mark) || (!line.is_empty() && !line.contains('\n') && mark.starts_with(line))
            };
            is_mark("```") || is_mark("~~~")
        })
    }

    /// Whether a fence is one for sure, so that the text before it is complete.
    fn is_fence(&self, fence: Option<usize>) -> bool {
        fence.is_some_and(|at| {
            let line = self.waiting[at..].trim_start_matches([' ', '\t']);
            line.starts_with("```") || line.starts_with("~~~")
        })
    }

    fn clause_end(&self, text: &str) -> Option<usize> {
        let sentences = sentence_ends(text);
        let has_words = |end: &usize| text[..*end].trim().len() >= FIRST_BYTES;
        if !self.has_spoken {
            let clauses = clause_ends(text);
            return sentences.into_iter().chain(clauses).filter(has_words).min();
        }
        let last = sentences.into_iter().take_while(|end| *end <= MAX_BYTES).last();
        let long = || {
            (text.len() > LONG_BYTES).then(|| clause_ends(text).into_iter().rfind(|end| *end <= MAX_BYTES))
        };
        last.or_else(|| long().flatten()).or_else(|| (text.len() > MAX_BYTES).then(|| longest(text)))
    }
}

/// The end of a piece that is not too long, between words where there are any.
fn longest(text: &str) -> usize {
    if text.len() <= MAX_BYTES {
        return text.len();
    }
    let most = text.floor_char_boundary(MAX_BYTES);
    text[..most].rfind(char::is_whitespace).filter(|&end| end > 0).unwrap_or(most)
}

/// Where clauses end.
fn clause_ends(text: &str) -> Vec<usize> {
    let places = text.char_indices().zip(text.chars().skip(1).map(Some).chain([None]));
    let ends = places.filter(|((_, mark), after)| match mark {
        ',' | ';' | ':' | '–' | '—' => after.is_some_and(char::is_whitespace),
        '、' | '，' | '；' | '：' => true,
        _ => false,
    });
    ends.map(|((at, mark), _)| at + mark.len_utf8()).collect()
}

/// Whether a text ends within a link.
fn is_open(text: &str) -> bool {
    let Some(at) = text.rfind('[') else { return false };
    let link = &text[at..];
    if link.len() > MAX_LINK_BYTES || link.contains('\n') {
        return false;
    }
    match link.find(']') {
        None => true,
        Some(end) => link[end + 1..].starts_with('(') && !link[end..].contains(')'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a text that comes character by character.
    fn pieces(text: &str, cut: Cut) -> Vec<Piece> {
        let mut splitter = TextSplitter::default();
        let mut pieces = Vec::new();
        for character in text.chars() {
            splitter.push(&character.to_string());
            pieces.extend(std::iter::from_fn(|| splitter.next(cut, false)));
        }
        pieces.extend(std::iter::from_fn(|| splitter.next(cut, true)));
        assert!(splitter.is_empty());
        assert_eq!(pieces.iter().map(|piece| piece.shown.as_str()).collect::<String>(), text);
        pieces
    }

    fn spoken(text: &str, cut: Cut) -> Vec<String> {
        let spoken = pieces(text, cut).into_iter().map(|piece| piece.spoken.trim().to_owned());
        spoken.filter(|text| !text.is_empty()).collect()
    }

    #[test]
    fn the_first_clause_is_spoken_at_once_and_then_sentences() {
        let text = "Well, my friend, that is easy. One apple, two pears. And this is the end";
        assert_eq!(
            spoken(text, Cut::Clauses),
            ["Well, my friend,", "that is easy.", "One apple, two pears.", "And this is the end"]
        );
        let long = "word ".repeat(200);
        assert!(pieces(&long, Cut::Clauses).iter().all(|piece| piece.shown.len() <= MAX_BYTES + 1));
    }

    #[test]
    fn code_is_shown_and_not_spoken_and_marks_are_neither() {
        let text = "Use **this** code:\n```rust\nlet x = 1;\n```\n- See [the docs, part two](https://example.com/a).\n";
        for cut in [Cut::Clauses, Cut::Words] {
            let all = spoken(text, cut).join(" ");
            assert_eq!(all, "Use this code: See the docs, part two.", "{cut:?}");
        }
        assert_eq!(spoken("Open:\n```\ncode without an end", Cut::Clauses), ["Open:"]);
        assert_eq!(spoken("A ` mark at the end `", Cut::Clauses), ["A  mark at the end"]);
    }
}
