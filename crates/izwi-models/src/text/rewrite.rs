//! Rules that rewrite text: a pattern, and a function that sees the match and its neighbours.
//!
//! Owns the loop only. It stands in for lookaround, which the linear-time `regex` crate leaves out on purpose.

use std::ops::Range;

use regex::{Captures, Regex};

use super::words::{DETERMINERS, FUNCTION_WORDS};

/// How much of the text around it a rule sees, so that many matches in a long text stay cheap.
const CONTEXT_BYTES: usize = 256;

/// A match and the text around it.
#[derive(Debug)]
pub struct Found<'a> {
    groups: Captures<'a>,
    /// The character before the match.
    pub before: Option<char>,
    /// The character after the match.
    pub after: Option<char>,
    /// The text before the match, as far as it matters.
    pub left: &'a str,
    /// The text after the match, as far as it matters.
    pub right: &'a str,
}

impl<'a> Found<'a> {
    /// The text of a group; empty where it did not take part.
    pub fn group(&self, index: usize) -> &'a str {
        self.groups.get(index).map_or("", |group| group.as_str())
    }

    /// A group as a number.
    pub fn number(&self, index: usize) -> Option<u32> {
        self.group(index).parse().ok()
    }

    /// The word before the match, apart from it by spaces alone; empty where there is none.
    pub fn word_before(&self) -> &'a str {
        let left = self.left.trim_end_matches(' ');
        left.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
    }

    /// The word after the match, as [`Self::word_before`].
    pub fn word_after(&self) -> &'a str {
        let right = self.right.trim_start_matches(' ');
        right.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
    }

    /// Whether the match is part of an adjective, as in "a 5 km run": an article stands before and a noun after.
    pub fn is_before_noun(&self) -> bool {
        let noun = self.word_after();
        let is_noun = noun.starts_with(char::is_alphabetic) && !FUNCTION_WORDS.contains(&noun);
        DETERMINERS.contains(&self.word_before()) && is_noun && self.after == Some(' ')
    }

    /// Whether neither neighbour is a letter, a digit or one of `also`.
    pub fn stands_alone(&self, also: &str) -> bool {
        let inside = |c: char| c.is_alphanumeric() || c == '_' || also.contains(c);
        !self.before.is_some_and(inside) && !self.after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    }
}

/// What stands in for a match; `None` leaves it as it is.
pub type Rewrite = fn(&Found<'_>) -> Option<String>;

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    pattern: Regex,
    rewrite: Rewrite,
}

impl Rule {
    /// A rule from a pattern and what to do with its matches.
    ///
    /// # Errors
    /// The pattern is not a regular expression.
    pub fn new(pattern: &str, rewrite: Rewrite) -> Result<Self, regex::Error> {
        Ok(Self { pattern: Regex::new(pattern)?, rewrite })
    }

    /// `text` with every match rewritten; a match that is left alone is passed over whole.
    pub fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut copied = 0;
        for groups in self.pattern.captures_iter(text) {
            let Some(whole) = groups.get(0) else { continue };
            let left = near(text, whole.start().saturating_sub(CONTEXT_BYTES)..whole.start());
            let right = near(text, whole.end()..(whole.end() + CONTEXT_BYTES).min(text.len()));
            let (before, after) = (left.chars().next_back(), right.chars().next());
            if let Some(replacement) = (self.rewrite)(&Found { groups, before, after, left, right }) {
                out.push_str(&text[copied..whole.start()]);
                out.push_str(&replacement);
                copied = whole.end();
            }
        }
        out.push_str(&text[copied..]);
        out
    }
}

/// A part of a text, less the character that its end cuts.
fn near(text: &str, mut part: Range<usize>) -> &str {
    while !text.is_char_boundary(part.start) {
        part.start += 1;
    }
    while !text.is_char_boundary(part.end) {
        part.end -= 1;
    }
    text.get(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_sees_neighbours_and_may_decline() {
        let rule =
            Rule::new(r"\d+", |found| found.stands_alone(".").then(|| format!("<{}>", found.group(0))));
        assert_eq!(rule.unwrap().apply("1 a2 3.4 é5 6é 7"), "<1> a2 <3>.4 é5 6é <7>");
    }
}
