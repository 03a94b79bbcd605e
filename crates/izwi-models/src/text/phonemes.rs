//! Words to phonemes, in misaki's alphabet.
//!
//! Owns the one call into `misaki-rs`, what guards it, and how words outside its lexicon are taken apart. A family
//! brings the reader of such words. <https://github.com/hexgrad/misaki/blob/main/EN_PHONES.md>

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use misaki_rs::fallback::FallbackError;
use misaki_rs::{Fallback, G2P, Language};

use super::words::ONES;

/// Longer words are cut: the lexicon search grows with the cube of a word's parts.
const MAX_WORD_CHARS: usize = 40;

/// What `misaki-rs` writes for a word it cannot read.
const UNREAD: char = '❓';

const PRIMARY_STRESS: char = 'ˈ';
const SECONDARY_STRESS: &str = "ˌ";

/// Names of the letters A to Z.
const LETTERS: [&str; 26] = [
    "ˈA",
    "bˈi",
    "sˈi",
    "dˈi",
    "ˈi",
    "ˈɛf",
    "ʤˈi",
    "ˈAʧ",
    "ˈI",
    "ʤˈA",
    "kˈA",
    "ˈɛl",
    "ˈɛm",
    "ˈɛn",
    "ˈO",
    "pˈi",
    "kjˈu",
    "ˈɑɹ",
    "ˈɛs",
    "tˈi",
    "jˈu",
    "vˈi",
    "dˈʌbᵊlju",
    "ˈɛks",
    "wˈI",
    "zˈi",
];

/// Names of the digits 0 to 9.
const DIGITS: [&str; 10] = ["zˈɪɹO", "wˈʌn", "tˈu", "θɹˈi", "fˈɔɹ", "fˈIv", "sˈɪks", "sˈɛvən", "ˈAt", "nˈIn"];

/// Symbols inside an unknown word.
const SYMBOLS: [(char, &str); 8] = [
    ('/', "slˈæʃ"),
    ('=', "ˈikwᵊlz"),
    ('+', "plˈʌs"),
    ('&', "ænd"),
    ('@', "æt"),
    ('%', "pəɹsˈɛnt"),
    ('<', "lˈɛs ðən"),
    ('>', "ɡɹˈATəɹ ðən"),
];

/// Reads words that are in no lexicon.
pub trait UnknownWords: Send + Sync {
    /// Phonemes of one word of letters and apostrophes; `None` when nothing in it can be read.
    fn phonemes(&self, word: &str) -> Option<String>;
}

/// Reads a word letter by letter.
#[derive(Debug, Clone, Copy)]
pub struct LetterNames;

impl UnknownWords for LetterNames {
    fn phonemes(&self, word: &str) -> Option<String> {
        let named = |c: char| {
            let index = (c.to_ascii_uppercase() as u32).checked_sub('A' as u32)?;
            LETTERS.get(index as usize).copied()
        };
        let names: String = word.chars().filter_map(named).collect();
        // Only the last letter keeps its full stress, as in an initialism.
        let last = names.rfind(PRIMARY_STRESS)?;
        Some(names[..last].replace(PRIMARY_STRESS, SECONDARY_STRESS) + &names[last..])
    }
}

/// The phonemes of a word, and the word of the sentence that they are spoken for. Numbers have several words of phonemes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordPhonemes {
    /// Index of the word among those that white space separates.
    pub word: usize,
    /// Without white space.
    pub phonemes: String,
}

/// How English is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accent {
    /// In the United States.
    American,
    /// In Great Britain.
    British,
}

/// English text to phonemes.
pub struct Phonemiser {
    g2p: Arc<G2P>,
    unknown: Arc<dyn UnknownWords>,
}

impl std::fmt::Debug for Phonemiser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Phonemiser").finish_non_exhaustive()
    }
}

impl Phonemiser {
    /// With the lexicons of American English; `unknown` reads what they lack.
    pub fn new(unknown: Box<dyn UnknownWords>) -> Self {
        Self::with_accent(Accent::American, unknown)
    }

    /// As [`Self::new`], for either accent.
    pub fn with_accent(accent: Accent, unknown: Box<dyn UnknownWords>) -> Self {
        Self { g2p: lexicons(accent), unknown: unknown.into() }
    }

    /// Phonemes of one normalised sentence, in order. Empty when nothing can be read.
    pub fn phonemes(&self, sentence: &str) -> Vec<WordPhonemes> {
        let (text, origins) = guarded(sentence);
        let read = self.lookup(&text, &origins).unwrap_or_else(|| {
            tracing::warn!(chars = text.len(), "the lexicon failed on a sentence, reading it word by word");
            let words = text.split_whitespace().zip(&origins);
            let read = words.map(|(word, origin)| {
                let phonemes = self.lookup(word, &[*origin]).unwrap_or_default();
                phonemes.into_iter().chain([(' ', *origin)])
            });
            read.flatten().collect()
        });
        let mut words: Vec<WordPhonemes> = Vec::new();
        let mut is_in_word = false;
        for (symbol, word) in read.into_iter().filter(|(symbol, _)| *symbol != UNREAD) {
            match words.last_mut() {
                _ if symbol.is_whitespace() => {}
                Some(last) if is_in_word => last.phonemes.push(symbol),
                _ => words.push(WordPhonemes { word, phonemes: symbol.to_string() }),
            }
            is_in_word = !symbol.is_whitespace();
        }
        // The full stop of an abbreviation also ends its sentence.
        if let Some(last) = words.last_mut()
            && text.ends_with('.')
            && last.phonemes.ends_with(char::is_alphabetic)
        {
            last.phonemes.push('.');
        }
        words
    }

