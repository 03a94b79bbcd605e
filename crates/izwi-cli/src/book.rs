//! Books: chapters of headings and paragraphs out of text, Markdown, HTML and EPUB.
//!
//! Whatever a file contains, what is read of it is bounded. Knows no engine and no audio.

mod epub;
mod html;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{failure, input};

/// The largest EPUB.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The most text of a book, with its markup.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// The longest line of a text that may be the heading of a chapter, in bytes.
const MAX_HEADING_BYTES: usize = 80;

/// A book.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Book {
    pub(crate) title: Option<String>,
    pub(crate) author: Option<String>,
    pub(crate) cover: Option<Cover>,
    pub(crate) chapters: Vec<Chapter>,
}

/// The picture of a cover.
#[derive(Debug, PartialEq)]
pub(crate) struct Cover {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// A chapter.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chapter {
    /// Empty if it has none.
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block>,
}

/// A part of a chapter.
#[derive(Debug, PartialEq)]
pub(crate) enum Block {
    Heading(String),
    Paragraph(String),
    /// The scene changes.
    Break,
}

/// Reads the book in a file; its extension tells the format.
///
/// # Errors
/// The file cannot be read, is too large or damaged, or has nothing to read aloud.
pub(crate) fn read(path: &Path) -> Result<Book> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let text = || utf8(input::read_file(path, MAX_TEXT_BYTES)?, &name);
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let mut book = match extension.as_deref() {
        Some("epub") => {
            if file.metadata()?.len() > MAX_FILE_BYTES {
                return Err(input::too_large(&name, MAX_FILE_BYTES));
            }
            epub::read(BufReader::new(file)).with_context(|| format!("cannot read {name}"))?
        }
        Some("md" | "markdown") => of_markdown(&text()?),
        Some("html" | "htm" | "xhtml") => of_html(&text()?),
        Some("txt" | "text") | None => of_text(&text()?),
        Some(other) => {
            return Err(failure::usage(
                format!("'{name}' asks for {other}, which is not read"),
                "name a file with one of the extensions .epub, .md, .txt, .html",
            ));
        }
    };
    if !book.chapters.iter().any(|chapter| chapter.blocks.iter().any(|block| *block != Block::Break)) {
        return Err(failure::with_help(
            format!("{name} has no text"),
            "a book of pictures needs its text first",
        ));
    }
    if book.title.is_none() {
        book.title = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    }
    Ok(book)
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        failure::usage(format!("{name} is not UTF-8 text (byte {at})"), "convert it, e.g. with iconv")
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Paragraphs between blank lines. A short one that begins with `Chapter` or `Part` begins a chapter.
fn of_text(text: &str) -> Book {
    let mut outline = Outline::default();
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        if !line.trim().is_empty() {
            paragraph.push_str(line);
            paragraph.push('\n');
            continue;
        }
        let whole = paragraph.trim();
        if is_chapter(whole) {
            outline.chapter(whole);
            outline.heading(whole);
        } else {
            outline.paragraph(whole);
        }
        paragraph.clear();
    }
    Book { chapters: outline.finish(), ..Book::default() }
}

fn is_chapter(paragraph: &str) -> bool {
    let first = paragraph.split_whitespace().next().unwrap_or_default();
    paragraph.len() <= MAX_HEADING_BYTES
        && !paragraph.contains('\n')
        && ["chapter", "part"].iter().any(|word| first.eq_ignore_ascii_case(word))
        && !paragraph.ends_with(['.', '!', '?', ',', '"', '”'])
        || paragraph.len() <= MAX_HEADING_BYTES
            && ["prologue", "epilogue"].iter().any(|word| paragraph.eq_ignore_ascii_case(word))
}

fn of_markdown(text: &str) -> Book {
    use pulldown_cmark::Options;
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    let mut html = String::with_capacity(text.len() * 2);
    pulldown_cmark::html::push_html(&mut html, pulldown_cmark::Parser::new_ext(text, options));
    of_html(&html)
}

fn of_html(text: &str) -> Book {
    let mut outline = Outline::default();
    let title = html::read(text, &html::Chapters::Headings, &mut outline);
    Book { title, chapters: outline.finish(), ..Book::default() }
}

/// Collects the chapters of a book in order.
#[derive(Debug, Default)]
struct Outline {
    chapters: Vec<Chapter>,
}

