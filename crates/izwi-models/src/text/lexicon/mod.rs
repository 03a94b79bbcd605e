//! Pronunciations of users: where a text has the words of a lexicon, and how they are said.
//!
//! Owns formats and matching. Knows no model and no markup. Words are found whole, the longest first.

mod pls;
mod respelling;
mod table;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use izwi_types::{InputError, Lexicon, excerpt};

use super::ipa;

pub use pls::to_pls;

/// Reads a lexicon: W3C PLS 1.0, JSON with `entries`, or a table with lines such as `word = other words` and `word = /ipa/`.
///
/// # Errors
/// The text is none of these; the error names the line or the entry.
pub fn read(text: &str) -> Result<Lexicon, InputError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lexicon = match text.trim_start().chars().next() {
        Some('<') => pls::read(text),
        Some('{') => {
            serde_json::from_str(text).map_err(|error| format!("the lexicon is no JSON of one: {error}"))
        }
        _ => table::read(text),
    };
    let lexicon = lexicon.map_err(|message| InputError { param: "lexicon", message })?;
    LexiconIndex::new(&lexicon)?;
    Ok(lexicon)
}

/// Sounds in an alphabet, `ipa`, `x-sampa` or `cmu-arpabet`, in IPA.
///
/// # Errors
/// The alphabet is another one.
pub fn ipa_of(alphabet: &str, sounds: &str) -> Result<String, String> {
    match alphabet {
        "ipa" => Ok(sounds.to_owned()),
        "x-sampa" => Ok(ipa::of_x_sampa(sounds)),
        "cmu-arpabet" | "cmu" => Ok(ipa::of_arpabet(sounds)),
        other => {
            Err(format!("the alphabet '{}' is not known; use ipa, x-sampa or cmu-arpabet", excerpt(other)))
        }
    }
}

/// A lexicon, ready for texts.
#[derive(Debug, Default, PartialEq)]
pub struct LexiconIndex {
    language: Option<String>,
    /// Entries by the run of letters and digits, or the sign, that they begin with, the longest first.
    entries: HashMap<String, Vec<Entry>>,
    /// How many times as long as it is written a word may become.
    expansion: usize,
}

/// A word, and how it is said.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    /// One space between its words; small letters where they mean capital ones too.
    word: Vec<char>,
    is_case_sensitive: bool,
    ipa: Option<String>,
    /// The sounds in misaki's alphabet.
    phonemes: Option<String>,
    alias: Option<String>,
}

