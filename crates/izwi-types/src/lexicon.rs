//! Pronunciations that users write: words, and how they are said.

use serde::{Deserialize, Serialize};

use crate::{InputError, excerpt};

/// The most entries of a lexicon.
const MAX_ENTRIES: usize = 20_000;
/// The most characters of a word, of its sounds and of what is said in its place.
const MAX_CHARS: usize = 256;

/// Words, and how they are said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object with entries")]
pub struct Lexicon {
    /// BCP 47 tag of the texts that it is for, such as `en` or `en-GB`; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Its entries. Of two with the same word the first one counts.
    pub entries: Vec<LexiconEntry>,
}

/// A word of a lexicon, which may be several words, and how it is said: by its sounds, in other words, or both, where the
/// words are for models that take no sounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with a word, and its ipa or alias")]
pub struct LexiconEntry {
    /// As it is written.
    pub word: String,
    /// Its sounds, in IPA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipa: Option<String>,
    /// What is said in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Whether only these capital and small letters are meant; absent, that is so if the word has capital letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case_sensitive: Option<bool>,
}

impl Lexicon {
    /// Checks the limits of all entries.
    ///
    /// # Errors
    /// There are none or too many, or one says nothing or is too long; the error names it.
    pub fn check(&self) -> Result<(), InputError> {
        let fault = |message| Err(InputError { param: "entries", message });
        if self.entries.is_empty() {
            return fault("entries is empty; send words with their ipa or alias".to_owned());
        }
        if self.entries.len() > MAX_ENTRIES {
            let count = self.entries.len();
            return fault(format!(
                "entries has {count} words, and at most {MAX_ENTRIES} are allowed; send fewer"
            ));
        }
        for (at, LexiconEntry { word, ipa, alias, .. }) in self.entries.iter().enumerate() {
            let is_blank = |text: &Option<String>| text.as_ref().is_none_or(|text| text.trim().is_empty());
            let is_long = |text: &str| text.chars().nth(MAX_CHARS).is_some();
            let shown = excerpt(word);
            if word.trim().is_empty() {
                return fault(format!("entries[{at}] has no word"));
            }
            if is_blank(ipa) && is_blank(alias) {
                return fault(format!(
                    "entries[{at}], '{shown}', has neither sounds (ipa) nor an alias; add one"
                ));
            }
            if [Some(word), ipa.as_ref(), alias.as_ref()].into_iter().flatten().any(|text| is_long(text)) {
                return fault(format!(
                    "entries[{at}], '{shown}', has more than {MAX_CHARS} characters; shorten it"
                ));
            }
        }
        Ok(())
    }
}

impl LexiconEntry {
    /// Whether only the capital and small letters of the word are meant.
    pub fn is_case_sensitive(&self) -> bool {
        self.case_sensitive.unwrap_or_else(|| self.word.chars().any(char::is_uppercase))
    }
}
