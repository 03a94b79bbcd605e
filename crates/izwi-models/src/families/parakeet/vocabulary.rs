//! Pieces of text of a checkpoint: `tokenizer.json` or `tokenizer.model`, and words made of them. Knows no tensor.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use regex::Regex;
use tokenizers::Tokenizer;

use crate::keywords::{Keywords, TokenBytes};
use crate::text::sentencepiece;
use izwi_nn::Error;

/// Begins a piece that begins a word.
const SPACE: char = '\u{2581}';
/// Bytes of the longest word that is spelt.
const MAX_LETTERS: usize = 256;
/// What an unknown piece is decoded to.
const UNKNOWN: &str = " \u{2047} ";

/// The pieces by id.
#[derive(Debug)]
pub(super) struct Vocabulary {
    pieces: Vec<Piece>,
    /// Ids of the pieces by name.
    ids: HashMap<String, u32>,
    /// The bytes of those that are text.
    bytes: Arc<TokenBytes>,
    /// Whether some are upper case.
    is_cased: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// Its bytes, with a space before a word.
    bytes: Vec<u8>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Unknown,
    Byte,
    /// A punctuation mark.
    Mark,
    /// A mark of the training format, such as `<|pnc|>`.
    Special,
}

/// A token, and the rows of the encoder that it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timed {
    pub(super) token: u32,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Natural logarithm of its probability.
    pub(super) logprob: f32,
}

/// A word: some tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimedWord {
    /// Its text as decoded by itself.
    pub(super) text: String,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Sum of the log-probabilities of its tokens, and their number.
    pub(super) logprob: f32,
    pub(super) tokens: Vec<u32>,
}

impl TimedWord {
    /// Its text after a space.
    pub(super) fn spaced(&self) -> String {
        format!(" {}", self.text.trim())
    }
}

