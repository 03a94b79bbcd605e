//! Saved speakers, by whom recordings are told who speaks: a speaker embedding each, and no audio.
//!
//! Knows no model: embeddings are compared with those of the same model.

use serde::{Deserialize, Serialize};

use crate::saved::{Saved, SavedFiles};

const FORMAT: &str = "izwi-speaker-1";

/// The saved speakers of one home folder.
pub type SpeakerStore = SavedFiles<SavedSpeaker>;

/// A saved speaker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSpeaker {
    format: String,
    /// Name in results; also that of the file.
    pub name: String,
    /// The model that made the embedding.
    pub model: String,
    /// The embedding.
    pub embedding: Vec<f32>,
}

impl SavedSpeaker {
    /// A speaker by this embedding of `model`.
    pub fn new(name: &str, model: &str, embedding: &[f32]) -> Self {
        Self {
            format: FORMAT.to_owned(),
            name: name.to_owned(),
            model: model.to_owned(),
            embedding: embedding.to_vec(),
        }
    }
}

impl Saved for SavedSpeaker {
    const KIND: &'static str = "speaker";
    const LIMITS: (u64, usize) = (1 << 20, 1_000);

    fn name(&self) -> &str {
        &self.name
    }

    fn fault(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("its file is no '{FORMAT}'"));
        }
        let is_faulty = self.embedding.is_empty() || self.embedding.iter().any(|value| !value.is_finite());
        is_faulty.then(|| "its embedding is empty or not finite".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::saved::SavedError;

    #[test]
    fn speakers_are_saved_for_their_owner_listed_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let store = SpeakerStore::at(home.path());
        assert_eq!(store.list().unwrap(), []);
        let ann = SavedSpeaker::new("ann", "who", &[0.5, -1.0]);
        store.save(&ann).unwrap();
        assert_eq!(store.list().unwrap(), std::slice::from_ref(&ann));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(home.path().join("speakers/ann.json")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(matches!(store.save(&ann), Err(SavedError::Exists { .. })));
        let error = store.remove("anne").unwrap_err().to_string();
        assert!(error.contains("no speaker 'anne' is saved; did you mean 'ann'?"), "{error}");
        assert!(matches!(store.remove("../ann"), Err(SavedError::Unknown { .. })));
        store.remove("ann").unwrap();
        assert_eq!(store.list().unwrap(), []);
    }

    #[test]
    fn damaged_files_are_named() {
        let home = tempfile::tempdir().unwrap();
        let store = SpeakerStore::at(home.path());
        store.save(&SavedSpeaker::new("ann", "who", &[1.0])).unwrap();
        let path = home.path().join("speakers/bob.json");
        for text in ["", "{}", r#"{"format":"izwi-speaker-1","name":"ann","model":"who","embedding":[1.0]}"#]
        {
            fs::write(&path, text).unwrap();
            let error = store.list().unwrap_err().to_string();
            assert!(error.contains("speaker 'bob' cannot be used"), "{error}");
        }
        fs::write(&path, r#"{"format":"izwi-speaker-1","name":"bob","model":"who","embedding":[]}"#).unwrap();
        assert!(store.list().is_err());
        store.remove("bob").unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
    }
}
