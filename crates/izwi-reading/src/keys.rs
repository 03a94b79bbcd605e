//! Names of units, and their seeds.

use izwi_hub::sha256;

/// Hexadecimal digits of a key.
const KEY_DIGITS: usize = 32;

/// The name of a unit's sound in the journal. `fingerprint` is all that the sound depends on, except for the text.
pub fn unit_key(fingerprint: &str, text: &str) -> String {
    let mut key = sha256(format!("{fingerprint}\n{text}"));
    key.truncate(KEY_DIGITS);
    key
}

/// The seed of a unit, which follows from its key, so that it sounds the same in every run.
pub fn seed(key: &str) -> u64 {
    key.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_seed_follow_from_voice_and_text() {
        let key = unit_key("voice", "text");
        assert_eq!((key.len(), unit_key("voice", "text") == key), (32, true));
        assert!(unit_key("voice", "texts") != key && unit_key("voices", "text") != key);
        assert_eq!(seed("0000001f00"), 31);
    }
}
