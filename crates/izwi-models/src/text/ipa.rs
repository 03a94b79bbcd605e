//! The sounds that users write, in IPA or X-SAMPA, and their symbols in misaki's alphabet.
//!
//! Knows no text. <https://github.com/hexgrad/misaki/blob/main/EN_PHONES.md>

use super::phonemes::Accent;
use super::units::Sentence;
use izwi_types::WordSounds;

/// Symbols that a network of misaki's alphabet may know, besides those that have others below.
const KNOWN: &str = "abcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɛɜɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲᵻ";
/// What is written in several ways, or has another symbol in misaki's alphabet. Longer ones stand first.
const SYMBOLS: [(&str, &str); 23] = [
    ("eɪ", "A"),
    ("aɪ", "I"),
    ("aʊ", "W"),
    ("ɔɪ", "Y"),
    ("oʊ", "O"),
    ("əʊ", "Q"),
    ("tʃ", "ʧ"),
    ("dʒ", "ʤ"),
    ("ts", "ʦ"),
    ("dz", "ʣ"),
    ("ɚ", "əɹ"),
    ("ɝ", "ɜɹ"),
    ("ɫ", "l"),
    ("ʍ", "w"),
    ("ʉ", "u"),
    ("ɵ", "ʊ"),
    ("ʏ", "y"),
    ("ɱ", "m"),
    ("ʌ", "ʌ"),
    ("g", "ɡ"),
    ("'", "ˈ"),
    ("ʼ", "ˈ"),
    (",", "ˌ"),
];
/// Ties of two symbols, borders of syllables, marks of a letter without a sound of its own, white space.
const SILENT: &[char] =
    &['\u{361}', '\u{35c}', '.', '-', '‿', '|', ' ', '\u{a0}', '\u{329}', '\u{32f}', '\u{30d}'];
const VOWELS: &str = "AIOQWYaeiouyɑɐɒæɔəɛɜɨɪɯøœʊʌɤᵊᵻ";
/// English sounds that IPA writes with a symbol which English networks know as another sound, or not at all.
const ENGLISH: [(char, &str); 6] = [('r', "ɹ"), ('e', "ɛ"), ('o', "O"), ('ɨ', "ɪ"), ('x', "k"), ('ɐ', "ə")];
const AMERICAN: [(char, &str); 4] = [('Q', "O"), ('ɒ', "ɑ"), ('a', "æ"), ('ː', "")];
const BRITISH: [(char, &str); 1] = [('O', "Q")];

/// X-SAMPA and IPA; longer symbols stand first. Small letters are the same in both.
const X_SAMPA: [(&str, &str); 51] = [
    ("@`", "ɚ"),
    ("3`", "ɝ"),
    ("r\\`", "ɻ"),
    ("r\\", "ɹ"),
    ("s\\", "ɕ"),
    ("x\\", "ç"),
    ("j\\", "ʝ"),
    ("p\\", "ɸ"),
    ("I\\", "ᵻ"),
    ("h\\", "h"),
    ("M\\", "ɰ"),
    ("N\\", "ɴ"),
    ("t`", "ʈ"),
    ("d`", "ɖ"),
    ("s`", "ʂ"),
    ("n`", "ɳ"),
    ("_h", "ʰ"),
    ("_j", "ʲ"),
    ("=", "\u{329}"),
    ("A", "ɑ"),
    ("B", "β"),
    ("C", "ç"),
    ("D", "ð"),
    ("E", "ɛ"),
    ("F", "ɱ"),
    ("G", "ɣ"),
    ("H", "ɥ"),
    ("I", "ɪ"),
    ("J", "ɲ"),
    ("L", "ʎ"),
    ("M", "ɯ"),
    ("N", "ŋ"),
    ("O", "ɔ"),
    ("P", "ʋ"),
    ("Q", "ɒ"),
    ("R", "ʁ"),
    ("S", "ʃ"),
    ("T", "θ"),
    ("U", "ʊ"),
    ("V", "ʌ"),
    ("X", "χ"),
    ("Z", "ʒ"),
    ("2", "ø"),
    ("3", "ɜ"),
    ("4", "ɾ"),
    ("5", "ɫ"),
    ("6", "ɐ"),
    ("9", "œ"),
    ("@", "ə"),
    ("{", "æ"),
    ("?", "ʔ"),
];
/// The symbols of the CMU dictionary, and IPA.
const ARPABET: [(&str, &str); 39] = [
    ("AA", "ɑ"),
    ("AE", "æ"),
    ("AH", "ʌ"),
    ("AO", "ɔ"),
    ("AW", "aʊ"),
    ("AY", "aɪ"),
    ("B", "b"),
    ("CH", "tʃ"),
    ("D", "d"),
    ("DH", "ð"),
    ("EH", "ɛ"),
    ("ER", "ɝ"),
    ("EY", "eɪ"),
    ("F", "f"),
    ("G", "ɡ"),
    ("HH", "h"),
    ("IH", "ɪ"),
    ("IY", "i"),
    ("JH", "dʒ"),
    ("K", "k"),
    ("L", "l"),
    ("M", "m"),
    ("N", "n"),
    ("NG", "ŋ"),
    ("OW", "oʊ"),
    ("OY", "ɔɪ"),
    ("P", "p"),
    ("R", "ɹ"),
    ("S", "s"),
    ("SH", "ʃ"),
    ("T", "t"),
    ("TH", "θ"),
    ("UH", "ʊ"),
    ("UW", "u"),
    ("V", "v"),
    ("W", "w"),
    ("Y", "j"),
    ("Z", "z"),
    ("ZH", "ʒ"),
];
const X_SAMPA_MARKS: [(char, &str); 3] = [('"', "ˈ"), ('%', "ˌ"), (':', "ː")];

