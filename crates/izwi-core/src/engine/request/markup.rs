//! Markup in a text to speak: SSML tags and pauses in brackets, which no model obeys and which would be read aloud.
//!
//! The words between tags stay. Must not know models.

use std::sync::LazyLock;

use izwi_types::excerpt;
use regex::Regex;

use crate::engine::executor::Markup;

/// Marks that are reported for one text.
const MAX_FOUND: usize = 8;
/// A longer mark that is still open is text.
const MAX_OPEN_BYTES: usize = 256;

/// Elements of SSML 1.1 and of the common dialects <https://www.w3.org/TR/speech-synthesis11/>, comments, declarations, and
/// pauses in brackets.
const MARKUP: &str = r#"(?xi)
    </?(?:speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang|token|desc|lexicon|lookup|meta|metadata
        |par|seq|media|(?:amazon|google|mstts|ibm|x-[a-z]+):[a-z-]+)(?:\s[^<>]*)?/?>
    |</?[psw]\s*/?>
    |<!--(?:[^-]|-[^-])*-->
    |<[?!][a-z\[][^<>]*>
    |\[\s*(?:pause|break|silence)(?:[\s:=,]+[\d.,]+)?\s*(?:ms|s|sec|secs|seconds?)?\s*\]
    # A tag at the end that nothing closes.
    |<(?:speak|break|prosody|emphasis|say-as|phoneme|sub|voice|audio|mark|lang)\s[^<>]*$"#;

static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let compiled = Regex::new(MARKUP);
    compiled.inspect_err(|error| tracing::error!(%error, "markup is not left out")).ok()
});

/// A text without its markup, and the marks that were left out, each once.
///
/// `keeps_places` puts as many spaces in their place, so that offsets of words stay those of the written text.
pub(super) fn strip(text: &str, keeps_places: bool) -> (String, Vec<String>) {
    let mut filter = Filter { keeps_places, ..Filter::default() };
    (filter.push(text, true), filter.found)
}

/// The words of a text as they are spoken: without SSML and pauses in brackets.
pub fn without_markup(text: &str) -> String {
    strip(text, false).0
}

/// Lines of a text as they are spoken: without the marks of Markdown and HTML, addresses in words.
pub fn plain_text(text: &str) -> String {
    static MARKS: LazyLock<Option<Markup>> = LazyLock::new(|| {
        let compiled = Markup::new();
        compiled.inspect_err(|error| tracing::error!(%error, "marks are not left out")).ok()
    });
    MARKS.as_ref().map_or_else(|| text.to_owned(), |marks| marks.strip(text))
}

/// Leaves markup out of a text that arrives in pieces: a mark may be cut anywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    keeps_places: bool,
    /// The beginning of what may be a mark.
    held: String,
    found: Vec<String>,
    /// The last character that was passed on.
    last: Option<char>,
    /// Whether a mark came after it.
    is_behind_mark: bool,
}

impl Filter {
    /// The text that can be passed on with this piece.
    pub(super) fn push(&mut self, piece: &str, is_last: bool) -> String {
        let text = std::mem::take(&mut self.held) + piece;
        let end = if is_last { text.len() } else { open_mark(&text).unwrap_or(text.len()) };
        text[end..].clone_into(&mut self.held);
        let mut plain = String::with_capacity(end);
        let mut copied = 0;
        for mark in PATTERN.iter().flat_map(|pattern| pattern.find_iter(&text[..end])) {
            self.pass(&text[copied..mark.start()], &mut plain);
            copied = mark.end();
            self.leave_out(mark.as_str(), &mut plain);
        }
        self.pass(&text[copied..end], &mut plain);
        plain
    }

