//! Tokenizers of the SentencePiece library: `tokenizer.model`, to encode with a unigram model, or for the names of its pieces.
//!
//! Owns the file's format, its normalisation and the best segmentation: <https://arxiv.org/abs/1808.06226>. Every length
//! and offset of the file is checked. Knows no model.

mod normaliser;
mod proto;

use std::collections::HashMap;
use std::path::Path;

use izwi_nn::Error;

use self::normaliser::{Normaliser, SPACE};
use self::proto::{Fields, Value};

/// The longest file, and the longest piece in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_PIECE_BYTES: usize = 512;
/// What an unknown character costs below the least likely piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// How an unknown piece is decoded.
const UNKNOWN_SURFACE: &str = " \u{2047} ";
/// Of `TrainerSpec.ModelType`.
const UNIGRAM: u64 = 1;

/// A unigram tokenizer.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    pieces: Vec<Piece>,
    /// Ids of the pieces of text.
    ids: HashMap<String, u32>,
    /// Ids of the pieces of single bytes, where unknown characters are spelled by them.
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    unknown_score: f32,
    /// The highest score: pieces of the user take precedence over it.
    highest: f32,
    /// Bytes of the longest piece.
    longest: usize,
    normaliser: Normaliser,
}

#[derive(Debug, Clone, PartialEq)]
struct Piece {
    text: String,
    score: f32,
    kind: Kind,
}

/// Of `ModelProto.SentencePiece.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The best way to a place in a text.
#[derive(Debug, Clone, Copy)]
struct Best {
    start: usize,
    id: u32,
    score: f32,
}

impl SentencePiece {
    /// Reads a file, for a network of `size` tokens.
    ///
    /// # Errors
    /// The file is unreadable, malformed, not a unigram model, or has another number of pieces.
    pub(crate) fn open(path: &Path, size: usize) -> Result<Self, Error> {
        read(path, |file| {
            let model = Self::parse(file)?;
            match model.pieces.len() {
                count if count == size => Ok(model),
                count => Err(format!("has {count} tokens, the network knows {size}")),
            }
        })
    }

    /// A model from the bytes of its file (`ModelProto`).
    ///
    /// # Errors
    /// It is malformed or not a unigram model.
    fn parse(file: &[u8]) -> Result<Self, String> {
        let (mut pieces, mut normaliser) = (Vec::new(), Normaliser::default());
        let (mut model_type, mut byte_fallback) = (UNIGRAM, false);
        for field in Fields::of(file) {
            match field? {
                (1, Value::Bytes(piece)) => pieces.push(Piece::parse(piece)?),
                (2, Value::Bytes(trainer)) => {
                    for field in Fields::of(trainer) {
                        match field? {
                            (3, Value::Integer(value)) => model_type = value,
                            (35, Value::Integer(value)) => byte_fallback = value != 0,
                            (24, Value::Integer(value)) if value != 0 => {
                                return Err("treats spaces as suffixes, which is not supported".to_owned());
                            }
                            _ => {}
                        }
                    }
                }
                (3, Value::Bytes(rules)) => normaliser = Normaliser::parse(rules)?,
                _ => {}
            }
        }
        if model_type != UNIGRAM {
            return Err(format!("has a model of type {model_type}; {UNIGRAM}, unigram, is supported"));
        }
        Self::new(pieces, byte_fallback, normaliser)
    }

    fn new(pieces: Vec<Piece>, byte_fallback: bool, normaliser: Normaliser) -> Result<Self, String> {
        let unknown = pieces.iter().position(|piece| piece.kind == Kind::Unknown);
        let unknown = unknown.ok_or("has no token for what is unknown")? as u32;
        let scores = || pieces.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
        let (lowest, highest) = (scores().fold(0f32, f32::min), scores().fold(f32::MIN, f32::max));
        let mut ids = HashMap::new();
        for (id, piece) in pieces.iter().enumerate() {
            if matches!(piece.kind, Kind::Normal | Kind::UserDefined) && !piece.text.is_empty() {
                ids.entry(piece.text.clone()).or_insert(id as u32);
            }
        }
        let bytes = match byte_fallback {
            true => {
                let mut table = Box::new([unknown; 256]);
                for (id, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.kind == Kind::Byte) {
                    if let Some(byte) = piece.byte() {
                        table[usize::from(byte)] = id as u32;
                    }
                }
                Some(table)
            }
            false => None,
        };
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        let unknown_score = lowest - UNKNOWN_PENALTY;
        Ok(Self { ids, bytes, unknown, unknown_score, highest, longest, normaliser, pieces })
    }