impl Vocabulary {
    /// Reads `tokenizer.json` of a checkpoint, or else `tokenizer.model`, for a network of `size` tokens.
    ///
    /// # Errors
    /// The file is unreadable or malformed, or a token of the network is missing.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let (json, model) = (folder.join("tokenizer.json"), folder.join("tokenizer.model"));
        let path = if json.exists() || !model.exists() { json } else { model };
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let names: Vec<String> = if path.extension().is_some_and(|suffix| suffix == "model") {
            sentencepiece::names(&path)?
        } else {
            let tokenizer = Tokenizer::from_file(&path).map_err(|error| fault(error.to_string()))?;
            (0..size as u32).map_while(|id| tokenizer.id_to_token(id)).collect()
        };
        match names.get(..size) {
            Some(names) => Self::new(names.to_vec()).map_err(|error| fault(error.to_string())),
            None => Err(fault(format!("has no token {} of the network's {size}", names.len()))),
        }
    }

    fn new(names: Vec<String>) -> Result<Self, regex::Error> {
        let punctuation = Regex::new(r"\p{P}")?;
        let is_text = |name: &str| {
            let is_bracketed = |[open, close]: [char; 2]| name.starts_with(open) && name.ends_with(close);
            !is_bracketed(['<', '>']) && !is_bracketed(['[', ']']) && !name.starts_with("##")
        };
        let marks: String = names
            .iter()
            .filter(|name| is_text(name) && !name.starts_with(SPACE))
            .flat_map(|name| punctuation.find_iter(name))
            .map(|mark| mark.as_str())
            .collect();
        let piece = |name: String| {
            let kind = match byte(&name) {
                Some(byte) => return Piece { bytes: vec![byte], kind: Kind::Byte },
                None if name == "<unk>" => Kind::Unknown,
                None if name.starts_with('<') && name.ends_with('>') && name.len() > 1 => Kind::Special,
                None if !name.is_empty() && name.chars().count() == 1 && marks.contains(&name) => Kind::Mark,
                None => Kind::Text,
            };
            let bytes = match kind {
                Kind::Unknown => UNKNOWN.as_bytes().to_vec(),
                _ => name.replace(SPACE, " ").into_bytes(),
            };
            Piece { bytes, kind }
        };
        let ids = names.iter().zip(0..).map(|(name, id)| (name.clone(), id)).collect();
        let pieces: Vec<Piece> = names.into_iter().map(piece).collect();
        let bytes = pieces.iter().map(|piece| match piece.kind {
            Kind::Unknown | Kind::Special => Box::default(),
            Kind::Text | Kind::Byte | Kind::Mark => piece.bytes.clone().into(),
        });
        let bytes = Arc::new(TokenBytes::new(bytes.collect()));
        let is_upper =
            |piece: &Piece| piece.kind == Kind::Text && piece.bytes.iter().any(u8::is_ascii_uppercase);
        Ok(Self { ids, is_cased: pieces.iter().any(is_upper), pieces, bytes })
    }

    /// The tokens of a word as its letters were learnt in pairs: the ids are in the order of the pairs. None if it has a letter
    /// without a piece, or very many. Where no piece has a capital letter or mark, those of the word do not count.
    pub(super) fn spell(&self, word: &str) -> Vec<u32> {
        let known = |c: &char| self.ids.contains_key(&c.to_string());
        let mut letters = SPACE.to_string();
        for c in word.trim().chars() {
            if known(&c) {
                letters.push(c);
            } else {
                letters.extend(c.to_lowercase().filter(|c| c.is_alphanumeric()));
            }
        }
        if letters.len() > MAX_LETTERS {
            return Vec::new();
        }
        let mut parts: Vec<String> = letters.chars().map(String::from).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let joint = pairs.filter_map(|(at, pair)| Some((*self.ids.get(&pair.concat())?, at))).min();
            let Some((_, at)) = joint else { break };
            let second = parts.remove(at + 1);
            parts[at].push_str(&second);
        }
        parts.iter().map(|part| self.ids.get(part).copied()).collect::<Option<Vec<u32>>>().unwrap_or_default()
    }

    /// What the tokens of `words` gain; `None` without words. They are lower case where the network writes nothing else.
    pub(super) fn keywords(&self, words: &[String]) -> Option<Arc<Keywords>> {
        let words = words.iter().map(|word| if self.is_cased { word.clone() } else { word.to_lowercase() });
        Keywords::new(&words.collect::<Vec<_>>(), &self.bytes).map(Arc::new)
    }

    /// Whether numbers can be written in figures.
    pub(super) fn has_figures(&self) -> bool {
        let is_figure = |piece: &Piece| piece.bytes.iter().any(u8::is_ascii_digit);
        self.pieces.iter().any(|piece| piece.kind != Kind::Special && is_figure(piece))
    }

    /// Whether a token is none of text.
    pub(super) fn is_special(&self, token: u32) -> bool {
        self.pieces.get(token as usize).is_none_or(|piece| piece.kind == Kind::Special)
    }

    /// The text of tokens, without the spaces of pieces before its first word.
    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        let mut text: Vec<u8> = Vec::new();
        for piece in tokens.iter().filter_map(|&token| self.pieces.get(token as usize)) {
            let begins = text.is_empty() && piece.kind != Kind::Unknown && piece.kind != Kind::Byte;
            let stripped = piece.bytes.strip_prefix(b" ").filter(|_| begins);
            text.extend_from_slice(stripped.unwrap_or(&piece.bytes));
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Moves punctuation marks to the end of the token before them: they take no time.
    pub(super) fn settle(&self, tokens: &mut [Timed]) {
        let mut end = None;
        for token in tokens {
            if let Some(before) = end
                && self.is_mark(token.token)
            {
                (token.start, token.end) = (before, before);
            }
            end = Some(token.end);
        }
    }

    fn is_mark(&self, token: u32) -> bool {
        self.pieces.get(token as usize).is_some_and(|piece| piece.kind == Kind::Mark)
    }

    /// Whether a token's piece is not its text by itself.
    fn begins_word(&self, token: u32) -> bool {
        self.pieces
            .get(token as usize)
            .is_some_and(|piece| piece.kind == Kind::Unknown || piece.bytes.first() == Some(&b' '))
    }

    /// The words of tokens, in order.
    pub(super) fn words(&self, tokens: &[Timed]) -> Vec<TimedWord> {
        let mut words: Vec<TimedWord> = Vec::new();
        for token in tokens {
            let begins = self.begins_word(token.token) && !self.is_mark(token.token);
            match words.last_mut() {
                Some(word) if !begins => {
                    word.tokens.push(token.token);
                    word.end = token.end;
                    word.logprob += token.logprob;
                }
                _ => words.push(TimedWord {
                    text: String::new(),
                    start: token.start,
                    end: token.end,
                    logprob: token.logprob,
                    tokens: vec![token.token],
                }),
            }
        }
        for word in &mut words {
            word.text = self.decode(&word.tokens);
        }
        words
    }
}

/// Ends of the segments of words: each after a word that ends a sentence, and at the last word.
pub(super) fn segments(words: &[TimedWord]) -> Vec<std::ops::Range<usize>> {
    let mut segments = Vec::new();
    let mut start = 0;
    for (index, word) in words.iter().enumerate() {
        if word.text.ends_with(['.', '?', '!']) || index + 1 == words.len() {
            segments.push(start..index + 1);
            start = index + 1;
        }
    }
    segments
}

/// The byte that a piece `<0xAB>` stands for.
fn byte(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
