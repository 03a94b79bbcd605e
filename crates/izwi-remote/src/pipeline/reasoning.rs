//! Reasoning that a model writes between marks in its answer, which is neither shown nor spoken.

/// The marks around it.
const MARKS: (&str, &str) = ("<think>", "</think>");

/// Leaves reasoning out of a text that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct ReasoningFilter {
    /// The beginning of what may be a mark.
    held: String,
    is_inside: bool,
    /// Whether nothing was said yet: white space behind reasoning is left out.
    has_text: bool,
}

impl ReasoningFilter {
    /// What can be shown after this piece.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let mut text = std::mem::take(&mut self.held) + piece;
        let mut shown = String::new();
        loop {
            let mark = if self.is_inside { MARKS.1 } else { MARKS.0 };
            let (end, next) = match text.find(mark) {
                Some(at) => (at, at + mark.len()),
                None => (open_mark(&text, mark), text.len()),
            };
            if !self.is_inside {
                shown.push_str(&text[..end]);
            }
            if end == next || !text[end..].starts_with(mark) {
                self.held = text.split_off(end);
                break;
            }
            self.is_inside = !self.is_inside;
            text = text.split_off(next);
        }
        self.trimmed(shown)
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if self.is_inside { String::new() } else { self.trimmed(held) }
    }

    fn trimmed(&mut self, text: String) -> String {
        if self.has_text {
            return text;
        }
        let text = text.trim_start();
        self.has_text = !text.is_empty();
        text.to_owned()
    }
}

/// Where the beginning of a mark stands at the end of a text.
fn open_mark(text: &str, mark: &str) -> usize {
    let begins = |at: &usize| text.is_char_boundary(*at) && mark.starts_with(&text[*at..]);
    (text.len().saturating_sub(mark.len())..text.len()).find(begins).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of a text in pieces of `size` bytes.
    fn shown(text: &str, size: usize) -> String {
        let mut filter = ReasoningFilter::default();
        let mut shown = String::new();
        let pieces: Vec<char> = text.chars().collect();
        for piece in pieces.chunks(size) {
            shown += &filter.push(&piece.iter().collect::<String>());
        }
        shown + &filter.finish()
    }

    #[test]
    fn reasoning_is_left_out_however_they_come() {
        for size in 1..40 {
            assert_eq!(
                shown("<think>Hm, 1 < 2.</think>\n\nHello <b>you</b>.", size),
                "Hello <b>you</b>.",
                "{size}"
            );
            assert_eq!(shown("One<think>x</think> two <thin", size), "One two <thin", "{size}");
            assert_eq!(shown("<think>never ends", size), "", "{size}");
        }
    }
}
