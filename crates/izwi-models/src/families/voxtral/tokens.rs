//! The vocabulary of a checkpoint: `tekken.json`, byte pairs by rank after special tokens.
//!
//! Layout and prompts are those of mistral-common, <https://github.com/mistralai/mistral-common>. Knows no tensor.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use izwi_nn::Error;

/// No vocabulary may be larger.
const MAX_TOKENS: usize = 1 << 22;

#[derive(Debug, Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Piece>,
    special_tokens: Vec<Special>,
}

#[derive(Debug, Deserialize)]
struct Config {
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Debug, Deserialize)]
struct Piece {
    rank: usize,
    token_bytes: String,
}

#[derive(Debug, Deserialize)]
struct Special {
    rank: u32,
    token_str: String,
}

/// The tokens that frame a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    start: u32,
    end: u32,
    begin_turn: u32,
    end_turn: u32,
    begin_audio: u32,
    transcribe: u32,
}

/// Tokens and their bytes.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// Bytes of each token after the special ones.
    pieces: Vec<Vec<u8>>,
    /// Index of each piece.
    ranks: HashMap<Vec<u8>, u32>,
    /// Number of special tokens, which come first.
    special: u32,
    marks: Marks,
}

impl Vocabulary {
    /// Reads `tekken.json` of a checkpoint for a network of `size` tokens.
    ///
    /// # Errors
    /// The file is unreadable, malformed, or has more tokens than the network.
    pub(super) fn load(folder: &Path, size: usize) -> Result<Self, Error> {
        let path = folder.join("tekken.json");
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        let file: File = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        Self::new(file, size).map_err(fault)
    }

    fn new(file: File, size: usize) -> Result<Self, String> {
        let Config { default_vocab_size: tokens, default_num_special_tokens: special } = file.config;
        let count = tokens.checked_sub(special).filter(|_| tokens <= size.min(MAX_TOKENS));
        let count = count.ok_or_else(|| {
            format!("{tokens} tokens, {special} of them special, do not fit a network of {size} tokens")
        })?;
        let mut pieces = vec![Vec::new(); count];
        for piece in file.vocab.iter().filter(|piece| piece.rank < count) {
            let bytes = STANDARD.decode(&piece.token_bytes).map_err(|error| error.to_string())?;
            pieces[piece.rank] = bytes;
        }
        if let Some(rank) = pieces.iter().position(Vec::is_empty) {
            return Err(format!("no token has rank {rank}, of {count}"));
        }
        let ranks = pieces.iter().enumerate().map(|(rank, piece)| (piece.clone(), rank as u32)).collect();
        let named = |name: &str| {
            let found = file.special_tokens.iter().find(|token| token.token_str == name);
            let rank = found.map(|token| token.rank).filter(|&rank| (rank as usize) < special);
            rank.ok_or_else(|| format!("the special token {name} is missing"))
        };
        let marks = Marks {
            start: named("<s>")?,
            end: named("</s>")?,
            begin_turn: named("[INST]")?,
            end_turn: named("[/INST]")?,
            begin_audio: named("[BEGIN_AUDIO]")?,
            transcribe: named("[TRANSCRIBE]")?,
        };
        Ok(Self { pieces, ranks, special: special as u32, marks })
    }

    /// The prompt for a transcription of a recording that takes `count` tokens `audio`, in a language by its code if it is
    /// known.
    pub(super) fn transcription(&self, audio: u32, count: usize, language: Option<&str>) -> Vec<u32> {
        let marks = &self.marks;
        let mut tokens = vec![marks.start, marks.begin_turn, marks.begin_audio];
        tokens.extend(std::iter::repeat_n(audio, count));
        tokens.push(marks.end_turn);
        if let Some(code) = language {
            // The pattern of tekken.json splits a word before the mark that follows it.
            tokens.extend(self.merged(b"lang"));
            tokens.extend(self.merged(format!(":{code}").as_bytes()));
        }
        tokens.push(marks.transcribe);
        tokens
    }

