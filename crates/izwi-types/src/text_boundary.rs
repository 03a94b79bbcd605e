//! Where the tokens of a text no longer depend on what follows. Knows no tokenizer.

/// Punctuation that ends a run of ideographs.
const FULL_WIDTH: &str = "，。、！？；：…（）「」『』《》";

/// Bytes of `text`, from its start, whose tokens stay the same whatever follows, in the tokenizers of GPT-2 and its
/// successors: these split a text into letters, digits, punctuation and white space before they merge, normalise at most
/// to NFC, and attach a space to the word after it and a line break to the punctuation before it.
///
/// A text ends there before a space after a word, after a line break, and before full-width punctuation. Scripts without
/// these have no such place within a clause.
#[must_use]
pub fn stable_end(text: &str) -> usize {
    let places = text.char_indices().zip(text.chars().skip(1));
    let ends = places.filter(|((_, before), after)| is_boundary(*before, *after));
    ends.last().map_or(0, |((at, before), _)| at + before.len_utf8())
}

fn is_boundary(before: char, after: char) -> bool {
    match (before, after) {
        ('\n' | '\r', after) => !after.is_whitespace(),
        (before, ' ' | '\t' | '\u{3000}') => !before.is_whitespace() && !before.is_control(),
        (before, after) => FULL_WIDTH.contains(after) && ends_a_word(before),
    }
}

/// Whether it is a letter or digit that joins no punctuation after it.
fn ends_a_word(character: char) -> bool {
    let is_ideograph = matches!(character, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}');
    character.is_ascii_alphanumeric() || (is_ideograph && character.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_stable_up_to_the_last_whole_word() {
        let check = |text: &str, head: &str| assert_eq!(&text[..stable_end(text)], head, "{text:?}");
        check("", "");
        check("Hello", "");
        check("Hello ", "Hello");
        check("Hello wor", "Hello");
        check("It's 3.5, isn't it? W", "It's 3.5, isn't it?");
        // A second space or a line break would join the first.
        check("One  ", "One");
        check("One.\n", "");
        check("One.\n\nT", "One.\n\n");
        check("One.\n T", "");
        check("你好，世", "你好");
        check("你好", "");
        // A mark may join the letter before it.
        check("e\u{301}", "");
    }
}
