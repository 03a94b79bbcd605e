//! The names of characters and keys, in English.

use super::parameters::Punctuation;

/// Characters with a name, and from which mode on it is spoken within a text.
const CHARACTERS: [(char, &str, Punctuation); 51] = {
    use Punctuation::{All, Most, Some};
    [
        ('!', "exclamation mark", All),
        ('"', "quote", Most),
        ('#', "number sign", Some),
        ('$', "dollar", Some),
        ('%', "percent", Some),
        ('&', "and", Some),
        ('\'', "apostrophe", All),
        ('(', "left paren", Most),
        (')', "right paren", Most),
        ('*', "star", Some),
        ('+', "plus", Some),
        (',', "comma", All),
        ('-', "dash", Most),
        ('.', "dot", All),
        ('/', "slash", Some),
        (':', "colon", Most),
        (';', "semicolon", Most),
        ('<', "less than", Some),
        ('=', "equals", Some),
        ('>', "greater than", Some),
        ('?', "question mark", All),
        ('@', "at", Some),
        ('[', "left bracket", Most),
        ('\\', "backslash", Some),
        (']', "right bracket", Most),
        ('^', "caret", Some),
        ('_', "underscore", Most),
        ('`', "backquote", Most),
        ('{', "left brace", Most),
        ('|', "vertical bar", Most),
        ('}', "right brace", Most),
        ('~', "tilde", Most),
        ('£', "pound", Some),
        ('€', "euro", Some),
        ('§', "section", Some),
        ('©', "copyright", Some),
        ('®', "registered", Some),
        ('°', "degrees", Some),
        ('±', "plus or minus", Some),
        ('×', "times", Some),
        ('÷', "divided by", Some),
        ('•', "bullet", Some),
        ('→', "right arrow", Some),
        ('←', "left arrow", Some),
        ('–', "en dash", Most),
        ('—', "em dash", Most),
        ('…', "ellipsis", All),
        ('“', "left quote", Most),
        ('”', "right quote", Most),
        ('‘', "left single quote", All),
        ('’', "right single quote", All),
    ]
};

/// Characters that are not seen.
const BLANKS: [(char, &str); 6] = [
    (' ', "space"),
    ('\u{a0}', "no-break space"),
    ('\t', "tab"),
    ('\n', "new line"),
    ('\r', "carriage return"),
    ('\u{1b}', "escape"),
];

/// Words of the names of keys that are abbreviated there.
const KEY_WORDS: [(&str, &str); 14] = [
    ("ctrl", "control"),
    ("kp", "keypad"),
    ("esc", "escape"),
    ("del", "delete"),
    ("ins", "insert"),
    ("pgup", "page up"),
    ("pgdn", "page down"),
    ("prior", "page up"),
    ("next", "page down"),
    ("pageup", "page up"),
    ("pagedown", "page down"),
    ("backspace", "back space"),
    ("capslock", "caps lock"),
    ("numlock", "num lock"),
];

/// The name of a character that is no letter and no figure.
pub(super) fn of_character(character: char) -> Option<&'static str> {
    let visible = CHARACTERS.iter().map(|(known, name, _)| (known, name));
    let all = visible.chain(BLANKS.iter().map(|(known, name)| (known, name)));
    all.into_iter().find(|(known, _)| **known == character).map(|(_, name)| *name)
}

/// The name of a character that is spoken within a text.
pub(super) fn within(character: char, mode: Punctuation) -> Option<&'static str> {
    let found = CHARACTERS.iter().find(|(known, _, _)| *known == character);
    found.filter(|(_, _, from)| mode >= *from && mode != Punctuation::None).map(|(_, name, _)| *name)
}

/// The parts of a key's name, such as `shift_a`: modifiers and the key, which a single character may be.
pub(super) fn of_key(key: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = key.split('_').filter(|part| !part.is_empty()).collect();
    // The underscore itself, alone or after modifiers.
    if key == "_" || key.ends_with("__") {
        parts.push("_");
    }
    let words = parts.into_iter().flat_map(|part| match part.chars().count() {
        1 => vec![part],
        _ => part.split(['-', ' ']).filter(|word| !word.is_empty()).map(key_word).collect(),
    });
    words.collect()
}

fn key_word(word: &str) -> &str {
    let known = KEY_WORDS.iter().find(|(short, _)| short.eq_ignore_ascii_case(word));
    known.map_or(word, |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_by_their_parts() {
        let told = |key| of_key(key).join(" ");
        for (key, name) in [
            ("control_a", "control a"),
            ("shift_control_F1", "shift control F1"),
            ("underscore", "underscore"),
            ("_", "_"),
            ("shift__", "shift _"),
            ("double-quote", "double quote"),
            ("kp-enter", "keypad enter"),
            ("KP_Enter", "keypad Enter"),
            ("alt_Prior", "alt page up"),
            ("control_-", "control -"),
            ("", ""),
        ] {
            assert_eq!(told(key), name, "{key}");
        }
    }

    #[test]
    fn modes_speak_more_and_more() {
        let spoken = |mode| ".,:-#a ".chars().filter(|c| within(*c, mode).is_some()).collect::<String>();
        assert_eq!(spoken(Punctuation::None), "");
        assert_eq!(spoken(Punctuation::Some), "#");
        assert_eq!(spoken(Punctuation::Most), ":-#");
        assert_eq!(spoken(Punctuation::All), ".,:-#");
        assert_eq!(
            (of_character(' '), of_character('.'), of_character('a')),
            (Some("space"), Some("dot"), None)
        );
    }

    #[test]
    fn no_character_is_named_twice() {
        let all: std::collections::BTreeSet<char> =
            CHARACTERS.iter().map(|(character, _, _)| *character).collect();
        assert_eq!(all.len(), CHARACTERS.len());
    }
}
