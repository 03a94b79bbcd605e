//! The vocabulary of a checkpoint and its prompts. Has no constant ids.

use std::path::Path;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::keywords::TokenBytes;
use crate::text::byte_pairs;
use izwi_nn::Error;

/// What separates the language of an answer from its text.
pub(super) const MARK: &str = "<asr_text>";
/// Tokens that end an answer.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// The tokenizer of one checkpoint.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    /// The bytes of every token by id; none of special ones.
    pub(super) bytes: Arc<TokenBytes>,
    /// The token of [`MARK`].
    pub(super) mark: u32,
    ends: [u32; 2],
    /// All tokens that are recognised as a whole.
    added: Vec<String>,
}

/// Tokens around the rows of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Vocabulary {
    /// Reads the folder's tokenizer, for a network of `size` tokens.
    ///
    /// # Errors
    /// A file is unreadable, lacks a token of the prompt, or does not fit the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let tokenizer = byte_pairs::open(folder, size)?;
        let named = |name: &str| {
            tokenizer.token_to_id(name).ok_or_else(|| Error::File {
                path: folder.display().to_string(),
                message: format!("the tokenizer has no token {name}"),
            })
        };
        for name in ["<|im_start|>", "<|audio_start|>", "<|audio_end|>"] {
            named(name)?;
        }
        let (mark, ends) = (named(MARK)?, [named(ENDS[0])?, named(ENDS[1])?]);
        let added = tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content);
        let added = added.filter(|content| !content.is_empty()).collect();
        let bytes = Arc::new(TokenBytes::new(byte_pairs::token_bytes(&tokenizer)));
        Ok(Self { bytes, mark, ends, added, tokenizer })
    }

    /// Ids of a text in which added tokens are recognised.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        byte_pairs::encode(&self.tokenizer, text)
    }

    /// A text without anything that reads as an added token.
    pub(super) fn plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for token in &self.added {
            if text.contains(token) {
                text = text.replace(token, " ");
            }
        }
        text
    }

    /// The prompt for a transcription, with words that may occur in it and what the answer begins with.
    pub(super) fn prompt(&self, context: &str, answer: &str) -> Prompt {
        let context = self.plain(context);
        let before = format!("<|im_start|>system\n{context}<|im_end|>\n<|im_start|>user\n<|audio_start|>");
        let after = format!("<|audio_end|><|im_end|>\n<|im_start|>assistant\n{answer}");
        Prompt { before: self.encode(&before), after: self.encode(&after) }
    }

    /// Whether a token ends an answer.
    pub(super) fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The text of tokens, special ones left out; invalid UTF-8 becomes U+FFFD.
    pub(super) fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.bytes.of(token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What an answer in a language begins with.
pub(super) fn header(language: &str) -> String {
    format!("language {language}{MARK}")
}
