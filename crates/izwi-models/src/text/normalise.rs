//! Numbers, dates, times, money, units, abbreviations and symbols as the words a reader would say.
//!
//! One sentence at a time, American English. Everything comes out in words but what the lexicon knows as it is written: `FBI`,
//! `A.M.`, `etc.` Knows no sounds.

use super::calendar::{clock, dates, durations, years};
use super::figures::{figures, idioms, ranges, telephone};
use super::measures::{degrees, measures};
use super::money::{continental, money};
use super::names::{names, places, romans};
use super::numbers::numbers;
use super::rewrite::Rule;
use super::technical::{mathematics, technical};
use super::words::{RELATIONS, SYMBOLS};

/// Characters, and others that mean the same.
const SAME: [(char, &str); 26] = [
    ('’', "'"),
    ('‘', "'"),
    ('‒', "-"),
    ('‑', "-"),
    ('―', "—"),
    ('⁄', "/"),
    ('℃', "°C"),
    ('℉', "°F"),
    ('…', "…"),
    ('½', " 1/2"),
    ('⅓', " 1/3"),
    ('⅔', " 2/3"),
    ('¼', " 1/4"),
    ('¾', " 3/4"),
    ('⅕', " 1/5"),
    ('⅖', " 2/5"),
    ('⅗', " 3/5"),
    ('⅘', " 4/5"),
    ('⅙', " 1/6"),
    ('⅚', " 5/6"),
    ('⅛', " 1/8"),
    ('⅜', " 3/8"),
    ('⅝', " 5/8"),
    ('⅞', " 7/8"),
    ('＄', "$"),
    ('￡', "£"),
];

/// The rules, compiled.
#[derive(Debug, Clone)]
pub struct Normaliser {
    rules: Vec<Rule>,
}

impl Normaliser {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A pattern is faulty.
    pub fn new() -> Result<Self, regex::Error> {
        let steps = [
            idioms()?,
            technical()?,
            continental()?,
            clock()?,
            durations()?,
            dates()?,
            years()?,
            telephone()?,
            places()?,
            money()?,
            ranges()?,
            degrees()?,
            measures()?,
            names()?,
            romans()?,
            figures()?,
            mathematics()?,
            numbers()?,
        ];
        Ok(Self { rules: steps.into_iter().flatten().collect() })
    }

    /// `text` in words, on one line, single spaces, none before punctuation.
    pub fn normalise(&self, text: &str) -> String {
        let straight = plain_characters(text);
        let straight = straight.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = self.rules.iter().fold(straight, |text, rule| rule.apply(&text));
        tidy_spaces(&symbols_in_words(&words))
    }
}

fn plain_characters(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match SAME.iter().find(|(written, _)| *written == c) {
            Some((_, same)) => plain.push_str(same),
            None => plain.push(c),
        }
    }
    plain
}

fn symbols_in_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let between = !out.trim_end().is_empty() && rest.peek().is_some();
        let relation = RELATIONS.iter().find(|(symbol, _)| *symbol == c && between);
        match relation.or_else(|| SYMBOLS.iter().find(|(symbol, _)| *symbol == c)) {
            Some((_, reading)) => out.extend([" ", reading, " "]),
            None => out.push(c),
        }
    }
    out
}

fn tidy_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let clings =
            word.starts_with([',', '.', ';', ':', '!', '?']) && !word.ends_with(|c: char| c.is_numeric());
        if !out.is_empty() && !clings {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::emoji::EmojiNames;
    use crate::text::markup::Markup;
    use crate::text::sentences;

    /// What is written, what is said, of what kind; `fails` marks those that are not said so yet.
    const CASES: &str = include_str!("normalise/cases.tsv");
    const MAX_FAILURES: usize = 10;

    /// All that is done to a text before its sounds.
    struct Reader(EmojiNames, Markup, Normaliser);

    impl Reader {
        fn new() -> Self {
            Self(EmojiNames::new().unwrap(), Markup::new().unwrap(), Normaliser::new().unwrap())
        }

        fn read(&self, text: &str) -> String {
            let plain = self.1.strip(&self.0.name(text));
            sentences::split(&plain)
                .into_iter()
                .map(|sentence| self.2.normalise(sentence))
                .collect::<Vec<_>>()
                .join(" ")
        }
    }

    /// Words without hyphens, whose first letters are small unless others are not.
    fn words(text: &str) -> String {
        let text = text.replace('-', " ");
        let small = |word: &str| {
            let at = word.find(char::is_alphanumeric).unwrap_or(0);
            let (marks, word) = word.split_at(at);
            let mut letters = word.chars();
            let first: String = letters.next().into_iter().flat_map(char::to_lowercase).collect();
            let is_small = !letters.as_str().contains(char::is_uppercase);
            if is_small { format!("{marks}{first}{}", letters.as_str()) } else { format!("{marks}{word}") }
        };
        text.split_whitespace().map(small).collect::<Vec<_>>().join(" ")
    }

    fn cases() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        CASES.lines().map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [written, said, _kind, marks @ ..] = &fields[..] else { panic!("{line}") };
            (*written, *said, *marks == ["fails"])
        })
    }

    #[test]
    fn the_table_is_read_as_it_says() {
        let reader = Reader::new();
        let (mut wrong, mut failing, mut all) = (Vec::new(), 0, 0);
        for (written, said, fails) in cases() {
            let ours = reader.read(written);
            all += 1;
            failing += usize::from(fails);
            if (words(&ours) == words(said)) == fails {
                wrong.push(format!(
                    "{written}\n  expected{} {said}\n  read     {ours}",
                    if fails { " not" } else { "" }
                ));
            }
        }
        assert!(wrong.is_empty(), "{}\n{} of {all}", wrong.join("\n"), wrong.len());
        assert!(all >= 1_000 && failing <= MAX_FAILURES, "{failing} of {all} fail");
    }

    #[test]
    fn what_is_read_once_stays_as_it_is() {
        let reader = Reader::new();
        for (written, said, _) in cases() {
            let ours = reader.read(written);
            assert_eq!(reader.read(&ours), ours, "{written}");
            assert_eq!(words(&reader.read(said)), words(said), "{written}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in any::<String>(), seed in "[0-9:/.,$£%a-zA-Z °#+~=<>^²½@'\"()xX×–-]{0,80}") {
            thread_local! {
                static READER: Reader = Reader::new();
            }
            for text in [text, seed] {
                let read = READER.with(|reader| reader.2.normalise(&text));
                prop_assert!(!read.contains("  "), "{read}");
                prop_assert!(!read.contains(|c: char| c.is_ascii_digit()), "{read}");
            }
        }

        #[test]
        fn no_word_is_lost(words in prop::collection::vec("[a-z]{4,9}|[A-Z][a-z]{5,9}|[0-9]{1,6}|[$€]?[0-9]{1,4}([.,][0-9]{2})?", 0..20)) {
            thread_local! {
                static READER: Reader = Reader::new();
            }
            let read = READER.with(|reader| reader.2.normalise(&words.join(" ")));
            let mut read = read.split(' ');
            for word in words.iter().filter(|word| word.starts_with(char::is_alphabetic)) {
                prop_assert!(read.any(|read| read.trim_end_matches(['.', ',']) == word), "{word} of {words:?}");
            }
        }
    }
}