    /// Bytes that wait for the end of what may be a mark.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// The marks since the last call.
    pub(super) fn take_found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    /// Passes text on. Words on both sides of a mark stay two.
    fn pass(&mut self, text: &str, plain: &mut String) {
        let text = match self.last {
            None if self.is_behind_mark && !self.keeps_places => text.trim_start(),
            _ => text,
        };
        let Some(first) = text.chars().next() else { return };
        let joins = self.last.is_some_and(|last| !last.is_whitespace()) && !first.is_whitespace();
        if self.is_behind_mark && joins && !self.keeps_places {
            plain.push(' ');
        }
        plain.push_str(text);
        self.last = text.chars().next_back();
        self.is_behind_mark = false;
    }

    fn leave_out(&mut self, mark: &str, plain: &mut String) {
        if self.keeps_places {
            plain.extend(std::iter::repeat_n(' ', mark.len()));
        }
        self.is_behind_mark = true;
        let shown = excerpt(mark);
        if self.found.len() < MAX_FOUND && !self.found.contains(&shown) {
            self.found.push(shown);
        }
    }
}

/// Where a mark begins that may end in the next piece.
fn open_mark(text: &str) -> Option<usize> {
    let at = text.rfind(['<', '['])?;
    let open = &text[at..];
    let is_open = !open.contains(['>', ']', '\n']) && open.len() <= MAX_OPEN_BYTES;
    let name = open[1..].trim_start_matches(['/', '?', '!', ' ']);
    (is_open && (name.is_empty() || name.starts_with(|c: char| c.is_ascii_alphabetic()))).then_some(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(written: &str, expected: &str, marks: &[&str]) {
        let (plain, found) = strip(written, false);
        assert_eq!((plain.as_str(), found), (expected, marks.iter().map(|&mark| mark.to_owned()).collect()));
        let (padded, _) = strip(written, true);
        assert_eq!(padded.len(), written.len());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&padded), words(expected));
    }

    #[test]
    fn ssml_and_pauses_are_left_out_and_told_once() {
        check("<speak>Hello there.</speak>", "Hello there.", &["<speak>", "</speak>"]);
        check("One<break time=\"1s\"/>two.", "One two.", &["<break time=\"1s\"/>"]);
        check("A [pause] b [PAUSE 2s]c", "A  b c", &["[pause]", "[PAUSE 2s]"]);
        check("d [pause: 500ms]", "d ", &["[pause: 500ms]"]);
        let marks = ["<?xml version=\"1.0\"?>", "<!-- a note -->", "<speak version='1.1'>"];
        check("<?xml version=\"1.0\"?><!-- a note --><speak version='1.1'> Yes", "Yes", &marks);
        check("<prosody rate=\"slow\">Slow</prosody>", "Slow", &["<prosody rate=\"slow\">", "</prosody>"]);
        check("<mstts:express-as style=\"sad\">Oh.", "Oh.", &["<mstts:express-as style=\"sad\">"]);
        check("Cut <break time=\"1", "Cut ", &["<break time=\"1"]);
        check("a</s><s>b", "a b", &["</s>", "<s>"]);
    }

    #[test]
    fn prose_stays_as_it_is() {
        for text in [
            "3 < 4 > 2",
            "a [note] b",
            "[paused]",
            "x<y",
            "if a<s and c>d",
            "<anna@example.com>",
            "[pause the film]",
            "[1] <3",
        ] {
            check(text, text, &[]);
        }
    }

    proptest! {
        #[test]
        fn pieces_give_the_words_of_the_whole(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "<break time=\"0.5s\"/>", "[pause 2s]", "<speak>", "</speak>", "word", " ", ". ", "<", "[", "é",
                ]),
                0..12,
            ),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let text = parts.concat();
            let within = cuts.into_iter().map(|at| at.min(text.len()));
            let mut cuts: Vec<usize> = within.filter(|&at| text.is_char_boundary(at)).collect();
            cuts.sort_unstable();
            let mut filter = Filter::default();
            let (mut got, mut from) = (String::new(), 0);
            for at in cuts {
                got += &filter.push(&text[from..at], false);
                from = at;
            }
            got += &filter.push(&text[from..], true);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&got), words(&strip(&text, false).0));
        }
    }
}
