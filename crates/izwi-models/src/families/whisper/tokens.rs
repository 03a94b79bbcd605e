//! The vocabulary: text to ids and back, and the special ids by their names.
//!
//! Owns `tokenizer.json`. Has no constant ids: they differ between checkpoints. Knows no tensor.

use std::path::Path;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::keywords::TokenBytes;
use crate::text::{byte_pairs, tokenizer_file};
use izwi_nn::Error;

/// Replaces bytes that are not valid UTF-8.
const REPLACEMENT: char = '\u{fffd}';
/// A timestamp token counts steps of this many seconds: one encoder position.
pub(super) const TIME_STEP_S: f64 = 0.02;

/// Text and special tokens of one checkpoint.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    /// The bytes of text tokens.
    pub(super) bytes: Arc<TokenBytes>,
    pub(super) size: usize,
    /// `<|endoftext|>`: every id below it is text.
    pub(super) end: u32,
    /// `<|startoftranscript|>`.
    pub(super) start: u32,
    pub(super) transcribe: u32,
    pub(super) translate: u32,
    /// `<|startofprev|>`: starts the previous text.
    pub(super) previous: u32,
    pub(super) no_speech: u32,
    pub(super) no_timestamps: u32,
    /// `<|0.00|>`: the first timestamp; the others follow to the end of the vocabulary.
    pub(super) first_timestamp: u32,
    /// Language codes and their tokens, in the order of the tokens.
    pub(super) languages: Vec<(String, u32)>,
}

impl Vocabulary {
    /// Reads `tokenizer.json` for a network of `size` tokens.
    ///
    /// # Errors
    /// The file is unreadable, lacks a special token or does not fit the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let tokenizer = tokenizer_file::open(&path, size)?;
        let id = |names: &[&str]| {
            let found = names.iter().find_map(|name| tokenizer.token_to_id(name));
            found.ok_or_else(|| fault(format!("has no token {}", names.join(" or "))))
        };
        let no_timestamps = id(&["<|notimestamps|>"])?;
        // Older tokenizer files end before the timestamps, which have always followed this token.
        let first_timestamp = tokenizer.token_to_id("<|0.00|>").unwrap_or(no_timestamps.saturating_add(1));
        let end = id(&["<|endoftext|>"])?;
        let mut bytes = byte_pairs::token_bytes(&tokenizer);
        bytes.truncate(end as usize);
        let vocabulary = Self {
            size,
            end,
            start: id(&["<|startoftranscript|>"])?,
            transcribe: id(&["<|transcribe|>"])?,
            translate: id(&["<|translate|>"])?,
            previous: id(&["<|startofprev|>"])?,
            no_speech: id(&["<|nospeech|>", "<|nocaptions|>"])?,
            no_timestamps,
            first_timestamp,
            languages: languages(&tokenizer),
            bytes: Arc::new(TokenBytes::new(bytes)),
            tokenizer,
        };
        let highest = vocabulary.languages.iter().map(|(_, id)| *id).chain([first_timestamp]).max();
        match highest {
            Some(id) if id as usize >= size => {
                Err(fault(format!("has a token of id {id}, the network knows {size}")))
            }
            _ => Ok(vocabulary),
        }
    }

    /// Whether a token is a piece of text.
    pub(super) fn is_text(&self, id: u32) -> bool {
        id < self.end
    }

    /// The timestamp of a token in steps of [`TIME_STEP_S`].
    pub(super) fn timestamp(&self, id: u32) -> Option<usize> {
        id.checked_sub(self.first_timestamp).map(|steps| steps as usize)
    }

    /// Ids of a text, without special tokens.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let ids = self.tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec());
        let mut ids = ids.unwrap_or_default();
        ids.retain(|&id| self.is_text(id));
        ids
    }

    /// Text of the text ids; invalid UTF-8 becomes U+FFFD.
    pub(super) fn text(&self, ids: &[u32]) -> String {
        let text: Vec<u32> = ids.iter().copied().filter(|&id| self.is_text(id)).collect();
        self.tokenizer.decode(&text, false).unwrap_or_default()
    }

    /// The token of a language code.
    pub(super) fn language(&self, code: &str) -> Option<u32> {
        self.languages.iter().find(|(known, _)| known == code).map(|(_, id)| *id)
    }

    /// The code of a language token.
    pub(super) fn code(&self, id: u32) -> Option<&str> {
        self.languages.iter().find(|(_, known)| *known == id).map(|(code, _)| code.as_str())
    }

    /// Splits text tokens into words with their number of tokens. In unspaced languages a word is the shortest run of
    /// tokens that is whole characters. The rules are openai-whisper's:
    /// <https://github.com/openai/whisper/blob/main/whisper/tokenizer.py> (`split_to_word_tokens`).
    pub(super) fn words(&self, ids: &[u32], unspaced: bool) -> Vec<(String, usize)> {
        let pieces = self.pieces(ids);
        if unspaced {
            return pieces;
        }
        let mut words: Vec<(String, usize)> = Vec::new();
        for (piece, count) in pieces {
            let own = piece.starts_with(' ') || is_punctuation(piece.trim());
            match words.last_mut() {
                Some((word, tokens)) if !own => {
                    word.push_str(&piece);
                    *tokens += count;
                }
                _ => words.push((piece, count)),
            }
        }
        words
    }

    /// The shortest runs of tokens that are whole characters.
    fn pieces(&self, ids: &[u32]) -> Vec<(String, usize)> {
        let whole: Vec<char> = self.text(ids).chars().collect();
        let mut pieces = Vec::new();
        let (mut begin, mut offset) = (0, 0);
        for end in 1..=ids.len() {
            let piece = self.text(&ids[begin..end]);
            // A replacement character that the whole text has too is invalid text, not half a character.
            let broken = piece.chars().position(|c| c == REPLACEMENT);
            let complete = broken.is_none_or(|at| whole.get(offset + at) == Some(&REPLACEMENT));
            if complete || end == ids.len() {
                offset += piece.chars().count();
                pieces.push((piece, end - begin));
                begin = end;
            }
        }
        pieces
    }
}

/// Python's `text in string.punctuation`: empty, or a run of ASCII's marks in their order.
fn is_punctuation(text: &str) -> bool {
    r##"!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"##.contains(text)
}

/// Codes and ids of the tokens `<|xx|>` and `<|xxx|>`.
fn languages(tokenizer: &Tokenizer) -> Vec<(String, u32)> {
    let code = |name: &str| {
        let code = name.strip_prefix("<|")?.strip_suffix("|>")?;
        let is_code = (2..=3).contains(&code.len()) && code.bytes().all(|c| c.is_ascii_lowercase());
        is_code.then(|| code.to_owned())
    };
    let added = tokenizer.get_added_tokens_decoder();
    let mut languages: Vec<_> =
        added.iter().filter_map(|(&id, token)| Some((code(&token.content)?, id))).collect();
    languages.sort_by_key(|(_, id)| *id);
    languages
}
