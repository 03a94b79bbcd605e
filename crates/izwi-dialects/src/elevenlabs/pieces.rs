//! Where a text may be cut into generations, and what stands between two of them.

use izwi_core::engine::request::sentence_ends;

/// Abbreviations before a name, in lower case without their full stop.
const TITLES: [&str; 17] = [
    "dr", "mr", "mrs", "ms", "prof", "st", "mt", "gen", "col", "capt", "lt", "sgt", "sen", "rep", "gov",
    "rev", "hon",
];

/// Where a piece of about `least` characters or more ends: after the last sentence, unless that is short, else after the last
/// word, with the white space after it. `None` while no word is complete.
pub(super) fn piece_end(text: &str, least: usize) -> Option<usize> {
    let sentence = sentence_ends(text).into_iter().rev().map(|end| with_space(text, end)).find(|&end| {
        text[..end].chars().nth((least / 2).saturating_sub(1)).is_some()
            && !ends_in_abbreviation(&text[..end])
    });
    sentence.or_else(|| {
        let words = text.char_indices().rev().filter(|(_, c)| c.is_whitespace());
        let mut ends = words.map(|(at, space)| at + space.len_utf8());
        ends.find(|&end| !ends_in_abbreviation(&text[..end]) && !text[..end].trim().is_empty())
    })
}

/// Moves an end after the white space at it.
fn with_space(text: &str, end: usize) -> usize {
    let rest = &text[end..];
    end + rest.len() - rest.trim_start().len()
}

/// Whether the last word belongs to what follows: a title or an initial.
pub(super) fn ends_in_abbreviation(text: &str) -> bool {
    let Some(text) = text.trim_end().strip_suffix('.') else { return false };
    let word = text.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let mut letters = word.chars();
    let is_initial = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none();
    is_initial || TITLES.contains(&word.to_lowercase().as_str())
}

/// The space that parts two texts of which the first ends in `last`. Scripts without spaces between words have none.
pub(super) fn space_between(last: char, next: &str) -> &'static str {
    let joins = |c: char| {
        c.is_whitespace()
            || matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
    };
    let closes =
        |c: char| matches!(c, '.' | ',' | ';' | ':' | '!' | '?' | '…' | ')' | ']' | '}' | '”' | '»' | '%');
    match next.chars().next() {
        Some(first) if !joins(last) && !joins(first) && !closes(first) => " ",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_behind_sentences_and_words_but_not_behind_abbreviations() {
        let check = |text: &str, least: usize, piece: Option<&str>| {
            assert_eq!(piece_end(text, least).map(|end| &text[..end]), piece, "{text}");
        };
        check("One sentence.  And a half", 10, Some("One sentence.  "));
        check("We met Dr. Smith yes", 10, Some("We met Dr. Smith "));
        check("We met Dr. Smi", 10, Some("We met "));
        check("It was Prof. Smi", 10, Some("It was "));
        check("We met J. R", 5, Some("We met "));
        check("Dr. Smith", 4, None);
        check("word", 2, None);
        check("Yes. This goes on and on", 20, Some("Yes. This goes on and "));
        check("你好吗？我很好", 4, Some("你好吗？"));
    }

    #[test]
    fn a_space_parts_words_of_scripts_that_have_spaces() {
        assert_eq!(space_between('s', "outside"), " ");
        assert_eq!(space_between('.', "Then"), " ");
        assert_eq!(space_between(' ', "Then"), "");
        assert_eq!(space_between('.', " Then"), "");
        assert_eq!(space_between('。', "Then"), "");
        assert_eq!(space_between('好', "吗"), "");
        assert_eq!(space_between('.', ""), "");
        assert_eq!(space_between('s', ", then"), "");
    }
}
