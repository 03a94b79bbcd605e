//! The entities of a document: the five of XML, and characters by their number. A document cannot define others.

use std::ops::Range;

/// The longest entity, in bytes: `&#x10ffff;`.
const MAX_BYTES: usize = 10;
const NAMED: [(&str, char); 5] = [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("apos", '\'')];

/// The entities of a text, and the characters that they stand for.
pub(super) fn find(text: &str) -> impl Iterator<Item = (Range<usize>, char)> {
    text.match_indices('&').filter_map(|(start, _)| {
        let window = &text[start + 1..text.floor_char_boundary(start + MAX_BYTES)];
        let end = window.find(';')?;
        Some((start..start + end + 2, character(&window[..end])?))
    })
}

/// A text with characters in place of entities.
pub(super) fn decoded(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut copied = 0;
    for (entity, character) in find(text) {
        plain.push_str(&text[copied..entity.start]);
        plain.push(character);
        copied = entity.end;
    }
    plain + &text[copied..]
}

fn character(name: &str) -> Option<char> {
    let Some(number) = name.strip_prefix('#') else {
        return NAMED.iter().find(|(known, _)| *known == name).map(|(_, character)| *character);
    };
    let number = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(number.ok()?).filter(|character| !character.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_characters_and_all_else_is_text() {
        assert_eq!(
            decoded("a&amp;b &lt;&#62;&#x20AC; &amp;lt; & &foo; &#0; &#xffffffff;&"),
            "a&b <>€ &lt; & &foo; &#0; &#xffffffff;&"
        );
    }
}
