//! Byte pairs over bytes: the tokenizer of Qwen's language models, and what bytes a token stands for. Knows no family.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::json_file::read_json;
use super::tokenizer_file;
use izwi_nn::Error;

/// Pre-tokenizer pattern of Qwen2: <https://huggingface.co/docs/transformers/model_doc/qwen2>.
const PRE_TOKENIZER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

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

/// Reads the tokenizer of a folder, for a network of `size` tokens: `tokenizer.json`, or `vocab.json`, `merges.txt` and the
/// added tokens of `tokenizer_config.json`.
///
/// # Errors
/// A file is unreadable, or has a token that the network does not know.
pub(crate) fn open(folder: &Path, size: usize) -> Result<Tokenizer, Error> {
    let path = folder.join("tokenizer.json");
    if path.exists() {
        return tokenizer_file::open(&path, size);
    }
    let tokenizer = from_pair(folder)?;
    match tokenizer.get_vocab(true).into_values().max() {
        Some(highest) if highest as usize >= size => {
            Err(fault(&path, format!("has a token of id {highest}, the network knows {size}")))
        }
        _ => Ok(tokenizer),
    }
}

fn from_pair(folder: &Path) -> Result<Tokenizer, Error> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    for path in [&vocabulary, &merges] {
        if !path.exists() {
            return Err(fault(path, "is missing, and so is tokenizer.json".to_owned()));
        }
    }
    let pair = (vocabulary.display().to_string(), merges.display().to_string());
    let read =
        AssertUnwindSafe(|| BPE::from_file(&pair.0, &pair.1).build().map_err(|error| error.to_string()));
    let model = catch_unwind(read).unwrap_or_else(|_| Err("does not fit merges.txt".to_owned()));
    let mut tokenizer = assemble(model.map_err(|message| fault(&vocabulary, message))?, &vocabulary)?;
    let path = folder.join("tokenizer_config.json");
    for (id, added) in read_json::<TokenizerConfig>(&path)?.added_tokens_decoder {
        let token = AddedToken::from(added.content.clone(), added.special).normalized(false);
        tokenizer.add_tokens([token]).map_err(|error| fault(&path, error.to_string()))?;
        if tokenizer.token_to_id(&added.content) != Some(id) {
            return Err(fault(&path, format!("token '{}' cannot have id {id}", added.content)));
        }
    }
    Ok(tokenizer)
}

/// A tokenizer around `model`, which was read from `path`.
///
/// # Errors
/// The parts do not make a tokenizer.
pub(crate) fn assemble(model: BPE, path: &Path) -> Result<Tokenizer, Error> {
    let cut =
        Split::new(SplitPattern::Regex(PRE_TOKENIZER.to_owned()), SplitDelimiterBehavior::Isolated, false);
    let cut = cut.map_err(|error| fault(path, error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(NFC)).map_err(|error| fault(path, error.to_string()))?;
    let bytes = ByteLevel::new(false, false, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![cut.into(), bytes.into()])));
    Ok(tokenizer)
}

fn fault(path: &Path, message: String) -> Error {
    Error::File { path: path.display().to_string(), message }
}

/// Ids of a text in which added tokens are recognised.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    match tokenizer.encode_fast(text, false) {
        Ok(encoding) => encoding.get_ids().to_vec(),
        Err(error) => {
            // Byte-level BPE takes any text; only a faulty tokenizer file fails.
            tracing::error!(%error, "text cannot be tokenised");
            Vec::new()
        }
    }
}

/// The byte that each character of a token stands for: printable bytes stand for themselves, the others for characters from
/// U+0100 on. <https://github.com/openai/gpt-2/blob/master/src/encoder.py> (`bytes_to_unicode`).
pub(crate) fn alphabet() -> HashMap<char, u8> {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (printable, others): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(is_printable);
    let others = ('\u{100}'..).zip(others);
    printable.into_iter().map(|byte| (char::from(byte), byte)).chain(others).collect()
}

/// The bytes of a token; a token that was added is its own text.
pub(crate) fn bytes_of(token: &str, alphabet: &HashMap<char, u8>) -> Box<[u8]> {
    let bytes = token.chars().map(|letter| alphabet.get(&letter).copied()).collect::<Option<Box<[u8]>>>();
    bytes.unwrap_or_else(|| token.as_bytes().into())
}

/// The bytes of every token by id; none of special ones.
pub(crate) fn token_bytes(tokenizer: &Tokenizer) -> Vec<Box<[u8]>> {
    let vocabulary = tokenizer.get_vocab(true);
    let count = vocabulary.values().max().map_or(0, |&highest| highest as usize + 1);
    let mut bytes = vec![Box::default(); count];
    let (alphabet, added) = (alphabet(), tokenizer.get_added_tokens_decoder());
    for (token, id) in vocabulary {
        if !added.get(&id).is_some_and(|added| added.special) {
            bytes[id as usize] = bytes_of(&token, &alphabet);
        }
    }
    bytes
}