/// IPA in misaki's alphabet, its stresses before vowels; `None` where a symbol is none that a network knows, or there is no
/// sound.
pub(crate) fn misaki(ipa: &str) -> Option<String> {
    let ipa: String = ipa.chars().filter(|symbol| !SILENT.contains(symbol)).collect();
    let mut phonemes = String::with_capacity(ipa.len());
    let mut rest = ipa.as_str();
    while let Some(first) = rest.chars().next() {
        let known = SYMBOLS.iter().find(|(written, _)| rest.starts_with(written));
        let (length, symbol) = match known {
            Some((written, symbol)) => (written.len(), *symbol),
            None if KNOWN.contains(first) => (first.len_utf8(), &rest[..first.len_utf8()]),
            None => return None,
        };
        phonemes.push_str(symbol);
        rest = &rest[length..];
    }
    let stressed = stresses_before_vowels(&phonemes);
    stressed.contains(|c| VOWELS.contains(c)).then_some(stressed)
}

/// X-SAMPA in IPA: <https://www.phon.ucl.ac.uk/home/sampa/x-sampa.htm>.
pub(crate) fn of_x_sampa(written: &str) -> String {
    let mut ipa = String::with_capacity(written.len());
    let mut rest = written;
    while let Some(first) = rest.chars().next() {
        let mark =
            X_SAMPA_MARKS.iter().find(|(mark, _)| *mark == first).map(|(_, ipa)| (first.len_utf8(), *ipa));
        let symbol =
            X_SAMPA.iter().find(|(symbol, _)| rest.starts_with(symbol)).map(|(s, ipa)| (s.len(), *ipa));
        let (length, symbol) = mark.or(symbol).unwrap_or((first.len_utf8(), &rest[..first.len_utf8()]));
        ipa.push_str(symbol);
        rest = &rest[length..];
    }
    ipa
}