impl Outline {
    /// Begins a chapter.
    fn chapter(&mut self, title: &str) {
        let title = one_line(title);
        match self.chapters.last_mut() {
            // A title page above the first chapter, or a part above its first: no chapter has a heading alone.
            Some(last) if !last.blocks.iter().any(|block| matches!(block, Block::Paragraph(_))) => {
                last.title = title;
            }
            _ => self.chapters.push(Chapter { title, blocks: Vec::new() }),
        }
    }

    fn heading(&mut self, text: &str) {
        let text = one_line(text);
        if text.contains(char::is_alphanumeric) {
            self.push(Block::Heading(text));
        }
    }

    /// Adds a paragraph; one without a letter or digit is a break, such as three asterisks.
    fn paragraph(&mut self, text: &str) {
        let text = one_line(text);
        if text.contains(char::is_alphanumeric) {
            self.push(Block::Paragraph(text));
        } else if !text.is_empty() {
            self.push(Block::Break);
        }
    }

    fn push(&mut self, block: Block) {
        if self.chapters.is_empty() {
            self.chapters.push(Chapter::default());
        }
        if let Some(last) = self.chapters.last_mut() {
            last.blocks.push(block);
        }
    }

    fn finish(mut self) -> Vec<Chapter> {
        self.chapters.retain(|chapter| chapter.blocks.iter().any(|block| *block != Block::Break));
        self.chapters
    }
}

/// A text without line ends, runs of spaces, soft hyphens and control characters.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .join(" ")
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '\u{ad}' | '\u{200b}' | '\u{feff}'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The book in words: `# title`, `= heading`, paragraphs, `*` for breaks.
    pub(super) fn shown(chapters: &[Chapter]) -> Vec<String> {
        let block = |block: &Block| match block {
            Block::Heading(text) => format!("= {text}"),
            Block::Paragraph(text) => text.clone(),
            Block::Break => "*".to_owned(),
        };
        let lines = |chapter: &Chapter| {
            let mut lines = vec![format!("# {}", chapter.title)];
            lines.extend(chapter.blocks.iter().map(block));
            lines
        };
        chapters.iter().flat_map(lines).collect()
    }

    #[test]
    fn a_text_has_paragraphs_and_chapters() {
        let text = "\r\nChapter I\r\n\r\nIt was\r\nlate.\r\n\r\n* * *\r\n\r\nPart of it was true.\r\n\r\nCHAPTER II: Day\r\n\r\nNoon.";
        let expected = [
            "# Chapter I",
            "= Chapter I",
            "It was late.",
            "*",
            "Part of it was true.",
            "# CHAPTER II: Day",
            "= CHAPTER II: Day",
            "Noon.",
        ];
        assert_eq!(shown(&of_text(text).chapters), expected);
    }

    #[test]
    fn markdown_is_read_as_it_is_meant() {
        let text = "---\ntitle: x\n---\n# Book\n\n## One\n\nSee [the page](https://a.b/c) and `cargo`.\n\n- first\n- second\n\n\
                    ```rust\nfn main() {}\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\n### Deeper\n\nAn ![image](x.png) *here*.\n\n## Two\n\nEnd.";
        let expected = [
            "# One",
            "= Book",
            "= One",
            "See the page and cargo.",
            "first",
            "second",
            "a, b",
            "1, 2",
            "*",
            "= Deeper",
            "An here.",
            "# Two",
            "= Two",
            "End.",
        ];
        assert_eq!(shown(&of_markdown(text).chapters), expected);
    }

    #[test]
    fn html_is_read_without_its_code() {
        let text = "<!DOCTYPE html><title>A &amp; B</title><style>p { x: y }</style><script>if (a<b) { '</p>' }</script>\
                    <nav><a>Home</a></nav><h1>One</h1><p>Caf&eacute;&nbsp;au<br>lait<sup><a epub:type='noteref'>1</a></sup>.\
                    <ruby>漢<rp>(</rp><rt>kan</rt></ruby><p>Unclosed <b>b</i> text";
        let book = of_html(text);
        assert_eq!(book.title.as_deref(), Some("A & B"));
        assert_eq!(shown(&book.chapters), ["# One", "= One", "Café au lait.漢", "Unclosed b text"]);
    }

    #[test]
    fn files_without_text_and_of_other_kinds_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, part) in [
            ("a.txt", &b" \n\n* * *\n"[..], "has no text"),
            ("a.txt", b"ab\xff", "byte 2"),
            ("a.pdf", b"%PDF", "asks for pdf"),
            ("a.epub", b"PK\x03\x04 and not more", "a.epub"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = failure::render(&read(&path).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
