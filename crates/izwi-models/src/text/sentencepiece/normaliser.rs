//! Normalisation of a text before it is cut into pieces: a map of characters, spaces.
//! <https://github.com/google/sentencepiece/blob/master/src/normalizer.cc>.

use super::proto::{Fields, Value};

/// What stands for a space in pieces.
pub(super) const SPACE: char = '\u{2581}';

/// The rules of a file (`NormalizerSpec`).
#[derive(Debug)]
pub(super) struct Normaliser {
    map: CharacterMap,
    adds_prefix: bool,
    pub(super) removes_extra_spaces: bool,
    escapes_spaces: bool,
}

/// Sequences of characters and what stands for each: a trie as a double array
/// (<https://github.com/s-yata/darts-clone>), whose values are offsets of strings that end in a zero.
#[derive(Debug, Default)]
struct CharacterMap {
    units: Vec<u32>,
    strings: Vec<u8>,
}

impl Default for Normaliser {
    fn default() -> Self {
        Self {
            map: CharacterMap::default(),
            adds_prefix: true,
            removes_extra_spaces: true,
            escapes_spaces: true,
        }
    }
}

impl Normaliser {
    /// From the bytes of its message.
    pub(super) fn parse(message: &[u8]) -> Result<Self, String> {
        let mut rules = Self::default();
        for field in Fields::of(message) {
            match field? {
                (2, Value::Bytes(map)) if !map.is_empty() => rules.map = CharacterMap::parse(map)?,
                (3, Value::Integer(value)) => rules.adds_prefix = value != 0,
                (4, Value::Integer(value)) => rules.removes_extra_spaces = value != 0,
                (5, Value::Integer(value)) => rules.escapes_spaces = value != 0,
                _ => {}
            }
        }
        Ok(rules)
    }

    /// Whether a decoded text begins without the space of its first piece.
    pub(super) fn strips_start(&self) -> bool {
        self.adds_prefix || self.removes_extra_spaces
    }

    /// The text with its characters mapped, its spaces collapsed and escaped, and one before it.
    pub(super) fn normalise(&self, text: &str) -> String {
        let space = if self.escapes_spaces { SPACE } else { ' ' };
        let mut rest = text;
        if self.removes_extra_spaces {
            while let Some((mapped, length)) = self.map.prefix(rest)
                && mapped == " "
            {
                rest = &rest[length..];
            }
        }
        let mut normal = String::with_capacity(text.len() + SPACE.len_utf8());
        if rest.is_empty() {
            return normal;
        }
        if self.adds_prefix {
            normal.push(space);
        }
        let mut after_space = self.removes_extra_spaces;
        while let Some((mapped, length)) = self.map.prefix(rest) {
            let mapped = if after_space { mapped.trim_start_matches(' ') } else { mapped };
            if !mapped.is_empty() {
                normal.extend(mapped.chars().map(|c| if c == ' ' { space } else { c }));
                after_space = mapped.ends_with(' ');
            }
            after_space &= self.removes_extra_spaces;
            rest = &rest[length..];
        }
        if self.removes_extra_spaces {
            normal.truncate(normal.trim_end_matches(space).len());
        }
        normal
    }
}

impl CharacterMap {
    /// From `precompiled_charsmap`: the bytes of the trie, the trie, the strings.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let fault = || "has malformed rules for characters".to_owned();
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(fault)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (trie, strings) = rest.split_at_checked(length).ok_or_else(fault)?;
        let (units, []) = trie.as_chunks::<4>() else { return Err(fault()) };
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(Self { units, strings: strings.to_vec() })
    }

    /// What stands for the longest known beginning of a text, or its first character, and the bytes that it stands for;
    /// `None` at the end of the text.
    fn prefix<'a>(&'a self, text: &'a str) -> Option<(&'a str, usize)> {
        let first = text.chars().next()?;
        let known = self.longest(text).and_then(|(offset, length)| {
            // A match that ends inside a character, or a string that is none: the file is faulty.
            let string = self.strings.get(offset..)?;
            let end = string.iter().position(|&byte| byte == 0)?;
            let string = std::str::from_utf8(&string[..end]).ok()?;
            text.is_char_boundary(length).then_some((string, length))
        });
        Some(known.unwrap_or((&text[..first.len_utf8()], first.len_utf8())))
    }

    /// The value of the longest known beginning of a text, and its bytes.
    fn longest(&self, text: &str) -> Option<(usize, usize)> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = offset(*self.units.first()?);
        let mut longest = None;
        for (index, byte) in text.bytes().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let Some(&leaf) = self.units.get(at) else { break };
                longest = Some(((leaf & !(1 << 31)) as usize, index + 1));
            }
        }
        longest
    }
}