/// How a word of a lexicon is said by a model.
#[derive(Debug, PartialEq)]
pub(crate) enum Pronunciation<'a> {
    /// By these sounds, in misaki's alphabet.
    Sounds(&'a str),
    /// In these words.
    Words(&'a str),
    /// In English spelling that comes near its sounds.
    Respelled(String),
    /// As it is written.
    Unchanged,
}

impl LexiconIndex {
    /// Indexes a lexicon.
    ///
    /// # Errors
    /// An entry is faulty: it says nothing, or has a sound that is none of IPA.
    pub fn new(lexicon: &Lexicon) -> Result<Self, InputError> {
        lexicon.check()?;
        let mut entries: HashMap<String, Vec<Entry>> = HashMap::new();
        for (at, written) in lexicon.entries.iter().enumerate() {
            let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
            let ipa = given(&written.ipa);
            let phonemes = ipa.as_deref().map(|ipa| {
                ipa::misaki(ipa).ok_or_else(|| InputError {
                    param: "entries",
                    message: format!(
                        "entries[{at}], '{}': '{}' is no sound in IPA; write one, or an alias",
                        excerpt(&written.word),
                        excerpt(ipa)
                    ),
                })
            });
            let is_case_sensitive = written.is_case_sensitive();
            let word = written.word.split_whitespace().collect::<Vec<_>>().join(" ");
            let entry = Entry {
                word: word.chars().map(|c| folded(c, is_case_sensitive)).collect(),
                is_case_sensitive,
                phonemes: phonemes.transpose()?,
                ipa,
                alias: given(&written.alias).map(|alias| alias.trim().to_owned()),
            };
            entries.entry(beginning(&word).to_lowercase()).or_default().push(entry);
        }
        // The first one of equal ones stays first.
        entries.values_mut().for_each(|entries| entries.sort_by_key(|entry| usize::MAX - entry.word.len()));
        let expansion = entries.values().flatten().map(Entry::expansion).max().unwrap_or(1);
        Ok(Self { language: lexicon.language.as_ref().map(|tag| tag.to_lowercase()), entries, expansion })
    }

    /// Whether it is for texts in the language of a BCP 47 tag; a tag without a region is for all regions.
    pub fn is_for(&self, tag: Option<&str>) -> bool {
        let Some(own) = &self.language else { return true };
        let tag = tag.unwrap_or_default().to_lowercase();
        tag.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

impl Entry {
    /// How a model says it that takes sounds or not, in a text that is English or not.
    pub(crate) fn pronunciation(&self, takes_phonemes: bool, is_english: bool) -> Pronunciation<'_> {
        match (&self.phonemes, &self.alias) {
            (Some(phonemes), _) if takes_phonemes => Pronunciation::Sounds(phonemes),
            (_, Some(alias)) => Pronunciation::Words(alias),
            (Some(phonemes), None) if is_english => Pronunciation::Respelled(respelling::english(phonemes)),
            _ => Pronunciation::Unchanged,
        }
    }

    /// How many times as long as it is written it becomes in letters.
    fn expansion(&self) -> usize {
        // The letters of a sound take no more bytes than twice those of its symbol.
        let said = self.alias.as_ref().or(self.phonemes.as_ref()).map_or(0, |said| 2 * said.len());
        said.div_ceil(self.word.len().max(1)).max(1)
    }

    /// Its sounds, in IPA.
    pub(crate) fn ipa(&self) -> &str {
        self.ipa.as_deref().unwrap_or_default()
    }
}

/// The lexicons of a text, the first one first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lexicons(Vec<Arc<LexiconIndex>>);

impl From<Vec<Arc<LexiconIndex>>> for Lexicons {
    fn from(lexicons: Vec<Arc<LexiconIndex>>) -> Self {
        Self(lexicons)
    }
}

impl Lexicons {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The words of a text that are in the lexicons; where the text `is_complete`, none waits for more of it.
    pub(crate) fn find<'a>(&'a self, text: &'a str, is_complete: bool) -> Words<'a> {
        Words { lexicons: self, text, is_complete, at: 0, open: None }
    }

    /// The entry that a text begins with, the longest of all lexicons, and where it ends in the text; an error where that depends
    /// on what follows the text.
    fn entry(&self, text: &str, is_complete: bool) -> Result<Option<(&Entry, usize)>, Undecided> {
        let first = beginning(text);
        if !is_complete && first.len() == text.len() {
            return Err(Undecided);
        }
        let key = first.to_lowercase();
        let mut best: Option<(&Entry, usize)> = None;
        for entry in self.0.iter().filter_map(|lexicon| lexicon.entries.get(&key)).flatten() {
            let is_longer = best.is_none_or(|(best, _)| entry.word.len() > best.word.len());
            match fit(entry, text) {
                Fit::Whole(end) if is_longer && end == text.len() && !is_complete => return Err(Undecided),
                Fit::Whole(end) if is_longer => best = Some((entry, end)),
                Fit::Beginning if is_longer && !is_complete => return Err(Undecided),
                _ => {}
            }
        }
        Ok(best)
    }
}

/// What follows a text decides.
struct Undecided;

/// The words of a text that are in lexicons.
pub(crate) struct Words<'a> {
    lexicons: &'a Lexicons,
    text: &'a str,
    is_complete: bool,
    at: usize,
    /// Where what waits for more text begins, once all words are found.
    pub(crate) open: Option<usize>,
}

impl<'a> Iterator for Words<'a> {
    type Item = (Range<usize>, &'a Entry);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.lexicons.is_empty() && self.at < self.text.len() && self.open.is_none() {
            let rest = &self.text[self.at..];
            let start = self.at;
            match self.lexicons.entry(rest, self.is_complete) {
                Err(Undecided) => self.open = Some(start),
                Ok(Some((entry, end))) => {
                    self.at += end;
                    return Some((start..self.at, entry));
                }
                Ok(None) => self.at += beginning(rest).len(),
            }
        }
        None
    }
}