    /// The tokens of a word: its bytes, of which the adjacent pair of the lowest rank is joined until none is left.
    fn merged(&self, word: &[u8]) -> Vec<u32> {
        let mut parts: Vec<&[u8]> = word.chunks(1).collect();
        loop {
            let bounds = |parts: &[&[u8]], index: usize| {
                let start: usize = parts[..index].iter().map(|part| part.len()).sum();
                start..start + parts[index].len() + parts[index + 1].len()
            };
            let pairs = (0..parts.len().saturating_sub(1))
                .filter_map(|index| Some((*self.ranks.get(&word[bounds(&parts, index)])?, index)));
            let Some((_, index)) = pairs.min() else { break };
            let joined = bounds(&parts, index);
            parts.splice(index..index + 2, [&word[joined]]);
        }
        parts.iter().filter_map(|part| self.ranks.get(*part)).map(|rank| rank + self.special).collect()
    }

    /// Whether the token ends a text.
    pub(super) fn is_end(&self, token: u32) -> bool {
        token == self.marks.end
    }

    /// The bytes of a token: none of a special one.
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let rank = token.checked_sub(self.special);
        rank.and_then(|rank| self.pieces.get(rank as usize)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pieces: &[&str], special: usize) -> String {
        let vocab = pieces.iter().enumerate().map(|(rank, piece)| {
            serde_json::json!({"rank": rank, "token_bytes": STANDARD.encode(piece), "token_str": piece})
        });
        let names = ["<s>", "</s>", "[INST]", "[/INST]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"];
        let named = names
            .iter()
            .enumerate()
            .map(|(rank, name)| serde_json::json!({"rank": rank, "token_str": name, "is_control": true}));
        let size = pieces.len() + special;
        let config = serde_json::json!({"default_vocab_size": size, "default_num_special_tokens": special});
        let (vocab, named): (Vec<_>, Vec<_>) = (vocab.collect(), named.collect());
        serde_json::json!({"config": config, "vocab": vocab, "special_tokens": named}).to_string()
    }

    fn vocabulary(text: &str, size: usize) -> Result<Vocabulary, String> {
        Vocabulary::new(serde_json::from_str(text).unwrap(), size)
    }

    #[test]
    fn pairs_of_the_lowest_rank_are_joined_first() {
        let text = file(&["a", "b", "c", "bc", "ab", "abc"], 6);
        let vocabulary = vocabulary(&text, 100).unwrap();
        let ids = |word: &str| vocabulary.merged(word.as_bytes());
        assert_eq!((ids("abc"), ids("ab"), ids("cab"), ids("")), (vec![11], vec![10], vec![8, 10], vec![]));
        assert_eq!(ids("aax"), [6, 6], "an unknown byte is left out");
        assert_eq!(
            (vocabulary.bytes(11), vocabulary.bytes(2), vocabulary.bytes(99)),
            (&b"abc"[..], &b""[..], &b""[..])
        );
        assert!(vocabulary.is_end(1) && !vocabulary.is_end(6));
    }

    #[test]
    fn faulty_vocabularies_are_refused() {
        let good = file(&["a", "b"], 6);
        assert!(vocabulary(&good, 8).is_ok());
        assert!(vocabulary(&good, 7).unwrap_err().contains("8 tokens"));
        let gap = good.replace("\"rank\":1,\"token_bytes\"", "\"rank\":9,\"token_bytes\"");
        assert!(vocabulary(&gap, 8).unwrap_err().contains("no token has rank 1"));
        let unnamed = good.replace("[INST]", "[OTHER]");
        assert!(vocabulary(&unnamed, 8).unwrap_err().contains("[INST]"));
        let far = good.replace("\"default_num_special_tokens\":6", "\"default_num_special_tokens\":9");
        assert!(vocabulary(&far, 100).is_err());
    }
}
