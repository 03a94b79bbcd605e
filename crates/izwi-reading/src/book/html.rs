//! HTML and XHTML: the blocks of text between the tags. Follows no link and runs nothing.

use std::collections::BTreeMap;

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};

use super::{Block, Outline};

/// Elements whose content is not for the ear.
const SKIPPED: &[&str] = &[
    "script", "style", "nav", "pre", "svg", "math", "template", "noscript", "rt", "rp", "iframe", "object",
    "audio", "video", "textarea", "select", "button",
];
/// Elements that end a paragraph before and behind them.
const BLOCKS: &[&str] = &[
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "caption",
    "center",
    "dd",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "li",
    "main",
    "ol",
    "p",
    "section",
    "table",
    "tbody",
    "tfoot",
    "thead",
    "tr",
    "ul",
];

/// What begins a chapter.
#[derive(Debug)]
pub(super) enum Chapters {
    /// Headings of the first two levels.
    Headings,
    /// The elements with these ids, whose chapters have these titles.
    Ids(BTreeMap<String, String>),
}

/// Adds what a document says to `outline`; returns its title.
pub(super) fn read(text: &str, chapters: &Chapters, outline: &mut Outline) -> Option<String> {
    let mut emitter = DefaultEmitter::<()>::default();
    // XHTML closes every element, an empty `<title/>` too, which HTML would take for the begin of one.
    emitter.naively_switch_states(matches!(chapters, Chapters::Headings));
    let mut reader =
        Reader { chapters, outline, text: String::new(), heading: None, skipped: None, title: None };
    for token in Tokenizer::new_with_emitter(text, emitter) {
        // Nothing can fail: the text is in memory.
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => reader.start(&tag),
            Token::EndTag(tag) => reader.end(&String::from_utf8_lossy(&tag.name)),
            Token::String(text) => reader.string(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    reader.flush();
    reader.title.map(|title| super::one_line(&title)).filter(|title| !title.is_empty())
}

struct Reader<'a> {
    chapters: &'a Chapters,
    outline: &'a mut Outline,
    /// The block so far.
    text: String,
    /// The level of the heading that the block is.
    heading: Option<u8>,
    /// The element that is left out, and how many of its kind are open.
    skipped: Option<(String, usize)>,
    title: Option<String>,
}

impl Reader<'_> {
    fn start(&mut self, tag: &StartTag<()>) {
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        let attribute = |key: &[u8]| {
            tag.attributes.get(key).map(|value| String::from_utf8_lossy(&value.value).into_owned())
        };
        if let Some((skipped, open)) = &mut self.skipped {
            *open += usize::from(*skipped == name && !tag.self_closing);
            return;
        }
        if let Chapters::Ids(ids) = self.chapters
            && let Some(title) = attribute(b"id").and_then(|id| ids.get(&id))
        {
            self.flush();
            self.outline.chapter(title);
        }
        let is_note = attribute(b"epub:type").is_some_and(|kind| kind.contains("noteref"))
            || attribute(b"role").is_some_and(|role| role == "doc-noteref");
        if is_note || SKIPPED.contains(&&*name) || name == "title" {
            if !tag.self_closing {
                if name == "title" && self.title.is_none() {
                    self.title = Some(String::new());
                }
                self.skipped = Some((name, 1));
            }
            return;
        }
        match &*name {
            "br" => self.text.push(' '),
            "td" | "th" if !self.text.trim().is_empty() => self.text.push_str(", "),
            "hr" => {
                self.flush();
                self.outline.push(Block::Break);
            }
            name if heading(name).is_some() => {
                self.flush();
                self.heading = heading(name);
            }
            name if BLOCKS.contains(&name) => self.flush(),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        if let Some((skipped, open)) = &mut self.skipped {
            *open -= usize::from(skipped == name);
            if *open == 0 {
                self.skipped = None;
            }
            return;
        }
        if heading(name).is_some() || BLOCKS.contains(&name) {
            self.flush();
        }
    }

    fn string(&mut self, text: &str) {
        match (&self.skipped, &mut self.title) {
            (None, _) => self.text.push_str(text),
            (Some((skipped, _)), Some(title)) if skipped == "title" => title.push_str(text),
            (Some(_), _) => {}
        }
    }

    /// Ends the block.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        match self.heading.take() {
            Some(level) => {
                if level <= 2 && matches!(self.chapters, Chapters::Headings) && !text.trim().is_empty() {
                    self.outline.chapter(&text);
                }
                self.outline.heading(&text);
            }
            None => self.outline.paragraph(&text),
        }
    }
}

/// The level of a heading.
fn heading(name: &str) -> Option<u8> {
    let level = name.strip_prefix('h')?;
    level.parse().ok().filter(|level| (1..=6).contains(level) && name.len() == 2)
}
