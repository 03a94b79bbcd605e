//! Rewrites the words of a transcript as they come.

use std::collections::VecDeque;

use izwi_types::Segment;

use super::commands::Commands;
use super::cursor::{self, Cursor};
use super::figures::figures;
use super::said::Said;

/// What a [`Writer`] does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterOptions {
    /// Whether numbers that were said become figures. English alone has rules for it.
    pub numbers: bool,
    /// Whether spoken commands such as `new line` are carried out: in English, German, French and Spanish.
    pub commands: bool,
}

/// Rewrites words as they come. Words that may become part of a run that is rewritten wait for those after them: fewer than
/// 40. What has left never changes, and does not depend on when the words came.
#[derive(Debug, Clone)]
pub struct Writer<W> {
    options: WriterOptions,
    commands: Commands<W>,
    /// Words whose commands are carried out, and which may become figures.
    waiting: VecDeque<W>,
    /// The word before them, bare and in lower case; empty after a mark.
    before: String,
    is_english: bool,
}

impl<W: Said> Writer<W> {
    /// A writer of a transcript that begins.
    pub fn new(options: WriterOptions) -> Self {
        Self {
            options,
            commands: Commands::default(),
            waiting: VecDeque::new(),
            before: String::new(),
            is_english: false,
        }
    }

    /// Takes the next words, in the language of the code `language`, and returns those that are settled. In a language without
    /// rules, words stay as they are.
    pub fn push(&mut self, words: impl IntoIterator<Item = W>, language: Option<&str>) -> Vec<W> {
        self.is_english = language == Some("en");
        let language = language.filter(|_| self.options.commands);
        let mut written = Vec::new();
        for word in words {
            self.commands.push(word, language);
            self.settle(false, &mut written);
        }
        written
    }

    /// The words that wait, settled as the last ones. The writer begins anew.
    pub fn finish(&mut self) -> Vec<W> {
        let mut written = Vec::new();
        self.settle(true, &mut written);
        *self = Self::new(self.options);
        written
    }

    /// The words that wait, as they would be if none followed.
    pub fn preview(&self) -> Vec<W> {
        self.clone().finish()
    }

    /// Whether words wait.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.commands.is_waiting()
    }

    fn settle(&mut self, ends: bool, written: &mut Vec<W>) {
        while let Some(words) = self.commands.next(ends) {
            for word in words {
                self.waiting.push_back(word);
                while self.write(false, written) {}
            }
        }
        while ends && self.write(true, written) {}
    }

    /// Writes the first words that wait. False if what they become depends on those after them, or none wait.
    fn write(&mut self, ends: bool, written: &mut Vec<W>) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let (mut count, mut text) = (1, None);
        if self.is_english && self.options.numbers {
            let cursor = Cursor::new(self.waiting.iter().map(W::text), ends);
            let found = figures(&cursor, &self.before);
            if cursor.is_wanting() {
                return false;
            }
            if let Some(found) = found {
                (count, text) = (found.words, found.text);
            }
        }
        let words: Vec<W> = self.waiting.drain(..count.min(self.waiting.len())).collect();
        let (Some(first), Some(last)) = (words.first(), words.last()) else { return false };
        let (marks, after) = (cursor::around(first.text()).0, cursor::around(last.text()).1);
        let bare = cursor::bare(last.text());
        self.before = if after.is_empty() { bare.to_lowercase() } else { String::new() };
        match text {
            Some(text) => written.push(W::merged(&words, format!("{marks}{text}{after}"))),
            None => written.extend(words),
        }
        true
    }
}

/// A segment whose numbers are in figures: its text, and its words where it has some. Its tokens stay those of what was
/// said.
pub fn normalised(mut segment: Segment, language: Option<&str>) -> Segment {
    let options = WriterOptions { numbers: true, commands: false };
    if !segment.words.is_empty() {
        let said: String = segment.words.iter().map(|word| word.text.as_str()).collect();
        let words = written(std::mem::take(&mut segment.words), options, language);
        segment.words = words;
        if said == segment.text {
            segment.text = segment.words.iter().map(|word| word.text.as_str()).collect();
            return segment;
        }
    }
    segment.text = written(words_of(&segment.text), options, language).concat();
    segment
}

fn written<W: Said>(words: Vec<W>, options: WriterOptions, language: Option<&str>) -> Vec<W> {
    let mut writer = Writer::new(options);
    let mut written = writer.push(words, language);
    written.extend(writer.finish());
    written
}

/// The words of a text, each with the white space before it, the last also with what is behind it.
pub fn words_of(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut has_letters) = (String::new(), false);
    for c in text.chars() {
        if c.is_whitespace() && has_letters {
            words.push(std::mem::take(&mut word));
            has_letters = false;
        }
        has_letters |= !c.is_whitespace();
        word.push(c);
    }
    match words.last_mut().filter(|_| !has_letters) {
        Some(last) => last.push_str(&word),
        None if word.is_empty() => {}
        None => words.push(word),
    }
    words
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
