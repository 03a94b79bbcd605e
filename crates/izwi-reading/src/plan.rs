//! The plan of a book: its units in order, with the silence before each.

use izwi_core::engine::request::sentence_ends;

use crate::book::{Block, Book};
use crate::cast::Cast;

/// Silence between the parts of a paragraph, in seconds.
const PART_PAUSE_S: f64 = 0.2;
/// Silence between paragraphs.
const PARAGRAPH_PAUSE_S: f64 = 0.6;
/// Silence before and behind a heading, and where the scene changes.
const HEADING_PAUSE_S: f64 = 1.0;
/// Silence between chapters.
const CHAPTER_PAUSE_S: f64 = 1.5;
/// The longest unit, in characters: about a minute of speech.
const MAX_UNIT_CHARS: usize = 1_000;

/// What is spoken at once.
#[derive(Debug, PartialEq)]
pub struct Unit {
    pub text: String,
    /// The voice of the cast; `None` is the narrator's.
    pub voice: Option<String>,
    /// Index of its chapter.
    pub chapter: usize,
    /// Silence between the unit before and this one.
    pub pause_s: f64,
}

/// The units of a book in order.
#[derive(Debug)]
pub struct Plan {
    /// Titles of the chapters.
    pub chapters: Vec<String>,
    pub units: Vec<Unit>,
}

impl Plan {
    /// Plans a book.
    pub fn new(book: &Book, cast: &Cast) -> Self {
        let mut units: Vec<Unit> = Vec::new();
        for (chapter, contents) in book.chapters.iter().enumerate() {
            let mut pause_s = CHAPTER_PAUSE_S;
            for block in &contents.blocks {
                let (parts, around_s) = match block {
                    Block::Heading(text) => (vec![(None, &**text)], HEADING_PAUSE_S),
                    Block::Paragraph(text) => (cast.parts(text), PARAGRAPH_PAUSE_S),
                    Block::Break => {
                        pause_s = pause_s.max(HEADING_PAUSE_S);
                        continue;
                    }
                };
                pause_s = pause_s.max(around_s);
                for (voice, part) in parts {
                    for text in pieces(part) {
                        units.push(Unit { text, voice: voice.map(str::to_owned), chapter, pause_s });
                        pause_s = PART_PAUSE_S;
                    }
                }
                pause_s = pause_s.max(around_s);
            }
        }
        let title = |(number, title): (usize, &str)| match title {
            "" => format!("Chapter {number}"),
            title => title.to_owned(),
        };
        let titles = book.chapters.iter().map(|chapter| &*chapter.title);
        Self { chapters: (1..).zip(titles).map(title).collect(), units }
    }
}

/// The pieces of a text that are spoken at once: it, or as many of its sentences as fit.
fn pieces(text: &str) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), text.trim());
    while let Some((limit, _)) = rest.char_indices().nth(MAX_UNIT_CHARS) {
        let head = &rest[..limit];
        let end = sentence_ends(head).last().copied().or_else(|| head.rfind(' ')).filter(|end| *end > 0);
        let (piece, after) = rest.split_at(end.unwrap_or(limit));
        pieces.push(piece);
        rest = after.trim_start();
    }
    pieces.push(rest);
    let pieces = pieces.into_iter().map(str::trim).filter(|piece| piece.contains(char::is_alphanumeric));
    pieces.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Chapter;

    #[test]
    fn pauses_follow_the_structure() {
        let paragraph = |text: &str| Block::Paragraph(text.to_owned());
        let chapter = |title: &str, blocks| Chapter { title: title.to_owned(), blocks };
        let chapters = vec![
            chapter(
                "One",
                vec![
                    Block::Heading("One".into()),
                    paragraph("a"),
                    paragraph("b"),
                    Block::Break,
                    paragraph("c"),
                ],
            ),
            chapter("", vec![paragraph(&"A sentence of five words. ".repeat(60))]),
        ];
        let plan = Plan::new(&Book { chapters, ..Book::default() }, &Cast::default());
        assert_eq!(plan.chapters, ["One", "Chapter 2"]);
        let pauses: Vec<f64> = plan.units.iter().map(|unit| unit.pause_s).collect();
        assert_eq!(pauses, [1.5, 1.0, 0.6, 1.0, 1.5, 0.2]);
        assert!(plan.units.iter().all(|unit| unit.text.len() <= MAX_UNIT_CHARS));
        assert!(plan.units[4].text.ends_with("words."), "{}", plan.units[4].text);
    }

    #[test]
    fn a_text_without_sentences_and_spaces_is_cut() {
        assert_eq!(
            pieces(&"é".repeat(2_500)).iter().map(|piece| piece.chars().count()).collect::<Vec<_>>(),
            [1_000, 1_000, 500]
        );
        assert_eq!(pieces("  short "), ["short"]);
    }
}
