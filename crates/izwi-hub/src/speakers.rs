//! Saved speakers, by whom recordings are told who speaks: `<root>/speakers/<name>.json`, a speaker embedding, and no audio.
//!
//! Owns names and files, which their owner alone can read. Knows no model: embeddings are compared with those of the same model.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use izwi_types::suggest;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::io_error::IoError;
use crate::rules::{PLAIN_NAME, is_plain_name};

const FORMAT: &str = "izwi-speaker-1";
const EXTENSION: &str = "json";
/// The most bytes of a file, and the most speakers.
const MAX_BYTES: u64 = 1 << 20;
const MAX_SPEAKERS: usize = 1_000;

/// The saved speakers of one folder. Every method blocks on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeakerStore {
    folder: PathBuf,
}

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

/// A request to the saved speakers that failed.
#[derive(Debug, thiserror::Error)]
pub enum SpeakerError {
    /// No speaker can have this name.
    #[error("speaker name '{0}' must be {PLAIN_NAME}")]
    Name(String),
    /// No speaker has this name.
    #[error("no speaker '{name}' is saved; {remedy}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Similar names, or all names.
        remedy: String,
    },
    /// A speaker has this name already.
    #[error("a speaker '{0}' is saved already; take another name, or remove it")]
    Exists(String),
    /// There are too many.
    #[error("{MAX_SPEAKERS} speakers are saved, and no more are allowed; remove some")]
    Full,
    /// The file is no speaker.
    #[error("speaker '{name}' cannot be used: {reason}; remove it and add it again")]
    Damaged {
        /// The speaker.
        name: String,
        /// What is wrong with its file.
        reason: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
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

impl SpeakerStore {
    /// The speakers in the home folder `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { folder: root.join("speakers") }
    }

    fn file(&self, name: &str) -> Result<PathBuf, SpeakerError> {
        match is_plain_name(name) {
            true => Ok(self.folder.join(format!("{name}.{EXTENSION}"))),
            false => Err(SpeakerError::Name(izwi_types::excerpt(name))),
        }
    }

    /// The names, in order.
    fn names(&self) -> Result<Vec<String>, SpeakerError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(IoError::at("list", &self.folder))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(IoError::at("list", &self.folder))?.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(EXTENSION)?.strip_suffix('.'));
            names.extend(name.filter(|name| is_plain_name(name)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// All speakers, by their names.
    ///
    /// # Errors
    /// One is damaged, or a file operation failed.
    pub fn list(&self) -> Result<Vec<SavedSpeaker>, SpeakerError> {
        self.names()?.iter().map(|name| self.read(name)).collect()
    }

    fn read(&self, name: &str) -> Result<SavedSpeaker, SpeakerError> {
        let path = self.file(name)?;
        let damaged = |reason: String| SpeakerError::Damaged { name: name.to_owned(), reason };
        let size = fs::metadata(&path).map_err(IoError::at("read", &path))?.len();
        if size > MAX_BYTES {
            return Err(damaged(format!("its file has {size} bytes, at most {MAX_BYTES} are read")));
        }
        let text = fs::read(&path).map_err(IoError::at("read", &path))?;
        let speaker: SavedSpeaker =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if speaker.format != FORMAT || speaker.name != name {
            return Err(damaged(format!("its file is no '{FORMAT}' of this name")));
        }
        match speaker.embedding.is_empty() || speaker.embedding.iter().any(|value| !value.is_finite()) {
            true => Err(damaged("its embedding is empty or not finite".to_owned())),
            false => Ok(speaker),
        }
    }

    /// Checks that a name can be saved.
    ///
    /// # Errors
    /// It is invalid or taken, or there are too many speakers.
    pub fn check_free(&self, name: &str) -> Result<(), SpeakerError> {
        if self.file(name)?.exists() {
            return Err(SpeakerError::Exists(name.to_owned()));
        }
        if self.names()?.len() >= MAX_SPEAKERS { Err(SpeakerError::Full) } else { Ok(()) }
    }

    /// Saves a speaker, in a file that its owner alone can read.
    ///
    /// # Errors
    /// As of [`Self::check_free`], or a file operation failed.
    pub fn save(&self, speaker: &SavedSpeaker) -> Result<(), SpeakerError> {
        self.check_free(&speaker.name)?;
        let path = self.file(&speaker.name)?;
        files::create_private_folder(&self.folder)?;
        // Names do not begin with a dot.
        let part = self.folder.join(format!(".{}.part", speaker.name));
        let write = || {
            files::remove(&part).map_err(io::Error::other)?;
            let mut file = files::private_file().create_new(true).open(&part)?;
            file.write_all(&serde_json::to_vec(speaker)?)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        Ok(write().map_err(IoError::at("write", &path))?)
    }

    /// Removes a speaker, valid or not.
    ///
    /// # Errors
    /// There is none of this name, or a file operation failed.
    pub fn remove(&self, name: &str) -> Result<(), SpeakerError> {
        let path = self.file(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let names = self.names().unwrap_or_default();
                let remedy = suggest(name, "speakers", names.iter().map(String::as_str));
                Err(SpeakerError::Unknown { name: name.to_owned(), remedy })
            }
            other => Ok(other.map_err(IoError::at("remove", &path))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(matches!(store.save(&ann), Err(SpeakerError::Exists(_))));
        let error = store.remove("anne").unwrap_err().to_string();
        assert!(error.contains("no speaker 'anne' is saved; did you mean 'ann'?"), "{error}");
        assert!(matches!(store.remove("../ann"), Err(SpeakerError::Name(_))));
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
