//! Books: chapters of headings and paragraphs out of text, Markdown, HTML and EPUB.
//!
//! Whatever a file contains, what is read of it is bounded. Knows no engine and no audio.

mod epub;
mod html;

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use izwi_hub::IoError;
use izwi_types::{excerpt, format_bytes};

use crate::error::BookError;

type Result<T> = std::result::Result<T, BookError>;

/// The largest EPUB.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The most text of a book, with its markup.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// The longest line of a text that may be the heading of a chapter, in bytes.
const MAX_HEADING_BYTES: usize = 80;

/// A book.
#[derive(Debug, Default, PartialEq)]
pub struct Book {
    pub title: Option<String>,
    pub author: Option<String>,
    pub cover: Option<Cover>,
    pub chapters: Vec<Chapter>,
}

/// The picture of a cover.
#[derive(Debug, PartialEq)]
pub struct Cover {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// A chapter.
#[derive(Debug, Default, PartialEq)]
pub struct Chapter {
    /// Empty if it has none.
    pub title: String,
    pub blocks: Vec<Block>,
}

/// A part of a chapter.
#[derive(Debug, PartialEq)]
pub enum Block {
    Heading(String),
    Paragraph(String),
    /// The scene changes.
    Break,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An EPUB.
    Epub,
    /// Markdown.
    Markdown,
    /// HTML or XHTML.
    Html,
    /// Text.
    Text,
}

impl Kind {
    /// The kind of a file of this name.
    ///
    /// # Errors
    /// Its extension is that of something else.
    pub fn of(name: &Path) -> Result<Self> {
        let extension = name.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        Ok(match extension.as_deref() {
            Some("epub") => Self::Epub,
            Some("md" | "markdown") => Self::Markdown,
            Some("html" | "htm" | "xhtml") => Self::Html,
            Some("txt" | "text") | None => Self::Text,
            Some(other) => {
                return Err(BookError::unusable(
                    format!("'{}' asks for {}, which is not read", name.display(), excerpt(other)),
                    "name a file with one of the extensions .epub, .md, .txt, .html",
                ));
            }
        })
    }
}

/// Reads the book in a file; its extension tells the format.
///
/// # Errors
/// The file cannot be read, is too large or damaged, or has nothing to read aloud.
pub fn read(path: &Path) -> Result<Book> {
    // A file that is not there is told before its name is judged.
    path.metadata().map_err(IoError::at("read", path))?;
    read_as(path, Kind::of(path)?, &path.display().to_string())
}

/// Reads the book in a file of a kind, which has another name for its reader.
///
/// # Errors
/// As [`read`].
pub fn read_as(path: &Path, kind: Kind, name: &str) -> Result<Book> {
    let file = File::open(path).map_err(IoError::at("read", path))?;
    let bytes = file.metadata().map_err(IoError::at("read", path))?.len();
    let limit = if kind == Kind::Epub { MAX_FILE_BYTES } else { MAX_TEXT_BYTES };
    if bytes > limit {
        return Err(too_large(name, limit));
    }
    if kind == Kind::Epub {
        return checked(epub::read(BufReader::new(file)).map_err(|error| error.within(name))?, name);
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(IoError::at("read", path))?;
    of(&utf8(bytes, name)?, kind, name)
}

/// The book that a text of a kind is; `name` is what its reader calls it.
///
/// # Errors
/// It is too large, has nothing to read aloud, or is of a kind that is no text.
pub fn of(text: &str, kind: Kind, name: &str) -> Result<Book> {
    if text.len() as u64 > MAX_TEXT_BYTES {
        return Err(too_large(name, MAX_TEXT_BYTES));
    }
    let book = match kind {
        Kind::Epub => return Err(BookError::unusable(format!("{name} is no EPUB"), "send it as a file")),
        Kind::Markdown => of_markdown(text),
        Kind::Html => of_html(text),
        Kind::Text => of_text(text),
    };
    checked(book, name)
}

fn too_large(name: &str, limit: u64) -> BookError {
    BookError::unusable(format!("{name} has more than {}", format_bytes(limit)), "split it into parts")
}

/// A book that has text, and a title.
fn checked(mut book: Book, name: &str) -> Result<Book> {
    if !book.chapters.iter().any(|chapter| chapter.blocks.iter().any(|block| *block != Block::Break)) {
        return Err(BookError::unusable(
            format!("{name} has no text"),
            "a book of pictures needs its text first",
        ));
    }
    if book.title.is_none() {
        book.title = Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    }
    Ok(book)
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        BookError::unusable(format!("{name} is not UTF-8 text (byte {at})"), "convert it, e.g. with iconv")
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
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
