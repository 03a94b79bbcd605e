//! Where the marks of a text are: elements of SSML 1.1 and of its dialects, pauses and sounds in brackets.
//!
//! A text is no document: whatever is not clearly a mark is text. Each mark is looked for in a window of bounded length, so
//! that the time is linear in the text. Knows nothing of what marks mean.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// A longer mark is text.
pub(super) const MAX_MARK_BYTES: usize = 1_024;

/// A longer mark in brackets that is still open is text.
const MAX_SHORT_BYTES: usize = 256;

/// Elements of SSML 1.1 and of the common dialects: <https://www.w3.org/TR/speech-synthesis11/>. Those of one letter are
/// common in mathematics and in HTML, so they have attributes of XML at most.
const TAG: &str = r#"(?xis)^<(?P<close>/)?(?:
    (?P<name>speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang|token|desc|lexicon|lookup|metadata|meta
        |par|seq|media|(?:amazon|google|mstts|ibm|x-[a-z]+):[a-z-]+)(?P<attributes>\s[^<>]*?)?
    |(?P<short>[psw])(?:\s+xml:[^<>]*?)?
    )\s*(?P<empty>/)?>$"#;
const UNCLOSED: &str =
    r"(?xis)^<(?:speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang)\s[^<>]*$";
const DECLARATION: &str = r"(?is)^<[?!][a-z\[][^<>]*>$";
const PAUSE: &str = r"(?xi)^\[\s*(?:pause|break|silence)(?:[\s:=,]+(?P<number>[\d.,]+))?\s*
    (?P<unit>ms|s|sec|secs|seconds?)?\s*\]";
const SOUNDS: &str = r"^\{(?P<word>[^{}|\n]{1,100})\|\s*/(?P<sounds>[^{}/|\n]{1,200})/\s*\}";
const ATTRIBUTE: &str = r#"(?s)([A-Za-z][A-Za-z0-9:_-]*)\s*=\s*(?:"([^"]*)"|'([^']*)')"#;

struct Patterns {
    tag: Regex,
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
pub(super) fn find(text: &str) -> impl Iterator<Item = Mark<'_>> {
    let mut at = 0;
    // Where no comment ends any more.
    let mut ends_no_comment = false;
    std::iter::from_fn(move || {
        let patterns = PATTERNS.as_ref()?;
        loop {
            let start = at + text.get(at..)?.find(['<', '[', '{'])?;
            let window = &text[start..text.floor_char_boundary(start + MAX_MARK_BYTES)];
            let found = match text.as_bytes()[start] {
                b'[' => pause(patterns, window),
                b'{' => sounds(patterns, window, start),
                _ if window.starts_with("<!--") => {
                    let end = if ends_no_comment { None } else { text[start..].find("-->") };
                    ends_no_comment |= end.is_none();
                    end.map(|end| (end + 3, Kind::Note))
                }
                _ => tag(patterns, window, start + window.len() == text.len()),
            };
            let Some((length, kind)) = found else {
                at = start + 1;
                continue;
            };
            at = start + length;
            return Some(Mark { range: start..at, kind });
        }
    })
}

/// Whether `open`, which begins with the first character of a mark, may become one with more text.
pub(super) fn may_become_one(open: &str) -> bool {
    let is_closed = open.contains(['>', ']', '}', '\n']) && !open.starts_with("<!--");
    let name = open[1..].trim_start_matches(['/', '?', '!', ' ', '-']);
    let begins = name.is_empty() || name.starts_with(|c: char| c.is_alphabetic() || c == '\'');
    // Prose in brackets does not wait for long.
    let most = if open.starts_with('<') { MAX_MARK_BYTES } else { MAX_SHORT_BYTES };
    !is_closed && open.len() <= most && begins
}

fn pause<'a>(patterns: &Patterns, window: &'a str) -> Option<(usize, Kind<'a>)> {
    let found = patterns.pause.captures(window)?;
    let unit = found.name("unit").map(|unit| unit.as_str());
    let is_ms = unit.is_some_and(|unit| unit.eq_ignore_ascii_case("ms"));
    let number = found.name("number").map(|number| number.as_str());
    Some((found.get(0)?.len(), Kind::Pause { number, is_ms }))
}

fn sounds<'a>(patterns: &Patterns, window: &'a str, start: usize) -> Option<(usize, Kind<'a>)> {
    let found = patterns.sounds.captures(window)?;
    let word = found.name("word")?;
    let word = start + word.start()..start + word.end();
    Some((found.get(0)?.len(), Kind::Sounds { word, sounds: found.name("sounds")?.as_str() }))
}

fn tag<'a>(patterns: &Patterns, window: &'a str, is_all: bool) -> Option<(usize, Kind<'a>)> {
    let end = window[1..].find(['<', '>']).map(|end| end + 1).filter(|&end| window.as_bytes()[end] == b'>');
    let attributes = |written: Option<regex::Match<'a>>| {
        let found = patterns.attribute.captures_iter(written.map_or("", |written| written.as_str()));
        let attribute = |found: regex::Captures<'a>| {
            let value = found.get(2).or(found.get(3)).map_or("", |value| value.as_str());
            Some((found.get(1)?.as_str().to_ascii_lowercase(), value))
        };
        found.filter_map(attribute).collect()
    };
    let Some(end) = end else {
        // A tag at the end that nothing closes.
        return (is_all && patterns.unclosed.is_match(window)).then_some((window.len(), Kind::Cut));
    };
    let tag = &window[..=end];
    let Some(found) = patterns.tag.captures(tag) else {
        return patterns.declaration.is_match(tag).then_some((tag.len(), Kind::Note));
    };
    let name = found.name("name").or(found.name("short"))?.as_str().to_ascii_lowercase();
    let kind = match found.name("close") {
        Some(_) => Kind::Close { name },
        None => {
            let is_empty = found.name("empty").is_some();
            Kind::Open { name, attributes: attributes(found.name("attributes")), is_empty }
        }
    };
    Some((tag.len(), kind))
}
