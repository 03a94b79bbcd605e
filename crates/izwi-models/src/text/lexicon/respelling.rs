//! Sounds in English spelling, for models that read letters alone.

/// Sounds of misaki's alphabet and letters that an English reader says so.
const SPELLINGS: [(char, &str); 38] = [
    ('A', "ay"),
    ('I', "ye"),
    ('O', "oh"),
    ('Q', "oh"),
    ('W', "ow"),
    ('Y', "oy"),
    ('a', "ah"),
    ('i', "ee"),
    ('u', "oo"),
    ('y', "oo"),
    ('o', "oh"),
    ('ɑ', "ah"),
    ('ɐ', "uh"),
    ('ɒ', "o"),
    ('æ', "a"),
    ('ɔ', "aw"),
    ('ə', "uh"),
    ('ɛ', "e"),
    ('ɜ', "e"),
    ('ɪ', "i"),
    ('ᵻ', "i"),
    ('ɨ', "i"),
    ('ʊ', "oo"),
    ('ʌ', "u"),
    ('ø', "er"),
    ('œ', "er"),
    ('ʧ', "ch"),
    ('ʤ', "j"),
    ('ʃ', "sh"),
    ('ʒ', "zh"),
    ('θ', "th"),
    ('ð', "th"),
    ('ŋ', "ng"),
    ('ɡ', "g"),
    ('ɹ', "r"),
    ('j', "y"),
    ('ɾ', "t"),
    ('x', "kh"),
];

/// Phonemes of misaki's alphabet in English spelling, nothing for a sound that English has
/// no letter for.
pub(super) fn english(phonemes: &str) -> String {
    let mut spelling = String::new();
    for c in phonemes.chars() {
        match SPELLINGS.iter().find(|(sound, _)| *sound == c) {
            Some((_, letters)) => spelling.push_str(letters),
            None if c.is_ascii_lowercase() => spelling.push(c),
            None => {}
        }
    }
    spelling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sounds_are_spelled() {
        for (phonemes, expected) in
            [("ˈizwi", "eezwee"), ("ˈɛnʤɪnˈɛks", "enjineks"), ("kwˈɔɹk", "kwawrk"), ("ʃɪvˈɔn", "shivawn")]
        {
            assert_eq!(english(phonemes), expected, "{phonemes}");
        }
    }
}
