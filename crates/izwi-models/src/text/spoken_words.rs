//! The words of a text that is aligned with a recording.
//!
//! Source: the Python package `qwen-asr` 0.0.6. Two differences: Japanese is cut where its script changes, and Korean at spaces
//! alone; the package has a tagger and a dictionary for them. Knows no tensor and no family.

use std::ops::Range;

use regex::Regex;

use izwi_nn::Error;

/// Whether a character separates words: white space, and the separators of ASCII, as Python has it.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// A word without its marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpokenWord {
    pub(crate) text: String,
    /// From its first to its last letter, in bytes of the transcript.
    pub(crate) place: Range<usize>,
}

/// What a letter is cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Ideograph,
    Hiragana,
    Katakana,
    Other,
}

impl Script {
    fn of(letter: &str) -> Self {
        match letter.chars().next().unwrap_or_default() {
            '\u{3040}'..='\u{309f}' => Self::Hiragana,
            '\u{30a0}'..='\u{30ff}' => Self::Katakana,
            '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{f900}'..='\u{faff}' => Self::Ideograph,
            '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2ceaf}' => Self::Ideograph,
            _ => Self::Other,
        }
    }
}

/// Finds the words of transcripts.
#[derive(Debug)]
pub(crate) struct WordFinder {
    /// A character that is said.
    letter: Regex,
}

impl WordFinder {
    pub(crate) fn new() -> Result<Self, Error> {
        let letter = Regex::new(r"[\p{L}\p{N}']");
        Ok(Self { letter: letter.map_err(|_| Error::Internal("the pattern of a letter is faulty"))? })
    }

    /// The words of a text in the language of a code.
    pub(crate) fn words(&self, text: &str, language: Option<&str>) -> Vec<SpokenWord> {
        let is_japanese = language == Some("ja");
        let mut words: Vec<SpokenWord> = Vec::new();
        let mut piece = 0; // end of the last letter that the next may continue
        let mut last = Script::Ideograph;
        for letter in self.letter.find_iter(text) {
            let script = Script::of(letter.as_str());
            let continues = match (is_japanese, script) {
                (true, _) => script == last,
                (false, Script::Ideograph) => false,
                (false, _) => last != Script::Ideograph,
            };
            let is_near = !text[piece..letter.start()].contains(is_space);
            match words.last_mut().filter(|_| continues && is_near) {
                Some(word) => {
                    word.text.push_str(letter.as_str());
                    word.place.end = letter.end();
                }
                None => words.push(SpokenWord { text: letter.as_str().to_owned(), place: letter.range() }),
            }
            (piece, last) = (letter.end(), script);
        }
        words
    }
}

/// The text cut into its words: a space belongs to the word after it, marks without one to the word before.
pub(crate) fn cut<'a>(text: &'a str, words: &[SpokenWord]) -> Vec<&'a str> {
    let mut start = 0;
    let ends = words.windows(2).map(|pair| {
        let between = pair[0].place.end..pair[1].place.start;
        between.start + text[between.clone()].find(is_space).unwrap_or(between.len())
    });
    let ends = ends.chain(words.last().map(|_| text.len()));
    ends.map(|end| {
        let word = &text[start..end];
        start = end;
        word
    })
    .collect()
}
