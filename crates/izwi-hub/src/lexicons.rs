//! Saved lexicons: how users want words said, and in which texts.
//!
//! Knows no text and no sound: who saves a lexicon has read it.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use izwi_types::Lexicon;
use serde::{Deserialize, Serialize};

use crate::home;
use crate::saved::{Saved, SavedFiles};

const FORMAT: &str = "izwi-lexicon-1";

/// The saved lexicons of one home folder.
pub type LexiconStore = SavedFiles<SavedLexicon>;

/// A saved lexicon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedLexicon {
    /// What the file is.
    pub format: String,
    /// Name in requests; also that of the file.
    pub name: String,
    /// What people call it, if that is another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it is for, in the words of its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether it is used for all texts that name no lexicons.
    #[serde(default)]
    pub always: bool,
    /// Voices with which it is used for texts that name no lexicons.
    #[serde(default)]
    pub voices: Vec<String>,
    /// Unix time at which its file was written; 0 before it is read.
    #[serde(skip)]
    pub saved_unix_s: u64,
    /// Its words.
    #[serde(flatten)]
    pub lexicon: Lexicon,
}

impl SavedLexicon {
    /// A lexicon that requests use by its name.
    pub fn new(name: &str, lexicon: Lexicon) -> Self {
        let (format, name) = (FORMAT.to_owned(), name.to_owned());
        let (title, description, voices) = (None, None, Vec::new());
        Self { format, name, title, description, always: false, voices, saved_unix_s: 0, lexicon }
    }
}

impl Saved for SavedLexicon {
    const KIND: &'static str = "lexicon";
    const LIMITS: (u64, usize) = (16 << 20, 200);

    fn name(&self) -> &str {
        &self.name
    }

    fn fault(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("its file is no '{FORMAT}'"));
        }
        self.lexicon.check().err().map(|error| error.message)
    }

    fn set_saved_at(&mut self, at: Option<SystemTime>) {
        let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        self.saved_unix_s = since.map_or(0, |since| since.as_secs());
    }
}

impl LexiconStore {
    /// The lexicons of the store in `root`, else in `IZWI_HOME`, else in the platform's data folder; `None` where no such folder
    /// can be named.
    pub fn open(root: Option<PathBuf>) -> Option<Self> {
        home::folder(root).map(|root| Self::at(&root))
    }
}

#[cfg(test)]
mod tests {
    use izwi_types::LexiconEntry;

    use super::*;
    use crate::saved::SavedError;

    #[test]
    fn lexicons_are_saved_replaced_and_read() {
        let home = tempfile::tempdir().unwrap();
        let store = LexiconStore::open(Some(home.path().to_owned())).unwrap();
        let entry = LexiconEntry { word: "a".into(), alias: Some("b".into()), ..LexiconEntry::default() };
        let lexicon = Lexicon { language: Some("en".into()), entries: vec![entry] };
        let mut brands = SavedLexicon::new("brands", lexicon);
        store.save(&brands).unwrap();
        assert!(matches!(store.save(&brands), Err(SavedError::Exists { .. })));
        let before = store.stamps().unwrap();
        (brands.always, brands.voices) = (true, vec!["heart".to_owned()]);
        store.replace(&brands).unwrap();
        assert_ne!(store.stamps().unwrap(), before);
        let read = store.read("brands").unwrap();
        assert!(read.saved_unix_s > 1_700_000_000);
        assert_eq!(read, SavedLexicon { saved_unix_s: read.saved_unix_s, ..brands });
        let error = store.read("brand").unwrap_err().to_string();
        assert!(error.contains("no lexicon 'brand' is saved; did you mean 'brands'?"), "{error}");
        std::fs::write(
            home.path().join("lexicons/none.json"),
            r#"{"format":"izwi-lexicon-1","name":"none","entries":[]}"#,
        )
        .unwrap();
        let error = store.read("none").unwrap_err().to_string();
        assert!(error.contains("lexicon 'none' cannot be used: entries is empty"), "{error}");
    }
}