/// How far a text fits an entry.
enum Fit {
    No,
    /// The text ends within the entry.
    Beginning,
    /// The entry ends there.
    Whole(usize),
}

fn fit(entry: &Entry, text: &str) -> Fit {
    let mut rest = text.char_indices().peekable();
    for &wanted in &entry.word {
        match rest.next() {
            None => return Fit::Beginning,
            Some((_, c)) if wanted == ' ' && c.is_whitespace() => {
                while rest.next_if(|(_, c)| c.is_whitespace()).is_some() {}
            }
            Some((_, c)) if wanted == folded(c, entry.is_case_sensitive) => {}
            Some(_) => return Fit::No,
        }
    }
    let end = rest.peek().map_or(text.len(), |(at, _)| *at);
    let last = text[..end].chars().next_back();
    match rest.peek() {
        Some((_, next)) if last.is_some_and(|last| is_one_word(last, *next)) => Fit::No,
        _ => Fit::Whole(end),
    }
}

/// A character as entries have it.
fn folded(c: char, is_case_sensitive: bool) -> char {
    match c {
        '’' => '\'',
        _ if is_case_sensitive => c,
        _ => c.to_lowercase().next().unwrap_or(c),
    }
}

/// The run of letters and digits that a text begins with, or its first character.
fn beginning(text: &str) -> &str {
    let mut last = None;
    let end = text.char_indices().find(|&(_, c)| last.replace(c).is_some_and(|last| !is_one_word(last, c)));
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// Whether no word ends between two characters.
fn is_one_word(last: char, next: char) -> bool {
    let is_spaced = |c: char| c.is_alphanumeric() && !is_unspaced(c);
    is_spaced(last) && is_spaced(next)
}

/// Whether a letter is of a script without spaces between words: Thai to Khmer, kana, Chinese characters.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Says the words of lexicons in other words, in a text that arrives in pieces: where a model takes no sounds, and the text is
/// already being spoken.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct WordReplacer {
    lexicons: Lexicons,
    is_english: bool,
    /// What may be the beginning of a word of the lexicons.
    held: String,
}

impl WordReplacer {
    pub(crate) fn new(lexicons: Lexicons, is_english: bool) -> Self {
        Self { lexicons, is_english, held: String::new() }
    }

    /// The text that can be passed on with this piece. `tell` gets the short form of what is not said by its sounds.
    pub(crate) fn push(&mut self, piece: &str, is_last: bool, mut tell: impl FnMut(&str)) -> String {
        if self.lexicons.is_empty() {
            return piece.to_owned();
        }
        let text = std::mem::take(&mut self.held) + piece;
        let mut spoken = String::with_capacity(text.len());
        let mut copied = 0;
        let mut words = self.lexicons.find(&text, is_last);
        for (range, entry) in &mut words {
            spoken.push_str(&text[copied..range.start]);
            copied = range.end;
            let word = &text[range];
            match entry.pronunciation(false, self.is_english) {
                Pronunciation::Words(words) => spoken.push_str(words),
                Pronunciation::Respelled(respelled) => {
                    tell(&short_form(word, entry));
                    spoken.push_str(&respelled);
                }
                Pronunciation::Sounds(_) | Pronunciation::Unchanged => {
                    tell(&short_form(word, entry));
                    spoken.push_str(word);
                }
            }
        }
        let end = words.open.unwrap_or(text.len());
        spoken.push_str(&text[copied..end]);
        text[end..].clone_into(&mut self.held);
        spoken
    }

