//! A text that is given, as tokens, and which of its words a transcript comes from.
//!
//! Knows no tensor and no state.

use std::ops::Range;
use std::sync::Arc;

use super::tokens::Vocabulary;
use crate::given_text::{GivenText, GivenWord};
use crate::text::heard::heard;
use izwi_types::InputError;

/// A text as tokens.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) text: Arc<GivenText>,
    /// Each word as in the training.
    pub(super) words: Arc<[GivenTokens]>,
    /// Each word letter by letter.
    letters: Arc<[GivenTokens]>,
    /// Whether a window holds the recording.
    pub(super) is_whole: bool,
}

/// The tokens of a word.
#[derive(Debug)]
pub(super) struct GivenTokens {
    pub(super) tokens: Vec<u32>,
    /// Those of its letters; none if it is the name of a special token.
    pub(super) said: Range<usize>,
}

impl GivenTokens {
    /// A word as in the training.
    fn of(word: &GivenWord, vocabulary: &Vocabulary) -> Self {
        Self::new(word, vocabulary.encode(&word.text), vocabulary)
    }

    /// A word letter by letter; the space goes with the first.
    fn of_letters(word: &GivenWord, vocabulary: &Vocabulary) -> Self {
        let first =
            word.text.chars().take(1 + usize::from(word.text.starts_with(' '))).map(char::len_utf8).sum();
        let (first, rest) = word.text.split_at(first);
        let mut tokens = vocabulary.encode(first);
        tokens.extend(rest.chars().flat_map(|letter| vocabulary.encode(letter.encode_utf8(&mut [0; 4]))));
        Self::new(word, tokens, vocabulary)
    }

    fn new(word: &GivenWord, tokens: Vec<u32>, vocabulary: &Vocabulary) -> Self {
        let mut end = 0;
        let has_letters = |token: &u32| {
            let start = end;
            end += vocabulary.bytes.of(*token).len();
            start < word.letters.end && word.letters.start < end
        };
        let letters: Vec<bool> = tokens.iter().map(has_letters).collect();
        let first = letters.iter().position(|is_letter| *is_letter).unwrap_or(0);
        let end = letters.iter().rposition(|is_letter| *is_letter).map_or(first, |last| last + 1);
        Self { tokens, said: first..end }
    }
}

impl Given {
    /// A text for a network with passes of `positions`.
    ///
    /// # Errors
    /// A window holds the recording, but a pass does not hold the text.
    pub(super) fn new(
        text: GivenText,
        is_whole: bool,
        positions: usize,
        vocabulary: &Vocabulary,
    ) -> Result<Self, InputError> {
        let mut spaced = text.words.clone();
        // In the training every text begins with a space, where the language has some.
        if let [first, rest @ ..] = &mut spaced[..]
            && !first.text.starts_with(' ')
            && rest.first().is_none_or(|second| second.text.starts_with(' '))
        {
            first.text.insert(0, ' ');
            first.letters = first.letters.start + 1..first.letters.end + 1;
        }
        let words: Vec<_> = spaced.iter().map(|word| GivenTokens::of(word, vocabulary)).collect();
        let letters: Vec<_> = spaced.iter().map(|word| GivenTokens::of_letters(word, vocabulary)).collect();
        let (count, most) = (tokens(&words).count(), positions.saturating_sub(AROUND));
        let given = Self { text: Arc::new(text), words: words.into(), letters: letters.into(), is_whole };
        if is_whole && count > most {
            let message = format!(
                "text has {count} tokens, a recording of up to 30 s at most {most}; send what is said in it"
            );
            return Err(InputError { param: "text", message });
        }
        Ok(given)
    }

    /// The words of a share as they are aligned: letter by letter, if a pass of `positions` holds that.
    pub(super) fn aligned(&self, share: Range<usize>, positions: usize) -> &[GivenTokens] {
        let letters = &self.letters[share.clone()];
        if tokens(letters).count() + AROUND <= positions { letters } else { &self.words[share] }
    }

    /// The words of `transcript`, of which a pass of `positions` holds all, from word `next` on.
    pub(super) fn heard(&self, next: usize, transcript: &str, positions: usize) -> Range<usize> {
        let words = self.text.words[next..].iter().map(|word| &word.text[word.letters.clone()]);
        let found = heard(words, transcript);
        let mut room = positions.saturating_sub(AROUND);
        let fits = |word: &GivenTokens| {
            let left = room.checked_sub(word.tokens.len());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let start = next + found.start;
        start..start + self.words[start..next + found.end].iter().map(fits).take_while(|fits| *fits).count()
    }
}

/// The tokens of words.
pub(super) fn tokens(words: &[GivenTokens]) -> impl Iterator<Item = u32> {
    words.iter().flat_map(|word| word.tokens.iter().copied())
}

/// Positions of a pass besides those of the text: what it begins with, and its end.
const AROUND: usize = 5;