    /// The symbols, each with the origin of the word that it is spoken for. `None` when the lexicon panics or fails; it holds
    /// nothing that a panic could leave half-changed.
    fn lookup(&self, text: &str, origins: &[usize]) -> Option<Vec<(char, usize)>> {
        READER.set(Some(Arc::clone(&self.unknown)));
        let result = catch_unwind(AssertUnwindSafe(|| self.g2p.g2p(text)));
        READER.set(None);
        let (_, tokens) = result.ok()?.ok()?;
        let last = origins.last().copied().unwrap_or(0);
        let mut symbols = Vec::new();
        let mut at = 0;
        for token in tokens {
            let origin = origins.get(at).copied().unwrap_or(last);
            // White space after a token ends its word. Unread tokens have no phonemes.
            at += usize::from(!token.whitespace.is_empty());
            let phonemes = token.phonemes.unwrap_or_default() + &token.whitespace;
            symbols.extend(phonemes.chars().map(|symbol| (symbol, origin)));
        }
        Some(symbols)
    }
}

/// The lexicons and the tagger of an accent, 86 MB that all who speak it share.
fn lexicons(accent: Accent) -> Arc<G2P> {
    static LOADED: [Mutex<Weak<G2P>>; 2] = [const { Mutex::new(Weak::new()) }; 2];
    let (place, language) = match accent {
        Accent::American => (&LOADED[0], Language::EnglishUS),
        Accent::British => (&LOADED[1], Language::EnglishGB),
    };
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.upgrade().unwrap_or_else(|| {
        let loaded = Arc::new(G2P::with_fallback(language, Some(Box::new(Pieces))));
        *place = Arc::downgrade(&loaded);
        loaded
    })
}

thread_local! {
    /// Who reads the unknown words of the sentence that the thread looks up: the lexicons are shared, their readers are not.
    static READER: RefCell<Option<Arc<dyn UnknownWords>>> = const { RefCell::new(None) };
}

/// `text` with over-long words cut, and without the link syntax that would set phonemes by hand. For each of its words, the
/// index of the word in `text`.
fn guarded(text: &str) -> (String, Vec<usize>) {
    let mut out = String::with_capacity(text.len());
    let mut origins = Vec::new();
    for (origin, word) in text.split_whitespace().enumerate() {
        let chars: Vec<char> = word.chars().collect();
        for piece in chars.chunks(MAX_WORD_CHARS) {
            let piece = piece.iter().collect::<String>().replace("](", "] (");
            origins.extend(piece.split_whitespace().map(|_| origin));
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(&piece);
        }
    }
    (with_weak_points(&out), origins)
}

/// The point of a decimal has no stress, as where the lexicon reads the digits itself.
fn with_weak_points(text: &str) -> String {
    // A link within brackets is none.
    if text.contains('[') {
        return text.to_owned();
    }
    let words: Vec<&str> = text.split(' ').collect();
    let is_digit = |word: &str| ONES[..10].contains(&word.trim_end_matches(|c: char| !c.is_alphabetic()));
    let mut read = words.iter().enumerate().map(|(at, word)| match words.get(at + 1) {
        Some(next) if *word == "point" && is_digit(next) => "[point](-2)",
        _ => *word,
    });
    let first = read.next().unwrap_or_default().to_owned();
    read.fold(first, |text, word| text + " " + word)
}

/// Takes an unknown word apart into letters, digits and symbols.
struct Pieces;

#[derive(PartialEq, Clone, Copy)]
enum Class {
    Letters,
    Digits,
    Symbols,
}

impl Pieces {
    fn read(piece: &str, class: Class) -> Option<String> {
        let joined = |names: Vec<&str>| (!names.is_empty()).then(|| names.join(" "));
        match class {
            Class::Letters => READER.with_borrow(|reader| reader.as_ref()?.phonemes(piece)),
            Class::Digits => joined(piece.chars().filter_map(digit_name).collect()),
            Class::Symbols => joined(piece.chars().filter_map(symbol_name).collect()),
        }
    }
}

