//! The cast: which voice reads what.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Quotation marks that open speech, and those that close it.
const QUOTES: &[(char, char)] = &[('“', '”'), ('„', '“'), ('«', '»'), ('「', '」'), ('"', '"')];

/// Voices by role, the table of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// Reads everything else.
    narrator: Option<String>,
    /// Reads what stands between quotation marks.
    quotes: Option<String>,
    /// Read the paragraphs that begin with their name and a colon.
    #[serde(default)]
    speakers: BTreeMap<String, String>,
}

impl Cast {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is no cast; the message says why.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    /// The voice that reads everything else.
    pub fn narrator(&self) -> Option<&str> {
        self.narrator.as_deref()
    }

    /// All voices that it names.
    pub fn voices(&self) -> impl Iterator<Item = &str> {
        self.narrator.iter().chain(&self.quotes).chain(self.speakers.values()).map(String::as_str)
    }

    /// The parts of a paragraph with their voices; `None` is the narrator's.
    pub fn parts<'a>(&'a self, paragraph: &'a str) -> Vec<(Option<&'a str>, &'a str)> {
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
