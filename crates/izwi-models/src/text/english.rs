//! The English front end: text to the phonemes of its sentences, in misaki's alphabet.
//!
//! Puts the steps of this folder in order. Knows no vocabulary and no family.

use std::path::Path;
use std::sync::OnceLock;

use rayon::prelude::*;
use regex::Regex;

use super::alignment::spoken_ends;
use super::emoji::EmojiNames;
use super::front_end::{FrontEnd, FrontEndError};
use super::ipa;
use super::markup::Markup;
use super::normalise::Normaliser;
pub(crate) use super::phonemes::Accent;
use super::phonemes::{LetterNames, Phonemiser, UnknownWords, WordPhonemes};
use super::sentences;
use super::units::Sentence;
use super::unknown_word_net::UnknownWordNet;
use izwi_nn::Error;

/// Unusual characters of a text that are tried for their sound.
pub(crate) const MAX_UNUSUAL: usize = 32;
/// Characters of the word around one that decide whether it is said.
const CONTEXT_CHARS: usize = 16;

/// Networks are trained without these: misaki's phonemes of running text hold none.
const QUOTES: [char; 3] = ['"', '“', '”'];

/// The phonemes of each sentence, and how many bytes of `text` are said after each of its words.
///
/// # Errors
/// A rule for texts is faulty.
pub(crate) fn phonemes(text: &str) -> Result<Vec<(String, Vec<usize>)>, Error> {
    static FRONT_END: OnceLock<Result<EnglishFrontEnd, String>> = OnceLock::new();
    let made = FRONT_END
        .get_or_init(|| EnglishFrontEnd::new(Box::new(LetterNames)).map_err(|error| error.to_string()));
    let front_end = made.as_ref().map_err(|error| Error::Checkpoint(error.clone()))?;
    let sentences = front_end.sentences(text).into_iter();
    Ok(sentences.map(|sentence| (sentence.phonemes, sentence.said)).collect())
}

/// Text front end: text to phonemes of sentences.
#[derive(Debug)]
pub(crate) struct EnglishFrontEnd {
    emoji: EmojiNames,
    markup: Markup,
    normaliser: Normaliser,
    phonemiser: Phonemiser,
    accent: Accent,
    /// Letters, digits and symbols outside ASCII.
    unusual: Regex,
}

impl EnglishFrontEnd {
    /// With a reader of words outside the lexicon.
    ///
    /// # Errors
    /// A rule for texts is faulty.
    pub(crate) fn new(unknown: Box<dyn UnknownWords>) -> Result<Self, Error> {
        Self::with_accent(Accent::American, unknown)
    }

    /// As [`Self::new`], in an accent.
    pub(super) fn with_accent(accent: Accent, unknown: Box<dyn UnknownWords>) -> Result<Self, Error> {
        let faulty = |_| Error::Internal("a text rule is not a regular expression");
        Ok(Self {
            emoji: EmojiNames::new().map_err(faulty)?,
            markup: Markup::new().map_err(faulty)?,
            normaliser: Normaliser::new().map_err(faulty)?,
            phonemiser: Phonemiser::with_accent(accent, unknown),
            accent,
            unusual: Regex::new(r"[[\p{L}\p{N}\p{S}]--\p{ASCII}]").map_err(faulty)?,
        })
    }

    /// Plain lines, with names in place of emoji.
    fn plain(&self, text: &str) -> String {
        self.markup.strip(&self.emoji.name(text))
    }

    /// The words of a sentence as they are spoken, and their phonemes.
    fn sentence(&self, sentence: &str) -> (String, Vec<WordPhonemes>) {
        let spoken = self.normaliser.normalise(sentence);
        let phonemes = self.phonemiser.phonemes(&spoken);
        (spoken, phonemes)
    }

    /// Characters of `text` that nothing is said for, each once, as far as they are among the first [`MAX_UNUSUAL`]
    /// unusual ones.
    pub(crate) fn unspoken(&self, text: &str) -> String {
        let phonemes = |text: &str| joined(&self.sentence(&self.plain(text)).1);
        let (mut seen, mut unspoken) = (Vec::new(), String::new());
        for found in self.unusual.find_iter(text) {
            let unusual = found.as_str();
            if seen.len() == MAX_UNUSUAL {
                break;
            }
            if seen.contains(&unusual) {
                continue;
            }
            seen.push(unusual);
            let context = |c: &char| !c.is_whitespace();
            let before: Vec<char> =
                text[..found.start()].chars().rev().take(CONTEXT_CHARS).take_while(context).collect();
            let before: String = before.into_iter().rev().collect();
            let after: String = text[found.end()..].chars().take(CONTEXT_CHARS).take_while(context).collect();
            if !phonemes(unusual).contains(char::is_alphabetic)
                && phonemes(&format!("{before}{unusual}{after}")) == phonemes(&format!("{before}{after}"))
            {
                unspoken.push_str(unusual);
            }
        }
        unspoken
    }

    /// The sentences of `text`.
    pub(crate) fn sentences(&self, text: &str) -> Vec<Sentence> {
        // Emoji alone are silent.
        let has_words = text.contains(char::is_alphanumeric);
        let plain = if has_words { self.plain(text) } else { self.markup.strip(text) };
        let sentences = sentences::split(&plain).into_par_iter().map(|sentence| self.sentence(sentence));
        let sentences: Vec<(String, Vec<WordPhonemes>)> = sentences.collect();
        let spoken: Vec<&str> = sentences.iter().flat_map(|(spoken, _)| spoken.split_whitespace()).collect();
        let ends = spoken_ends(text, &spoken);
        let mut at = 0;
        let sentences = sentences.iter().map(|(spoken, words)| {
            let ends = &ends[at..][..spoken.split_whitespace().count()];
            at += ends.len();
            let said = words.iter().filter_map(|word| ends.get(word.word).copied()).collect();
            Sentence { said, phonemes: joined(words) }
        });
        sentences.collect()
    }
}

impl FrontEnd for EnglishFrontEnd {
    fn sentences(&self, text: &str) -> Result<Vec<Sentence>, FrontEndError> {
        Ok(Self::sentences(self, text))
    }

    fn own_symbols(&self, phonemes: &str) -> String {
        ipa::english(phonemes, self.accent)
    }

    fn unspoken(&self, text: &str) -> String {
        Self::unspoken(self, text)
    }
}

/// The phonemes of all words, separated by single spaces.
fn joined(words: &[WordPhonemes]) -> String {
    let phonemes: Vec<&str> = words.iter().map(|word| word.phonemes.as_str()).collect();
    phonemes.join(" ").replace(QUOTES, "")
}

/// The network for unknown words, or letter names if the checkpoint has none.
pub(crate) fn unknown_words(folder: &Path) -> Result<Box<dyn UnknownWords>, Error> {
    if folder.join("oov.safetensors").exists() {
        return Ok(Box::new(UnknownWordNet::load(folder)?));
    }
    tracing::warn!(folder = %folder.display(), "no oov.safetensors: unknown words will be spelled letter by letter");
    Ok(Box::new(LetterNames))
}
