//! Text to token ids, in the formats the model was trained with.
//!
//! Contains no ids.

use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::config::file_error;
use crate::text::byte_pairs;
use izwi_nn::Error;

/// Tokens before the text: the turn's start, its role, a line break.
const HEAD: usize = 3;
/// Tokens after the text to speak: the turn's end, a line break, and the head of the next turn.
const TAIL: usize = 5;
/// Tokens after the text of a recording: the turn's end and a line break.
const RECORDING_TAIL: usize = 2;

/// The tokenizer of one checkpoint.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
}

/// Tokens of a text to speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenizedText {
    /// Tokens before it: the turn's start and role.
    pub(super) role: Vec<u32>,
    /// The text.
    pub(super) body: Vec<u32>,
    /// The first token after the role: of the text, or of what follows where there is no text.
    pub(super) first: u32,
}

impl Vocabulary {
    /// Reads the folder's tokenizer, for a network of `size` text tokens.
    ///
    /// # Errors
    /// A file is unreadable, or the tokenizer does not fit the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        Ok(Self { tokenizer: byte_pairs::open(folder, size)? })
    }

    /// A tokenizer of single bytes and these special tokens, without merges, for networks with random weights.
    ///
    /// # Errors
    /// The parts do not make a tokenizer.
    pub(super) fn bytes(special: &[(&str, u32)]) -> Result<Self, Error> {
        let alphabet = ByteLevel::alphabet();
        let mut letters: Vec<char> = alphabet.into_iter().collect();
        letters.sort_unstable();
        let letters = letters.into_iter().enumerate().map(|(id, letter)| (letter.to_string(), id as u32));
        let named = special.iter().map(|&(name, id)| (name.to_owned(), id));
        let vocabulary: Vocab = letters.chain(named).collect();
        let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new()).build();
        let path = Path::new("bytes");
        let mut tokenizer =
            byte_pairs::assemble(model.map_err(|error| file_error(path, error.to_string()))?, path)?;
        let special: Vec<_> = special.iter().map(|(name, _)| AddedToken::from(*name, true)).collect();
        tokenizer.add_special_tokens(special).map_err(|error| file_error(path, error.to_string()))?;
        Ok(Self { tokenizer })
    }

    /// Ids of a text in which special tokens are recognised.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        byte_pairs::encode(&self.tokenizer, text)
    }

    /// Tokens of a text to speak; `None` where the tokenizer lacks the tokens of a turn.
    pub(super) fn tokenize(&self, text: &str) -> Option<TokenizedText> {
        let ids = self.encode(&format!("<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"));
        // Split by position: a text that begins with a line break shares a token with the head, as in training.
        let body = ids.get(HEAD..ids.len().checked_sub(TAIL)?)?.to_vec();
        Some(TokenizedText { role: ids[..HEAD].to_vec(), body, first: ids[HEAD] })
    }

    /// Tokens of the start of a text to speak, up to a place where its tokens are stable; `None` where there is none, or the
    /// tokenizer lacks the tokens of a turn.
    pub(super) fn tokenize_start(&self, text: &str) -> Option<TokenizedText> {
        let ids = self.encode(&format!("<|im_start|>assistant\n{text}"));
        let (role, body) = ids.split_at_checked(HEAD)?;
        Some(TokenizedText { role: role.to_vec(), body: body.to_vec(), first: *body.first()? })
    }

    /// Tokens of the text of a reference recording; `None` where the tokenizer lacks the tokens of a turn.
    pub(super) fn tokenize_reference(&self, text: &str) -> Option<Vec<u32>> {
        let ids = self.encode(&format!("<|im_start|>assistant\n{text}<|im_end|>\n"));
        Some(ids.get(HEAD..ids.len().checked_sub(RECORDING_TAIL)?)?.to_vec())
    }

    /// Tokens of the turn with a style prompt.
    pub(super) fn instructions(&self, text: &str) -> Vec<u32> {
        self.encode(&format!("<|im_start|>user\n{text}<|im_end|>\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden_set::root;
    use super::*;

    #[test]
    fn the_byte_tokenizer_has_the_tokens_of_a_turn() {
        let special = [("<|im_start|>", 500), ("<|im_end|>", 501), ("assistant", 502), ("\n", 503)];
        let vocabulary = Vocabulary::bytes(&special).unwrap();
        let ids = vocabulary.encode("<|im_start|>ab<|im_end|>");
        assert_eq!((ids.len(), ids[0], ids[3]), (4, 500, 501));
    }

    #[test]
    fn a_folder_without_a_tokenizer_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Vocabulary::load(folder.path(), 1000).unwrap_err().to_string();
        assert!(error.contains("vocab.json") && error.contains("tokenizer.json"), "{error}");
        let error = Vocabulary::load(&root().join("cv06"), 100).unwrap_err().to_string();
        assert!(error.contains("the network knows 100"), "{error}");
    }
}
