//! Bounded text for error messages. Knows no message.

use std::fmt::{self, Display, Write};

/// The most characters of a client's text that a message repeats.
const MAX_EXCERPT_CHARS: usize = 64;

/// What an error message may repeat of a client's text: its beginning, without control characters.
pub fn excerpt(text: &(impl Display + ?Sized)) -> String {
    bounded(text, MAX_EXCERPT_CHARS)
}

/// The first `max_chars` characters of what `value` displays, without control characters, and `…` in place of the rest.
/// The rest is not formatted.
pub fn bounded(value: &(impl Display + ?Sized), max_chars: usize) -> String {
    let mut out = Bounded { text: String::new(), left: max_chars };
    if write!(out, "{value}").is_err() {
        out.text.push('…');
    }
    out.text
}

struct Bounded {
    text: String,
    left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars().filter(|character| !character.is_control()) {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_control_characters_are_left_out() {
        assert_eq!(excerpt("short"), "short");
        assert_eq!(excerpt("a\u{1b}[2J\nb"), "a[2Jb");
        assert_eq!(excerpt(&"é".repeat(64)), "é".repeat(64));
        assert_eq!(excerpt(&"é".repeat(1_000_000)), format!("{}…", "é".repeat(64)));
        assert_eq!(bounded(&12_345, 3), "123…");
    }

    #[test]
    fn formatting_ends_at_the_limit() {
        struct Endless;
        impl Display for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                loop {
                    f.write_str("more ")?;
                }
            }
        }
        assert_eq!(bounded(&Endless, 7), "more mo…");
    }
}