    /// Bytes that wait for more text.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// How many times as long as it is written a text may become.
    pub(crate) fn expansion(&self) -> usize {
        self.lexicons.0.iter().map(|lexicon| lexicon.expansion).max().unwrap_or(1)
    }
}

/// A word with its sounds, as markup would say it.
pub(crate) fn short_form(word: &str, entry: &Entry) -> String {
    format!("{{{word}|/{}/}}", entry.ipa())
}

#[cfg(test)]
mod tests {
    use izwi_types::LexiconEntry;
    use proptest::prelude::*;

    use super::*;
    use crate::text::english::EnglishFrontEnd;
    use crate::text::front_end::FrontEnd as _;
    use crate::text::phonemes::{Accent, LetterNames};
    use crate::text::ssml::{Abilities, Script};

    fn lexicons(tables: &[&str]) -> Lexicons {
        let indexed = tables.iter().map(|table| Arc::new(LexiconIndex::new(&read(table).unwrap()).unwrap()));
        indexed.collect::<Vec<_>>().into()
    }

    #[track_caller]
    fn check(lexicons: &Lexicons, text: &str, expected: &str) {
        let mut told = Vec::new();
        let mut replacer = WordReplacer::new(lexicons.clone(), true);
        assert_eq!(replacer.push(text, true, |word| told.push(word.to_owned())), expected, "{text}");
    }

    #[test]
    fn whole_words_are_found_the_longest_first() {
        let lexicons = lexicons(&[
            "nginx = engine x\nSQL = sequel\nNew York = the city\nNew York Times = the paper\nC++ = C plus plus\n.NET = dot net",
        ]);
        check(
            &lexicons,
            "Nginx, NGINX and nginxes; pre-nginx.",
            "engine x, engine x and nginxes; pre-engine x.",
        );
        check(&lexicons, "SQL, not sql, MySQL or SQL2.", "sequel, not sql, MySQL or SQL2.");
        check(&lexicons, "New  York\nTimes of New York Time", "the paper of the city Time");
        check(&lexicons, "C++17, C+ and .NET", "C plus plus17, C+ and dot net");
        check(&Lexicons::default(), "nginx", "nginx");
    }

    #[test]
    fn the_first_lexicon_goes_first_and_words_without_spaces_are_found() {
        let lexicons = lexicons(&["data = dayta\n东京 = Tokyo", "data = dahta\nDr. Lee = Doctor Leigh"]);
        check(&lexicons, "Data of Dr. Lee", "dayta of Doctor Leigh");
        check(&lexicons, "我在东京住", "我在Tokyo住");
    }

    #[test]
    fn sounds_are_respelled_where_a_model_takes_none() {
        let lexicons = lexicons(&["Izwi = /ˈiːzwi/\nGIF = /dʒɪf/ = jiff"]);
        check(&lexicons, "Izwi's GIF", "eezwee's jiff");
        let entry = |word: &str| {
            let (_, entry) = lexicons.find(word, true).next().unwrap();
            format!("{:?} {:?}", entry.pronunciation(true, true), entry.pronunciation(false, false))
        };
        assert_eq!(entry("Izwi"), "Sounds(\"ˈiːzwi\") Unchanged");
        assert_eq!(entry("GIF"), "Sounds(\"ʤɪf\") Words(\"jiff\")");
    }

    #[test]
    fn a_lexicon_is_for_its_language() {
        let index = |language: &str| {
            let entries =
                vec![LexiconEntry { word: "a".into(), alias: Some("b".into()), ..LexiconEntry::default() }];
            LexiconIndex::new(&Lexicon { language: Some(language.into()), entries }).unwrap()
        };
        assert!(index("en").is_for(Some("en-GB")) && index("en-GB").is_for(Some("en-gb")));
        assert!(
            !index("en-GB").is_for(Some("en"))
                && !index("en").is_for(Some("eng"))
                && !index("en").is_for(None)
        );
        assert!(LexiconIndex::default().is_for(None));
    }

