//! Lexicons: words, and how they are said.

use izwi_hub::SavedLexicon;
use izwi_types::LexiconEntry;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schemas;

/// `POST /v1/lexicons`. Members that are not listed are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct LexiconRequest {
    /// Name of the lexicon, for `lexicons` of speech requests.
    #[schema(value_type = String, min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]*$")]
    pub(crate) name: Option<String>,
    /// What it is for.
    pub(crate) description: Option<String>,
    /// BCP 47 tag of the texts that it is for; all without it.
    pub(crate) language: Option<String>,
    /// Whether it is used for all speech that names no lexicons.
    #[schema(default = false)]
    pub(crate) always: Option<bool>,
    /// Voices with which it is used for speech that names no lexicons.
    pub(crate) voices: Option<Vec<String>>,
    /// Whether a lexicon of the same name is replaced.
    #[schema(default = false)]
    pub(crate) overwrite: Option<bool>,
    /// Its words. Required, unless `text` is given.
    #[schema(value_type = Option<Vec<LexiconEntrySchema>>)]
    pub(crate) entries: Option<Vec<LexiconEntry>>,
    /// Its words as a document of W3C PLS, or as lines such as `word = other words` and `word = /ipa/`.
    pub(crate) text: Option<String>,
}

/// A word, and how it is said: its sounds, other words, or both, where the words are for models that take no sounds.
#[derive(Debug, ToSchema)]
#[schema(as = LexiconEntry)]
#[expect(dead_code, reason = "the schema of a type of another crate")]
pub(crate) struct LexiconEntrySchema {
    /// One word or several, as written.
    #[schema(min_length = 1, max_length = 256)]
    word: String,
    /// Its sounds in IPA.
    #[schema(max_length = 256)]
    ipa: Option<String>,
    /// What is said in its place.
    #[schema(max_length = 256)]
    alias: Option<String>,
    /// Whether only these capital and small letters are meant; without it, that is so if the word has capital letters.
    case_sensitive: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LexiconList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    pub(crate) lexicons: Vec<LexiconObject>,
}

/// A saved lexicon.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LexiconObject {
    pub(crate) id: String,
    #[schema(schema_with = schemas::lexicon_object)]
    pub(crate) object: &'static str,
    /// Unix time at which it was saved.
    pub(crate) created_at: u64,
    pub(crate) description: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) always: bool,
    pub(crate) voices: Vec<String>,
    pub(crate) entry_count: usize,
    /// Its words; not in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<LexiconEntrySchema>, nullable = false)]
    pub(crate) entries: Option<Vec<LexiconEntry>>,
}

impl From<SavedLexicon> for LexiconObject {
    fn from(saved: SavedLexicon) -> Self {
        let SavedLexicon { name, description, always, voices, saved_unix_s, lexicon, .. } = saved;
        Self {
            id: name,
            object: schemas::LEXICON,
            created_at: saved_unix_s,
            description,
            language: lexicon.language,
            always,
            voices,
            entry_count: lexicon.entries.len(),
            entries: Some(lexicon.entries),
        }
    }
}

/// A lexicon that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LexiconDeleted {
    pub(crate) id: String,
    #[schema(schema_with = schemas::lexicon_deleted_object)]
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}
