//! Text to token ids and back, and the template of a conversation.
//!
//! Owns `tokenizer.json`. Every piece of a conversation is encoded by itself, as in training.

use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::config::{AUDIO_START, IM_END, TEXT_END, file_error};
use crate::text::{byte_pairs, tokenizer_file};
use izwi_nn::Error;

/// The first token of every conversation.
const START: &str = "<|startoftext|>";
/// Tokens with the same id in every checkpoint.
const NAMED: [(&str, u32); 5] = [
    (START, 1),
    ("<|im_start|>", 6),
    ("<|im_end|>", IM_END),
    ("<|audio_start|>", AUDIO_START),
    ("<|text_end|>", TEXT_END),
];

/// The role of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// The tokenizer of one checkpoint.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    /// The bytes of every token by id; empty for special ones.
    bytes: Vec<Box<[u8]>>,
}

impl Vocabulary {
    /// Reads the folder's tokenizer, for a network of `size` tokens.
    ///
    /// # Errors
    /// The file is unreadable, or the tokenizer does not fit the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let tokenizer = tokenizer_file::open(&path, size)?;
        Self::new(tokenizer, size).map_err(|message| file_error(&path, message))
    }

    /// A tokenizer of single bytes and the special tokens, without merges, for networks with random weights.
    ///
    /// # Errors
    /// The parts do not make a tokenizer.
    pub(super) fn single_bytes(size: usize) -> Result<Self, Error> {
        let fault = |message: String| file_error(Path::new("bytes"), message);
        let letters = byte_pairs::alphabet().into_iter();
        let letters = letters.map(|(letter, byte)| (letter.to_string(), 256 + u32::from(byte)));
        let named = NAMED.iter().map(|&(name, id)| (name.to_owned(), id));
        let vocabulary: Vocab = letters.chain(named).collect();
        let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new()).build();
        let mut tokenizer = Tokenizer::new(model.map_err(|error| fault(error.to_string()))?);
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, false, false)));
        let special = NAMED.iter().map(|(name, _)| AddedToken::from(*name, true));
        tokenizer
            .add_special_tokens(special.collect::<Vec<_>>())
            .map_err(|error| fault(error.to_string()))?;
        Self::new(tokenizer, size).map_err(fault)
    }

    fn new(tokenizer: Tokenizer, size: usize) -> Result<Self, String> {
        for (name, id) in NAMED {
            if tokenizer.token_to_id(name) != Some(id) {
                return Err(format!("token {name} does not have the id {id} that the model expects"));
            }
        }
        let bytes = byte_pairs::token_bytes(&tokenizer);
        if bytes.len() > size {
            return Err(format!("has a token of id {}, the network knows {size}", bytes.len() - 1));
        }
        Ok(Self { tokenizer, bytes })
    }

    /// Ids of a piece of text in which special tokens are recognised.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        byte_pairs::encode(&self.tokenizer, text)
    }

    /// Tokens before the first turn.
    pub(super) fn start(&self) -> Vec<u32> {
        self.encode(START)
    }

    /// Tokens before the content of a turn.
    pub(super) fn turn(&self, role: Role) -> Vec<u32> {
        self.encode(match role {
            Role::System => "<|im_start|>system\n",
            Role::User => "<|im_start|>user\n",
            Role::Assistant => "<|im_start|>assistant\n",
        })
    }

    /// Tokens after the content of a turn.
    pub(super) fn end(&self) -> Vec<u32> {
        self.encode("<|im_end|>\n")
    }

    /// The bytes of a token; none of special ones.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }
}

/// Decodes the bytes of tokens to text; a token may end inside a character.
#[derive(Debug, Clone, Default)]
pub(super) struct TextStream {
    pending: Vec<u8>,
}

impl TextStream {
    /// The text that is complete with these bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            rest += chunk.valid().len();
            let last = rest + chunk.invalid().len() == self.pending.len();
            if last && is_begun(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                rest += chunk.invalid().len();
            }
        }
        self.pending.drain(..rest);
        text
    }

    /// The rest, incomplete characters replaced.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Whether these bytes are the start of a character.
fn is_begun(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::golden_set::{json, root};
    use super::*;

    #[test]
    fn golden_tokens_match_the_reference() {
        #[derive(serde::Deserialize)]
        struct Row {
            text: String,
            ids: Vec<u32>,
        }
        let vocabulary = Vocabulary::load(&root(), usize::MAX).unwrap();
        for row in json::<Vec<Row>>("tokenizer") {
            assert_eq!(vocabulary.encode(&row.text), row.ids, "{}", row.text);
        }
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_is_an_error() {
        let error = Vocabulary::load(&root(), 100).unwrap_err().to_string();
        assert!(error.contains("the network knows 100"), "{error}");
        let vocabulary = Vocabulary::single_bytes(65_536).unwrap();
        assert_eq!(vocabulary.end(), [IM_END, 256 + u32::from(b'\n')]);
        assert_eq!(vocabulary.bytes(256 + u32::from(b'\n')), b"\n");
    }

    proptest! {
        #[test]
        fn decoded_tokens_are_the_text(text in "\\PC{0,40}") {
            for vocabulary in
                [Vocabulary::load(&root(), usize::MAX).unwrap(), Vocabulary::single_bytes(65_536).unwrap()]
            {
                let mut stream = TextStream::default();
                let ids = vocabulary.encode(&text);
                let mut decoded: String = ids.into_iter().map(|id| stream.push(vocabulary.bytes(id))).collect();
                decoded.push_str(&stream.finish());
                prop_assert_eq!(&decoded, &text);
            }
        }

        #[test]
        fn bytes_in_pieces_decode_to_their_lossy_text(bytes in prop::collection::vec(any::<u8>(), 0..30), size in 1usize..6) {
            let mut stream = TextStream::default();
            let mut text: String = bytes.chunks(size).map(|piece| stream.push(piece)).collect();
            text.push_str(&stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