    /// Ids of a text: the most likely segmentation of its normalised form.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let text = self.normaliser.normalise(text);
        let mut ids: Vec<u32> = Vec::new();
        let mut after_unknown = false;
        for (id, piece) in self.segment(&text) {
            match (&self.bytes, id == self.unknown) {
                (Some(bytes), true) => ids.extend(piece.bytes().map(|byte| bytes[usize::from(byte)])),
                // Unknown characters that follow each other are one token.
                (None, true) if after_unknown => {}
                _ => ids.push(id),
            }
            after_unknown = id == self.unknown;
        }
        ids
    }

    /// The pieces of a normalised text. The longest match of one piece bounds the work of each place.
    fn segment<'a>(&self, text: &'a str) -> Vec<(u32, &'a str)> {
        let mut best: Vec<Option<Best>> = vec![None; text.len() + 1];
        best[0] = Some(Best { start: 0, id: self.unknown, score: 0.0 });
        for (start, first) in text.char_indices() {
            let Some(Best { score: before, .. }) = best[start] else { continue };
            let single = start + first.len_utf8();
            let mut has_single = false;
            let rest = &text[start..];
            for (at, c) in rest.char_indices() {
                let length = at + c.len_utf8();
                if length > self.longest {
                    break;
                }
                let Some(&id) = self.ids.get(&rest[..length]) else { continue };
                let piece = &self.pieces[id as usize];
                // As the library: pieces of the user always win.
                let of_user = length as f32 * self.highest - 0.1;
                let own = if piece.kind == Kind::UserDefined { of_user } else { piece.score };
                improve(&mut best[start + length], Best { start, id, score: before + own });
                has_single |= start + length == single;
            }
            if !has_single {
                let score = before + self.unknown_score;
                improve(&mut best[single], Best { start, id: self.unknown, score });
            }
        }
        let (mut pieces, mut end) = (Vec::new(), text.len());
        while end > 0 {
            let Some(Best { start, id, .. }) = best[end] else { break };
            pieces.push((id, &text[start..end]));
            end = start;
        }
        pieces.reverse();
        pieces
    }

    /// The text of tokens; nothing for tokens that do not exist.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let mut text: Vec<u8> = Vec::new();
        let mut seen_space = false;
        for piece in ids.iter().filter_map(|&id| self.pieces.get(id as usize)) {
            match piece.kind {
                Kind::Control => {}
                Kind::Unknown => text.extend_from_slice(UNKNOWN_SURFACE.as_bytes()),
                Kind::Byte => text.extend(piece.byte()),
                Kind::Normal | Kind::UserDefined | Kind::Unused => {
                    let at_start = text.is_empty() && !seen_space && self.normaliser.strips_start();
                    let stripped = piece.text.strip_prefix(SPACE).filter(|_| at_start);
                    // All spaces at the start are removed, or only the one that was added.
                    seen_space |= stripped.is_some() && !self.normaliser.removes_extra_spaces;
                    let piece = stripped.unwrap_or(&piece.text);
                    text.extend_from_slice(piece.replace(SPACE, " ").as_bytes());
                }
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The names of the pieces of a file, in order, whatever its model.
///
/// # Errors
/// The file is unreadable or malformed.
pub(crate) fn names(path: &Path) -> Result<Vec<String>, Error> {
    read(path, |file| {
        let mut names = Vec::new();
        for field in Fields::of(file) {
            if let (1, Value::Bytes(piece)) = field? {
                names.push(Piece::parse(piece)?.text);
            }
        }
        Ok(names)
    })
}

fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > MAX_FILE_BYTES {
        return Err(fault(format!("has {length} bytes; a tokenizer has at most {MAX_FILE_BYTES}")));
    }
    parse(&std::fs::read(path).map_err(|error| fault(error.to_string()))?).map_err(fault)
}

fn improve(known: &mut Option<Best>, new: Best) {
    if known.is_none_or(|known| new.score > known.score) {
        *known = Some(new);
    }
}

impl Piece {
    fn parse(message: &[u8]) -> Result<Self, String> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: Kind::Normal };
        for field in Fields::of(message) {
            match field? {
                (1, Value::Bytes(text)) => {
                    if text.len() > MAX_PIECE_BYTES {
                        return Err(format!("has a token of {} bytes", text.len()));
                    }
                    let text = std::str::from_utf8(text).map_err(|_| "has a token that is no text")?;
                    piece.text = text.to_owned();
                }
                (2, Value::Fixed32(bits)) => piece.score = f32::from_bits(bits),
                (3, Value::Integer(kind)) => {
                    piece.kind = match kind {
                        1 => Kind::Normal,
                        2 => Kind::Unknown,
                        3 => Kind::Control,
                        4 => Kind::UserDefined,
                        5 => Kind::Unused,
                        6 => Kind::Byte,
                        _ => return Err(format!("has a token of type {kind}, which is unknown")),
                    };
                }
                _ => {}
            }
        }
        if piece.score.is_finite() {
            Ok(piece)
        } else {
            Err(format!("has a token with a score of {}", piece.score))
        }
    }

    /// The byte of a piece such as `<0x0A>`.
    fn byte(&self) -> Option<u8> {
        u8::from_str_radix(self.text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(text: &str, score: f32, kind: Kind) -> Piece {
        Piece { text: text.to_owned(), score, kind }
    }

    fn model(byte_fallback: bool) -> SentencePiece {
        let mut pieces = vec![
            piece("<unk>", 0.0, Kind::Unknown),
            piece("<s>", 0.0, Kind::Control),
            piece("\u{2581}a", -2.0, Kind::Normal),
            piece("b", -3.0, Kind::Normal),
            piece("ab", -2.5, Kind::Normal),
            piece("\u{2581}", -2.2, Kind::Normal),
            piece("bb", -3.5, Kind::Normal),
            piece("<now>", 0.0, Kind::UserDefined),
            piece("zz", 0.0, Kind::Unused),
        ];
        pieces.extend((0..=255).map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, Kind::Byte)));
        SentencePiece::new(pieces, byte_fallback, Normaliser::default()).unwrap()
    }

    #[test]
    fn the_most_likely_pieces_win_and_unknown_ones_join() {
        let plain = model(false);
        // "▁a" + "bb" is better than "▁" + "ab" + "b", "▁" + "ab" than "▁a" + "b".
        assert_eq!(plain.encode("abb"), [2, 6]);
        assert_eq!(plain.encode("  ab   zzq b "), [5, 4, 5, 0, 5, 3]);
        assert_eq!(plain.encode("b<now>b"), [5, 3, 7, 3]);
        assert_eq!(plain.encode(""), [0u32; 0]);
        assert_eq!(plain.decode(&[1, 5, 2, 6, 0, 9999, 5, 3]), "abb \u{2047}  b");
        let spelled = model(true);
        assert_eq!(spelled.encode("é"), [5, 9 + 0xc3, 9 + 0xa9]);
        assert_eq!(spelled.decode(&spelled.encode("aé b")), "aé b");
    }

    /// A message's field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn malformed_files_are_refused_by_cause() {
        let unknown = field(1, &[&field(1, b"<unk>")[..], &[3 << 3, 2]].concat());
        assert!(SentencePiece::parse(&unknown).is_ok());
        let with = |more: &[u8]| SentencePiece::parse(&[&unknown, more].concat()).unwrap_err();
        assert!(SentencePiece::parse(b"").unwrap_err().contains("unknown"));
        assert!(with(&field(2, &[3 << 3, 2])).contains("type 2"));
        assert!(with(&field(1, &[3 << 3, 9])).contains("type 9"));
        assert!(with(&field(1, &field(1, &[0xff]))).contains("no text"));
        assert!(with(&field(1, &[2 << 3 | 5, 0, 0, 0xc0, 0x7f])).contains("NaN"));
        assert!(with(&[1 << 3 | 2, 100]).contains("ends"));
        assert!(with(&field(3, &field(2, &[1, 0, 0, 0]))).contains("rules"));
    }

    proptest! {
        #[test]
        fn no_file_and_no_text_is_a_panic(
            file in prop::collection::vec(any::<u8>(), 0..200),
            map in prop::collection::vec(any::<u8>(), 0..100),
            text in any::<String>(),
        ) {
            let _ = SentencePiece::parse(&file);
            let unknown = field(1, &[&field(1, b"<unk>")[..], &[3 << 3, 2]].concat());
            if let Ok(model) = SentencePiece::parse(&[unknown, field(3, &field(2, &map))].concat()) {
                let ids = model.encode(&text);
                model.decode(&ids);
            }
        }
    }
}
