//! Where one sentence ends and the next begins.
//!
//! Owns the cut only: it changes no character but the white space it cuts at.

use super::words::{LEADING, NUMBERED, TITLES};

/// The sentences of `text`, in order, trimmed and not empty. A line break always ends one.
pub fn split(text: &str) -> Vec<&str> {
    text.lines().flat_map(split_line).map(str::trim).filter(|sentence| !sentence.is_empty()).collect()
}

fn split_line(line: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let (mut start, mut from) = (0, 0);
    while let Some(offset) = line[from..].find(['.', '!', '?', '…', '。', '！', '？']) {
        let mark = from + offset;
        let after = mark + line[mark..].chars().next().map_or(1, char::len_utf8);
        let rest = line[after..].trim_start_matches(['"', '”', '’', '\'', ')', ']']);
        let next = rest.trim_start();
        from = after;
        if next.len() < rest.len() && ends_here(&line[start..after], next) {
            let cut = line.len() - rest.len();
            sentences.push(&line[start..cut]);
            start = cut;
            from = cut;
        }
    }
    sentences.push(&line[start..]);
    sentences
}

/// Whether `so_far`, which ends in a mark, is a whole sentence before `next`.
fn ends_here(so_far: &str, next: &str) -> bool {
    let Some(first) = next.chars().next() else { return false };
    if first.is_lowercase() {
        return false;
    }
    let Some(body) = so_far.strip_suffix('.') else { return true };
    let word = body.rsplit(char::is_whitespace).next().unwrap_or(body);
    let word = word.trim_start_matches(['(', '[', '"', '“', '\'', '‘']);
    let mut letters = word.chars();
    let initial = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none();
    let leading =
        LEADING.contains(&word) || (NUMBERED.contains(&word) && (first.is_numeric() || is_roman(next)));
    !(initial || leading || TITLES.iter().any(|[title, _]| *title == word))
}

/// Whether a Roman numeral stands first.
fn is_roman(next: &str) -> bool {
    let word = next.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    !word.is_empty() && word.chars().all(|c| "IVXLC".contains(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(split(text), expected, "{text}");
    }

    #[test]
    fn sentences_end_at_marks_before_a_new_start() {
        check("One. Two! Three? Four", &["One.", "Two!", "Three?", "Four"]);
        check("He said \"Go.\" Then left.", &["He said \"Go.\"", "Then left."]);
        check("Wait… What?! Yes.", &["Wait…", "What?!", "Yes."]);
        check("It costs 3.50 now. 4 left.", &["It costs 3.50 now.", "4 left."]);
    }

    #[test]
    fn titles_initials_and_lower_case_do_not_end_one() {
        check("Dr. Smith met J. K. Rowling.", &["Dr. Smith met J. K. Rowling."]);
        check("We used approx. 5 kg, e.g. Rice.", &["We used approx. 5 kg, e.g. Rice."]);
        check("See No. 5. No. Never.", &["See No. 5.", "No.", "Never."]);
        check(
            "It ran at 5 p.m. and stopped etc. in peace.",
            &["It ran at 5 p.m. and stopped etc. in peace."],
        );
    }

    #[test]
    fn lines_end_one() {
        check("Title\n\nText goes on\nand on.", &["Title", "Text goes on", "and on."]);
        check(" \n\t\n", &[]);
    }

    proptest! {
        #[test]
        fn any_text_splits_without_loss(text in any::<String>()) {
            let squeeze = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(squeeze(&split(&text).concat()), squeeze(&text));
        }
    }
}
