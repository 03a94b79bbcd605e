//! Text to token ids and back, by the tokenizer file of a checkpoint. Knows no text rule and no tensor.

use std::path::Path;

use tokenizers::Tokenizer;

use super::config::{LookupTable, TokenizerKind};
use crate::text::sentencepiece::SentencePiece;
use crate::text::tokenizer_file;
use izwi_nn::Error;

/// The tokenizer of a checkpoint.
#[derive(Debug)]
pub(super) enum TextTokenizer {
    /// `tokenizer.json`.
    Json(Box<Tokenizer>),
    /// `tokenizer.model`.
    SentencePiece(SentencePiece),
    /// A token a byte, for networks with random weights of this many tokens.
    Bytes(u32),
}

impl TextTokenizer {
    /// Reads the tokenizer of the checkpoint in `folder`, for the text tokens of `table`.
    ///
    /// # Errors
    /// The file is unreadable or malformed, or has other tokens than the table.
    pub(super) fn load(folder: &Path, table: &LookupTable) -> Result<Self, Error> {
        Self::load_kind(folder, table.tokenizer, table.n_bins)
    }

    /// As [`Self::load`], of a kind and for `size` tokens.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn load_kind(folder: &Path, kind: TokenizerKind, size: usize) -> Result<Self, Error> {
        match kind {
            TokenizerKind::Tokenizers => {
                let tokenizer = tokenizer_file::open(&folder.join("tokenizer.json"), size)?;
                Ok(Self::Json(Box::new(tokenizer)))
            }
            TokenizerKind::Sentencepiece => {
                Ok(Self::SentencePiece(SentencePiece::open(&folder.join("tokenizer.model"), size)?))
            }
        }
    }

    /// A tokenizer of single bytes for a network of `size` tokens.
    pub(super) fn bytes(size: usize) -> Self {
        Self::Bytes(size.clamp(1, 256) as u32)
    }

    /// Ids of a text.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        match self {
            Self::Json(tokenizer) => match tokenizer.encode_fast(text, true) {
                Ok(encoding) => encoding.get_ids().to_vec(),
                Err(error) => {
                    // A unigram model takes any text; only a faulty tokenizer file fails.
                    tracing::error!(%error, "text cannot be tokenised");
                    Vec::new()
                }
            },
            Self::SentencePiece(model) => model.encode(text),
            // The first token is never one of the text, as with the other tokenizers.
            Self::Bytes(size) => {
                std::iter::once(0).chain(text.bytes().map(|byte| u32::from(byte) % size)).collect()
            }
        }
    }

    /// The text of tokens; nothing for tokens that do not exist.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::Json(tokenizer) => match tokenizer.decode(ids, true) {
                Ok(text) => text,
                Err(error) => {
                    tracing::error!(%error, "tokens cannot be decoded");
                    String::new()
                }
            },
            Self::SentencePiece(model) => model.decode(ids),
            Self::Bytes(_) => {
                let bytes: Vec<u8> = ids.iter().filter(|&&id| id > 0).map(|&id| id as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}
