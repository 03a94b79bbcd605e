//! Leaves markup out of a text that arrives in pieces, where a mark may be cut anywhere, and says the words of lexicons.

use super::marks::{self, Kind};
use super::tell;
use crate::text::lexicon::{Lexicons, WordReplacer};

/// Leaves markup out of a text that arrives in pieces, and keeps what was left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// The beginning of what may be a mark.
    held: String,
    told: Vec<String>,
    /// The last character that was passed on.
    last: Option<char>,
    /// Whether a mark came after it.
    is_behind_mark: bool,
    replacer: WordReplacer,
}

impl Filter {
    /// With lexicons for a text that is English or not.
    pub fn with_lexicons(lexicons: Lexicons, is_english: bool) -> Self {
        Self { replacer: WordReplacer::new(lexicons, is_english), ..Self::default() }
    }

    /// The text that can be passed on with this piece.
    pub fn push(&mut self, piece: &str, is_last: bool) -> String {
        let text = std::mem::take(&mut self.held) + piece;
        let mut marks = if is_last { marks::find(&text) } else { marks::find_in_beginning(&text) };
        let mut plain = String::with_capacity(text.len());
        let mut copied = 0;
        for mark in &mut marks {
            self.pass(&text[copied..mark.range.start], &mut plain);
            copied = mark.range.end;
            self.is_behind_mark = true;
            if let Kind::Sounds { word, .. } = &mark.kind {
                self.pass(&text[word.clone()], &mut plain);
            }
            tell(&mut self.told, &text[mark.range]);
        }
        let end = marks.open.unwrap_or(text.len());
        self.pass(&text[copied..end], &mut plain);
        text[end..].clone_into(&mut self.held);
        let Self { replacer, told, .. } = self;
        replacer.push(&plain, is_last, |word| tell(told, word))
    }

    /// Bytes that wait for the end of what may be a mark or a word of a lexicon.
    pub fn held_bytes(&self) -> usize {
        self.held.len() + self.replacer.held_bytes()
    }

    /// How many times as long as it is written a text may become.
    pub fn expansion(&self) -> usize {
        self.replacer.expansion()
    }

    /// The marks that were left out since the last call, each once.
    pub fn take_told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    /// Passes text on. Words on both sides of a mark stay two.
    fn pass(&mut self, text: &str, plain: &mut String) {
        let text = match self.last {
            None if self.is_behind_mark => text.trim_start(),
            _ => text,
        };
        let Some(first) = text.chars().next() else { return };
        if self.is_behind_mark && self.last.is_some_and(|last| joins(last, first)) {
            plain.push(' ');
        }
        plain.push_str(text);
        self.last = text.chars().next_back();
        self.is_behind_mark = false;
    }
}

/// Whether the words of two stretches of text would become one.
pub(super) fn joins(last: char, first: char) -> bool {
    let opens = |c: char| c.is_whitespace() || "([{“‘«\"'¿¡".contains(c);
    let clings = |c: char| c.is_whitespace() || ".,;:!?…)]}”’»\"'%".contains(c);
    !opens(last) && !clings(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_are_left_out_and_told_once() {
        let mut filter = Filter::default();
        let plain = ["One<bre", "ak time=\"1s\"/>two. [pau", "se] a{to", "|/tə/} b [pause]"];
        let plain = plain.map(|piece| filter.push(piece, false)).concat() + &filter.push("", true);
        assert_eq!(plain, "One two.  a to b ");
        assert_eq!(filter.take_told(), ["<break time=\"1s\"/>", "[pause]", "{to|/tə/}"]);
    }

    proptest! {
        #[test]
        fn pieces_give_the_words_of_the_whole(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "<break time=\"0.5s\"/>", "<break time=", "<!--", "-->", "[pause 2s]", "<speak>", "</speak>", "word", " ", ". ", "<", "[", "é", "{",
                    "{to|/tə/}",
                ]),
                0..12,
            ),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let text = parts.concat();
            let within = cuts.into_iter().map(|at| at.min(text.len()));
            let mut cuts: Vec<usize> = within.filter(|&at| text.is_char_boundary(at)).collect();
            cuts.sort_unstable();
            let mut filter = Filter::default();
            let (mut got, mut from) = (String::new(), 0);
            for at in cuts {
                got += &filter.push(&text[from..at], false);
                from = at;
            }
            got += &filter.push(&text[from..], true);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&got), words(&Filter::default().push(&text, true)));
        }
    }
}