/// Symbols of the CMU dictionary, such as `K AA1 R`, in IPA; what is no symbol stays. A vowel without stress is short.
pub(crate) fn of_arpabet(written: &str) -> String {
    let symbols = written.split_whitespace().map(|symbol| {
        let (name, stress) = symbol.split_at(symbol.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        let known = ARPABET.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let ipa = match (known, stress) {
            (Some(("AH", _)), "0") => "ə",
            (Some(("ER", _)), "0") => "ɚ",
            (Some((_, ipa)), _) => ipa,
            (None, _) => symbol,
        };
        let mark = match stress {
            "1" => "ˈ",
            "2" => "ˌ",
            _ => "",
        };
        format!("{mark}{ipa}")
    });
    symbols.collect()
}

/// Phonemes of misaki's alphabet as English networks of an accent learnt them.
pub(crate) fn english(phonemes: &str, accent: Accent) -> String {
    let own: &[(char, &str)] = match accent {
        Accent::American => &AMERICAN,
        Accent::British => &BRITISH,
    };
    phonemes.chars().fold(String::with_capacity(phonemes.len()), |mut spoken, symbol| {
        let other = ENGLISH.iter().chain(own).find(|(known, _)| *known == symbol);
        match other {
            Some((_, other)) => spoken.push_str(other),
            None => spoken.push(symbol),
        }
        spoken
    })
}

/// IPA writes a stress before its syllable, misaki before its vowel.
fn stresses_before_vowels(phonemes: &str) -> String {
    let mut moved = String::with_capacity(phonemes.len());
    let mut stress = None;
    for symbol in phonemes.chars() {
        match symbol {
            'ˈ' | 'ˌ' => stress = Some(symbol),
            _ => {
                if VOWELS.contains(symbol) {
                    moved.extend(stress.take());
                }
                moved.push(symbol);
            }
        }
    }
    moved
}

/// Puts the sounds that users wrote in place of those of their words. `spoken` gives the symbols of a language.
pub(crate) fn substitute(sentences: &mut [Sentence], sounds: &[WordSounds], spoken: impl Fn(&str) -> String) {
    if sounds.is_empty() {
        return;
    }
    // End of the written word before, and of the last one.
    let (mut before, mut last) = (0, 0);
    let mut said = None;
    for sentence in sentences {
        let (mut words, mut ends): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        for (phonemes, &end) in sentence.phonemes.split(' ').zip(&sentence.said) {
            if end > last {
                (before, last) = (last, end);
            }
            let found = sounds.iter().position(|word| word.range.start < end && word.range.end > before);
            let Some(at) = found else {
                words.push(phonemes.to_owned());
                ends.push(end);
                continue;
            };
            let marks = phonemes.trim_start_matches(|c: char| c.is_alphabetic() || c == '\'');
            if said.replace(at) == Some(at) {
                // A further word of the same sounds.
                if let Some(word) = words.last_mut() {
                    word.push_str(marks);
                }
            } else {
                words.push(spoken(&sounds[at].phonemes) + marks);
                ends.push(end);
            }
        }
        (sentence.phonemes, sentence.said) = (words.join(" "), ends);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ipa_and_x_sampa_become_misakis_alphabet() {
        for (ipa, american, british) in [
            ("təˈmeɪtoʊ", "təmˈAtO", "təmˈAtQ"),
            ("ˈt͡ʃɪkən", "ʧˈɪkən", "ʧˈɪkən"),
            ("həˈləʊ", "həlˈO", "həlˈQ"),
            ("ˈwɔːtɚ", "wˈɔtəɹ", "wˈɔːtəɹ"),
            ("ɡreɪt", "ɡɹAt", "ɡɹAt"),
            ("ˌɪn.fɚˈmeɪ.ʃən", "ˌɪnfəɹmˈAʃən", "ˌɪnfəɹmˈAʃən"),
        ] {
            let phonemes = misaki(ipa).unwrap();
            let both = [Accent::American, Accent::British].map(|accent| english(&phonemes, accent));
            assert_eq!(both, [american, british], "{ipa}");
        }
        assert_eq!(of_x_sampa("t@\"meItoU"), "təˈmeɪtoʊ");
        assert_eq!(of_x_sampa("\"tSIk@n"), "ˈtʃɪkən");
        assert_eq!(of_x_sampa("h3:`"), "hɜː`");
        assert_eq!(of_arpabet("T AH0 M EY1 T OW2"), "təmˈeɪtˌoʊ");
        assert_eq!(misaki(&of_arpabet("K QQ1")), None);
        for unknown in ["", "ǂa", "hello world!", "pst", "ˈ", "a7"] {
            assert_eq!(misaki(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn sounds_stand_in_place_of_those_of_their_words() {
        let sentence =
            |phonemes: &str, said: &[usize]| Sentence { phonemes: phonemes.to_owned(), said: said.to_vec() };
        // "I say tomato, New York now", the last two of which are one word of sounds.
        let mut sentences = [sentence("I sA təmˈAtO,", &[1, 5, 13]), sentence("nu jɔɹk. nW", &[17, 22, 26])];
        let sounds = [(6..12, "X"), (14..22, "Y")];
        let sounds = sounds.map(|(range, phonemes)| WordSounds { range, phonemes: phonemes.to_owned() });
        substitute(&mut sentences, &sounds, str::to_owned);
        assert_eq!(sentences, [sentence("I sA X,", &[1, 5, 13]), sentence("Y. nW", &[17, 26])]);
    }

    proptest! {
        #[test]
        fn any_sounds_are_taken(text in any::<String>(), sampa in "[a-zA-Z0-9@{?\"%:`_\\\\=-]{0,40}") {
            misaki(&text);
            misaki(&of_x_sampa(&sampa));
        }
    }
}