impl Fallback for Pieces {
    fn phonemize(&self, word: &str) -> Result<String, FallbackError> {
        let mut read: Vec<String> = Vec::new();
        let mut start = 0;
        let mut current = None;
        for (at, c) in word.char_indices().chain([(word.len(), '\0')]) {
            let class = match c {
                '\'' | '’' if current == Some(Class::Letters) => Class::Letters,
                _ if c.is_alphabetic() => Class::Letters,
                _ if c.is_ascii_digit() => Class::Digits,
                _ => Class::Symbols,
            };
            if let Some(before) = current
                && (before != class || at == word.len())
            {
                read.extend(Self::read(word[start..at].trim_end_matches(['\'', '’']), before));
                start = at;
            }
            current = Some(class);
        }
        Ok(read.join(" "))
    }
}

fn digit_name(c: char) -> Option<&'static str> {
    DIGITS.get(c.to_digit(10)? as usize).copied()
}

fn symbol_name(c: char) -> Option<&'static str> {
    SYMBOLS.iter().find(|(symbol, _)| *symbol == c).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn phonemiser() -> Phonemiser {
        Phonemiser::new(Box::new(LetterNames))
    }

    fn joined(sentence: &str) -> String {
        phonemiser().phonemes(sentence).into_iter().map(|word| word.phonemes).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn known_words_come_from_the_lexicon() {
        assert_eq!(joined("Hello there."), "həlˈO ðˈɛɹ.");
    }

    #[test]
    fn unknown_words_are_spelled() {
        assert_eq!(LetterNames.phonemes("xyz").as_deref(), Some("ˌɛkswˌIzˈi"));
        assert_eq!(LetterNames.phonemes("漢字"), None);
        let spelled = joined("the qzxwv is");
        assert!(spelled.contains("kjˌuzˌiˌɛks"), "{spelled}");
    }

    #[test]
    fn readers_of_unknown_words_share_the_lexicons() {
        struct Same;
        impl UnknownWords for Same {
            fn phonemes(&self, _: &str) -> Option<String> {
                Some("sˈAm".to_owned())
            }
        }
        let (letters, same) = (phonemiser(), Phonemiser::new(Box::new(Same)));
        assert!(Arc::ptr_eq(&letters.g2p, &same.g2p));
        let read = |phonemiser: &Phonemiser| phonemiser.phonemes("qzxwv")[0].phonemes.clone();
        let spelled = read(&letters);
        assert_eq!((read(&same), read(&letters)), ("sˈAm".to_owned(), spelled));
    }

    #[test]
    fn words_of_another_script_vanish() {
        assert_eq!(joined("漢字 שלום"), "");
    }

    #[test]
    fn phonemes_know_the_word_they_are_spoken_for() {
        let read = phonemiser().phonemes("In 2024 (at last), it cost $9.99 and 漢字 twenty-one.");
        let words: Vec<usize> = read.iter().map(|read| read.word).collect();
        assert_eq!((words.first(), words.last()), (Some(&0), Some(&9)), "{read:?}");
        assert!(words.is_sorted() && !words.contains(&8), "{read:?}");
        let of = |word: usize| words.iter().filter(|&&of| of == word).count();
        assert!(of(1) >= 3 && of(6) >= 4 && of(4) == 1 && of(7) == 1, "{read:?}");
        let long = format!("one {} two", "a-".repeat(50));
        let read = phonemiser().phonemes(&long);
        assert_eq!(read.last().map(|read| read.word), Some(2), "{read:?}");
    }

    #[test]
    fn the_point_of_a_decimal_has_no_stress() {
        let read = phonemiser().phonemes("The point is three point five miles, point five.");
        let of = |word: usize| read.iter().find(|read| read.word == word).map(|read| read.phonemes.clone());
        let [noun, first, second] = [1, 4, 7].map(|word| of(word).unwrap_or_default());
        assert_eq!([noun.as_str(), &first, &second], ["pˈYnt", "pYnt", "pYnt"]);
        assert_eq!(read.last().map(|read| read.word), Some(8));
        assert!(!joined("[a] three point five").is_empty());
    }

    #[test]
    fn over_long_words_are_cut() {
        let long = "a-".repeat(2000);
        let (cut, origins) = guarded(&long);
        assert!(cut.split(' ').all(|word| word.chars().count() <= MAX_WORD_CHARS));
        assert_eq!(cut.split(' ').count(), origins.len());
        phonemiser().phonemes(&long);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_read(
            unicode in any::<String>(),
            typed in r#"([a-zA-Z]{1,6}|[0-9]{1,4}|[-$£€.,'’‘/:;%#@&*()\[\]_+=" ]){0,60}"#,
        ) {
            thread_local! {
                static PHONEMISER: Phonemiser = phonemiser();
            }
            for text in [unicode, typed] {
                let read = PHONEMISER.with(|phonemiser| phonemiser.phonemes(&text));
                let is_word = |word: &str| !word.is_empty() && !word.contains([UNREAD, ' ']);
                prop_assert!(read.iter().all(|word| is_word(&word.phonemes)), "{read:?}");
                let words = text.split_whitespace().count();
                prop_assert!(read.is_sorted_by_key(|word| word.word), "{read:?}");
                prop_assert!(read.iter().all(|read| read.word < words), "{read:?}");
            }
        }
    }
}
