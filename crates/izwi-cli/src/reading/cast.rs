//! The cast: which voice reads what.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::{failure, input};

const MAX_BYTES: u64 = 1 << 20;
/// Quotation marks that open speech, and those that close it.
const QUOTES: &[(char, char)] = &[('“', '”'), ('„', '“'), ('«', '»'), ('「', '」'), ('"', '"')];

/// Voices by role, the table of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cast {
    /// Reads everything else.
    narrator: Option<String>,
    /// Reads what stands between quotation marks.
    quotes: Option<String>,
    /// Read the paragraphs that begin with their name and a colon.
    #[serde(default)]
    speakers: BTreeMap<String, String>,
}

impl Cast {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or is no cast.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes = input::read_file(path, MAX_BYTES)?;
        let text =
            String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))?;
        toml::from_str(&text).map_err(|error| {
            failure::usage(
                format!("{} is no cast: {}", path.display(), error.message()),
                "it may have narrator, quotes, and a table [speakers] of names and voices",
            )
        })
    }

    /// The voice that reads everything else.
    pub(crate) fn narrator(&self) -> Option<&str> {
        self.narrator.as_deref()
    }

    /// All voices that it names.
    pub(crate) fn voices(&self) -> impl Iterator<Item = &str> {
        self.narrator.iter().chain(&self.quotes).chain(self.speakers.values()).map(String::as_str)
    }

    /// The parts of a paragraph with their voices; `None` is the narrator's.
    pub(crate) fn parts<'a>(&'a self, paragraph: &'a str) -> Vec<(Option<&'a str>, &'a str)> {
        if let Some((name, line)) = paragraph.split_once(':')
            && let Some(voice) = self.speakers.get(name.trim())
        {
            return vec![(Some(voice), line.trim())];
        }
        let Some(quotes) = &self.quotes else { return vec![(None, paragraph)] };
        let (mut parts, mut rest) = (Vec::new(), paragraph);
        while let Some((from, to)) = quotation(rest) {
            parts.push((None, &rest[..from]));
            parts.push((Some(&**quotes), &rest[from..to]));
            rest = &rest[to..];
        }
        parts.push((None, rest));
        parts.retain(|(_, text)| text.contains(char::is_alphanumeric));
        parts
    }
}

/// Where the next quotation begins and ends. Speech that the paragraph does not close goes on in the next one.
fn quotation(text: &str) -> Option<(usize, usize)> {
    let (from, close) =
        text.char_indices().find_map(|(at, c)| Some((at, QUOTES.iter().find(|(open, _)| *open == c)?.1)))?;
    let inner = from + text[from..].chars().next()?.len_utf8();
    let to = text[inner..].find(close).map_or(text.len(), |at| inner + at + close.len_utf8());
    Some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_their_voices() {
        let cast: Cast = toml::from_str("narrator = 'n'\nquotes = 'q'\n[speakers]\nAlice = 'a'").unwrap();
        assert_eq!(cast.parts("Alice: Good day: sir."), [(Some("a"), "Good day: sir.")]);
        assert_eq!(cast.parts("Bob: Hm."), [(None, "Bob: Hm.")]);
        let parts = cast.parts("“No,” he said. \"Or yes? …");
        assert_eq!(parts, [(Some("q"), "“No,”"), (None, " he said. "), (Some("q"), "\"Or yes? …")]);
        assert_eq!(Cast::default().parts("“No,” he said."), [(None, "“No,” he said.")]);
        assert!(toml::from_str::<Cast>("narator = 'n'").is_err());
    }
}
