//! Where the marks of a text are: elements of SSML 1.1 and of its dialects, pauses and sounds in brackets.
//!
//! A text is no document: whatever is not clearly a mark is text. Each mark is looked for in a window of bounded length, so
//! that the time is linear in the text. Knows nothing of what marks mean.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// A longer mark is text.
const MAX_MARK_BYTES: usize = 1_024;
/// A longer mark in brackets is text, and so is one on two lines.
const MAX_SHORT_BYTES: usize = 256;
/// A longer comment is text.
const MAX_COMMENT_BYTES: usize = 16 << 10;

/// Elements of SSML 1.1 and of the common dialects: <https://www.w3.org/TR/speech-synthesis11/>.
macro_rules! elements {
    () => {
        "speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang|token|desc|lexicon|lookup|metadata|meta
            |par|seq|media|(?:amazon|google|mstts|ibm|x-[a-z]+):[a-z-]+"
    };
}
/// Elements of one letter are common in mathematics and in HTML, so they have attributes of XML at most.
const TAG: &str = concat!(
    r"(?xis)^<(?P<close>/)?(?: (?P<name>",
    elements!(),
    r")(?P<attributes>\s[^<>]*?)? | (?P<short>[psw])(?:\s+xml:[^<>]*?)? )\s*(?P<empty>/)?>$"
);
/// What may become a tag, a comment or a declaration with more text.
const BEGINNING: &str = concat!(
    r"(?xis)^<(?: /?[a-z:-]* | /?(?:",
    elements!(),
    r"|[psw])[\s/][^<>]* | [?!](?:-|[a-z\[][^<>]*)? )$"
);
const UNCLOSED: &str =
    r"(?xis)^<(?:speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang)\s[^<>]*$";
const DECLARATION: &str = r"(?is)^<[?!][a-z\[][^<>]*>$";
const PAUSE: &str = r"(?xi)^\[\s*(?:pause|break|silence)(?:[\s:=,]+(?P<number>[-\d.,]+))?\s*
    (?:(?P<unit>ms|s|sec|secs|seconds?)|(?P<long>m|mins?|minutes?|h|hours?))?\s*\]";
const SOUNDS: &str = r"^\{(?P<word>[^{}|\n]{1,100})\|\s*/(?P<sounds>[^{}/|\n]{1,200})/\s*\}";
const ATTRIBUTE: &str = r#"(?s)([A-Za-z][A-Za-z0-9:_-]*)\s*=\s*(?:"([^"]*)"|'([^']*)')"#;

struct Patterns {
    tag: Regex,
    beginning: Regex,
    unclosed: Regex,
    declaration: Regex,
    pause: Regex,
    sounds: Regex,
    attribute: Regex,
}

static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
    let compiled = || {
        Ok::<_, regex::Error>(Patterns {
            tag: Regex::new(TAG)?,
            beginning: Regex::new(BEGINNING)?,
            unclosed: Regex::new(UNCLOSED)?,
            declaration: Regex::new(DECLARATION)?,
            pause: Regex::new(PAUSE)?,
            sounds: Regex::new(SOUNDS)?,
            attribute: Regex::new(ATTRIBUTE)?,
        })
    };
    compiled().inspect_err(|error| tracing::error!(%error, "markup is not recognised")).ok()
});

/// What a mark is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// The beginning of an element, and whether it is also its end.
    Open { name: String, attributes: Vec<(String, &'a str)>, is_empty: bool },
    /// The end of an element.
    Close { name: String },
    /// A pause in brackets, as long as is written there.
    Pause { number: Option<&'a str>, is_ms: bool },
    /// A word and its sounds.
    Sounds { word: Range<usize>, sounds: &'a str },
    /// A comment or a declaration.
    Note,
    /// The beginning of a mark where the text ends.
    Cut,
}

/// A mark of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark<'a> {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind<'a>,
}

/// The marks of a text, in order.
pub(super) fn find(text: &str) -> Marks<'_> {
    Marks { text, is_whole: true, at: 0, comment_end: None, open: None }
}

/// The marks of the beginning of a text, as they are in the whole.
pub(super) fn find_in_beginning(text: &str) -> Marks<'_> {
    Marks { is_whole: false, ..find(text) }
}

/// Finds marks.
#[derive(Debug)]
pub(super) struct Marks<'a> {
    text: &'a str,
    /// Whether no text follows.
    is_whole: bool,
    at: usize,
    /// Where the next comment ends that is not behind `at`; the end of the text if none does.
    comment_end: Option<usize>,
    /// Where what may become a mark with more text begins. No mark is looked for behind it.
    pub(super) open: Option<usize>,
}

/// What begins at a bracket.
enum Found<'a> {
    /// A mark of so many bytes.
    Mark(usize, Kind<'a>),
    Text,
    /// Text, or the beginning of a mark.
    Open,
}