    /// The phonemes are those that a network of misaki's alphabet gets.
    #[test]
    fn a_hundred_brands_are_heard_as_given_and_nothing_else_changes() {
        let brands = read(include_str!("brands.txt")).unwrap();
        assert!(brands.entries.len() >= 100);
        let index = Lexicons::from(vec![Arc::new(LexiconIndex::new(&brands).unwrap())]);
        let abilities = Abilities { parts: true, rates: true, phonemes: true, english: true };
        let front_end = EnglishFrontEnd::new(Box::new(LetterNames)).unwrap();
        for entry in &brands.entries {
            let sentence = |name: &str| format!("They sold {name}, and nobody else did.");
            let script = Script::read(&sentence(&entry.word), abilities, &index);
            let part = &script.parts[0];
            let mut sentences = front_end.sentences(&part.text);
            ipa::substitute(&mut sentences, &part.sounds, |sounds| front_end.own_symbols(sounds));
            let heard =
                sentences.iter().map(|sentence| sentence.phonemes.as_str()).collect::<Vec<_>>().join(" ");
            let given = ipa::english(&ipa::misaki(entry.ipa.as_ref().unwrap()).unwrap(), Accent::American);
            let around = front_end.sentences(&sentence("it"))[0].phonemes.clone();
            let (before, after) = around.split_once("ɪt,").unwrap();
            assert_eq!(heard, format!("{before}{given},{after}"), "{}", entry.word);
            assert!(script.told.is_empty());
        }
    }

    #[test]
    fn faulty_lexicons_are_refused_by_entry() {
        for (text, expected) in [
            ("", "entries is empty"),
            ("a = /hello world!/", "entries[0], 'a': 'hello world!' is no sound in IPA"),
            ("{\"entries\":[{\"word\":\"a\"}]}", "entries[0], 'a', has neither sounds (ipa) nor an alias"),
            ("{\"entries\":7}", "no JSON"),
            ("a", "line 1"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = read(&format!("a = {}", "b".repeat(300))).unwrap_err().to_string();
        assert!(long.contains("more than 256 characters"), "{long}");
    }

    proptest! {
        #[test]
        fn pieces_are_said_as_the_whole(
            parts in prop::collection::vec(prop::sample::select(vec![
                "New", "York", "new", "SQL", "data", " ", "  ", ".", "é", "’s", "C++", "C", "+", "东京", "东", "x",
            ]), 0..20),
            cuts in prop::collection::vec(0usize..80, 0..6),
        ) {
            let lexicons = lexicons(&["New York = n\nnew = m\nSQL = s\nC++ = cpp\n东京 = t\ndata x = d"]);
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| at <= text.len() && text.is_char_boundary(at)).collect();
            cuts.sort_unstable();
            let mut replacer = WordReplacer::new(lexicons.clone(), true);
            let (mut got, mut from) = (String::new(), 0);
            for at in cuts {
                got += &replacer.push(&text[from..at], false, |_| {});
                from = at;
            }
            got += &replacer.push(&text[from..], true, |_| {});
            prop_assert_eq!(got, WordReplacer::new(lexicons, true).push(&text, true, |_| {}));
        }

        #[test]
        fn any_text_and_lexicon_are_read(text in any::<String>(), lexicon in any::<String>()) {
            if let Ok(lexicon) = read(&lexicon) {
                let index = Lexicons::from(vec![Arc::new(LexiconIndex::new(&lexicon).unwrap())]);
                index.find(&text, true).count();
            }
            lexicons(&["a = b\nI = eye"]).find(&text, true).count();
        }
    }
}
