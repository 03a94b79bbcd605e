//! Text to token ids, in the formats the model was trained with.
//!
//! Owns `tokenizer.json`, or the older pair of `vocab.json` and `merges.txt`. Contains no ids.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::config::{file_error, read};
use crate::text::tokenizer_file;
use izwi_nn::Error;

/// Pre-tokenizer pattern of Qwen2: <https://huggingface.co/docs/transformers/model_doc/qwen2>.
const PRE_TOKENIZER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
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

#[derive(Debug, Deserialize)]
struct TokenizerConfig {
    added_tokens_decoder: BTreeMap<u32, Added>,
}

#[derive(Debug, Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    special: bool,
}

impl Vocabulary {
    /// Reads the folder's tokenizer, for a network of `size` text tokens.
    ///
    /// # Errors
    /// A file is unreadable, or the tokenizer does not fit the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        if path.exists() {
            return Ok(Self { tokenizer: tokenizer_file::open(&path, size)? });
        }
        let tokenizer = from_pair(folder)?;
        match tokenizer.get_vocab(true).into_values().max() {
            Some(highest) if highest as usize >= size => {
                Err(file_error(&path, format!("has a token of id {highest}, the network knows {size}")))
            }
            _ => Ok(Self { tokenizer }),
        }
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
        let mut tokenizer = assemble(model.map_err(|error| file_error(path, error.to_string()))?, path)?;
        let special: Vec<_> = special.iter().map(|(name, _)| AddedToken::from(*name, true)).collect();
        tokenizer.add_special_tokens(special).map_err(|error| file_error(path, error.to_string()))?;
        Ok(Self { tokenizer })
    }

    /// Ids of a text in which special tokens are recognised.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            Err(error) => {
                // Byte-level BPE takes any text; only a faulty tokenizer file fails.
                tracing::error!(%error, "text cannot be tokenised");
                Vec::new()
            }
        }
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

/// Builds the tokenizer out of `vocab.json`, `merges.txt` and the special tokens of `tokenizer_config.json`.
fn from_pair(folder: &Path) -> Result<Tokenizer, Error> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    for path in [&vocabulary, &merges] {
        if !path.exists() {
            return Err(file_error(path, "is missing, and so is tokenizer.json".to_owned()));
        }
    }
    let pair = (vocabulary.display().to_string(), merges.display().to_string());
    let model = BPE::from_file(&pair.0, &pair.1).build();
    let model = model.map_err(|error| file_error(&vocabulary, error.to_string()))?;
    let mut tokenizer = assemble(model, &vocabulary)?;
    let path = folder.join("tokenizer_config.json");
    let config: TokenizerConfig =
        serde_json::from_str(&read(&path)?).map_err(|error| file_error(&path, error.to_string()))?;
    for (id, added) in config.added_tokens_decoder {
        let token = AddedToken::from(added.content.clone(), added.special).normalized(false);
        tokenizer.add_tokens([token]).map_err(|error| file_error(&path, error.to_string()))?;
        if tokenizer.token_to_id(&added.content) != Some(id) {
            return Err(file_error(&path, format!("token '{}' cannot have id {id}", added.content)));
        }
    }
    Ok(tokenizer)
}

/// A byte-level tokenizer around `model`.
fn assemble(model: BPE, path: &Path) -> Result<Tokenizer, Error> {
    let cut =
        Split::new(SplitPattern::Regex(PRE_TOKENIZER.to_owned()), SplitDelimiterBehavior::Isolated, false);
    let cut = cut.map_err(|error| file_error(path, error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(NFC)).map_err(|error| file_error(path, error.to_string()))?;
    let bytes = ByteLevel::new(false, false, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![cut.into(), bytes.into()])));
    Ok(tokenizer)
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