impl<'a> Iterator for Marks<'a> {
    type Item = Mark<'a>;

    fn next(&mut self) -> Option<Mark<'a>> {
        let patterns = PATTERNS.as_ref()?;
        while self.open.is_none() {
            let start = self.at + self.text.get(self.at..)?.find(['<', '[', '{'])?;
            match self.mark_at(patterns, start) {
                Found::Mark(length, kind) => {
                    self.at = start + length;
                    return Some(Mark { range: start..self.at, kind });
                }
                Found::Open if !self.is_whole => self.open = Some(start),
                Found::Open | Found::Text => self.at = start + 1,
            }
        }
        None
    }
}

impl<'a> Marks<'a> {
    fn mark_at(&mut self, patterns: &Patterns, start: usize) -> Found<'a> {
        let text = &self.text[start..];
        let within = |most: usize| &text[..text.floor_char_boundary(most)];
        let short = |find: fn(&Patterns, &'a str, usize) -> Option<(usize, Kind<'a>)>, close: char| {
            let window = within(MAX_SHORT_BYTES);
            let window = &window[..window.find('\n').unwrap_or(window.len())];
            match find(patterns, window, start) {
                Some((length, kind)) => Found::Mark(length, kind),
                // More text changes the window.
                None if window.len() == text.len() && !window.contains(close) => Found::Open,
                None => Found::Text,
            }
        };
        match text.as_bytes()[0] {
            b'[' => short(pause, ']'),
            b'{' => short(sounds, '}'),
            _ if text.starts_with("<!--") => self.comment(start),
            _ => tag(patterns, within(MAX_MARK_BYTES), text.len() < MAX_MARK_BYTES, self.is_whole),
        }
    }

    fn comment(&mut self, start: usize) -> Found<'a> {
        let end = self.comment_end.filter(|&end| end >= start + 4).unwrap_or_else(|| {
            self.text[start + 4..].find("-->").map_or(self.text.len(), |end| start + 4 + end)
        });
        self.comment_end = Some(end);
        if end - start > MAX_COMMENT_BYTES {
            Found::Text
        } else if end == self.text.len() {
            Found::Open
        } else {
            Found::Mark(end + 3 - start, Kind::Note)
        }
    }
}

fn pause<'a>(patterns: &Patterns, window: &'a str, _: usize) -> Option<(usize, Kind<'a>)> {
    let found = patterns.pause.captures(window)?;
    let unit = found.name("unit").map(|unit| unit.as_str());
    let is_ms = unit.is_some_and(|unit| unit.eq_ignore_ascii_case("ms"));
    // No pause is as long as minutes.
    let number = found.name("long").map(|_| "").or(found.name("number").map(|number| number.as_str()));
    Some((found.get(0)?.len(), Kind::Pause { number, is_ms }))
}

fn sounds<'a>(patterns: &Patterns, window: &'a str, start: usize) -> Option<(usize, Kind<'a>)> {
    let found = patterns.sounds.captures(window)?;
    let word = found.name("word")?;
    let word = start + word.start()..start + word.end();
    Some((found.get(0)?.len(), Kind::Sounds { word, sounds: found.name("sounds")?.as_str() }))
}

/// The tag at the start of a window; `is_all`: the text ends in the window.
fn tag<'a>(patterns: &Patterns, window: &'a str, is_all: bool, is_whole: bool) -> Found<'a> {
    let end = window[1..].find(['<', '>']).map(|end| end + 1);
    let attributes = |written: Option<regex::Match<'a>>| {
        let found = patterns.attribute.captures_iter(written.map_or("", |written| written.as_str()));
        let attribute = |found: regex::Captures<'a>| {
            let value = found.get(2).or(found.get(3)).map_or("", |value| value.as_str());
            Some((found.get(1)?.as_str().to_ascii_lowercase(), value))
        };
        found.filter_map(attribute).collect()
    };
    let Some(end) = end else {
        return match is_all {
            // A tag at the end that nothing closes.
            true if is_whole && patterns.unclosed.is_match(window) => Found::Mark(window.len(), Kind::Cut),
            true if patterns.beginning.is_match(window) => Found::Open,
            _ => Found::Text,
        };
    };
    let tag = &window[..=end];
    let Some(found) = patterns.tag.captures(tag) else {
        return match patterns.declaration.is_match(tag) {
            true => Found::Mark(tag.len(), Kind::Note),
            false => Found::Text,
        };
    };
    let Some(name) = found.name("name").or(found.name("short")) else { return Found::Text };
    let name = name.as_str().to_ascii_lowercase();
    let kind = match found.name("close") {
        Some(_) => Kind::Close { name },
        None => {
            let is_empty = found.name("empty").is_some();
            Kind::Open { name, attributes: attributes(found.name("attributes")), is_empty }
        }
    };
    Found::Mark(tag.len(), kind)
}
