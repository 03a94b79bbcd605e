//! What users save by name, each in a JSON file of its own that they alone can read: `<root>/<folder>/<name>.json`.
//!
//! Owns names, files and limits. Knows nothing of what is saved.

use std::fs;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use izwi_types::{excerpt, suggest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files;
use crate::io_error::IoError;
use crate::rules::{PLAIN_NAME, is_plain_name};

const EXTENSION: &str = "json";

/// Something that is saved by name.
pub trait Saved: Serialize + DeserializeOwned {
    /// What one is called in messages; with an `s`, several, and their folder.
    const KIND: &'static str;
    /// The most bytes of a file, and the most files.
    const LIMITS: (u64, usize);

    /// Its name, which is also that of its file.
    fn name(&self) -> &str;

    /// What is wrong with what a file holds.
    fn fault(&self) -> Option<String>;

    /// Takes the time at which its file was written, where that is of use.
    fn set_saved_at(&mut self, _at: Option<SystemTime>) {}
}

/// A request to what is saved that failed.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// Nothing can have this name.
    #[error("{kind} name '{name}' must be {PLAIN_NAME}")]
    Name {
        /// What it would be.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Nothing has this name.
    #[error("no {kind} '{name}' is saved; {remedy}")]
    Unknown {
        /// What was asked for.
        kind: &'static str,
        /// The name.
        name: String,
        /// Similar names, or all names.
        remedy: String,
    },
    /// The name is taken.
    #[error("a {kind} '{name}' is saved already; take another name, or remove it")]
    Exists {
        /// What it is.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// There are too many.
    #[error("{count} {kind}s are saved, and no more are allowed; remove some")]
    Full {
        /// What they are.
        kind: &'static str,
        /// How many.
        count: usize,
    },
    /// The file holds something else.
    #[error("{kind} '{name}' cannot be used: {reason}; remove it and add it again")]
    Damaged {
        /// What it should be.
        kind: &'static str,
        /// The name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// A state of a file: when it was written, and its bytes.
pub type Stamp = (Option<SystemTime>, u64);

/// All that is saved of one kind. Every method blocks on the disk.
#[derive(Debug)]
pub struct SavedFiles<T> {
    folder: PathBuf,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for SavedFiles<T> {
    fn clone(&self) -> Self {
        Self { folder: self.folder.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for SavedFiles<T> {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl<T> Eq for SavedFiles<T> {}

impl<T: Saved> SavedFiles<T> {
    /// What is saved in the home folder `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { folder: root.join(format!("{}s", T::KIND)), kind: PhantomData }
    }

    fn file(&self, name: &str) -> Result<PathBuf, SavedError> {
        match is_plain_name(name) {
            true => Ok(self.folder.join(format!("{name}.{EXTENSION}"))),
            false => Err(SavedError::Name { kind: T::KIND, name: excerpt(name) }),
        }
    }

    /// The names, in order, and the states of their files.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn stamps(&self) -> Result<Vec<(String, Stamp)>, SavedError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(IoError::at("list", &self.folder))?,
        };
        let mut stamps = Vec::new();
        for entry in entries {
            let entry = entry.map_err(IoError::at("list", &self.folder))?;
            let file = entry.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(EXTENSION)?.strip_suffix('.'));
            let Some(name) = name.filter(|name| is_plain_name(name)) else { continue };
            // One that has gone since is read as missing.
            let state = entry.metadata().map_or((None, 0), |found| (found.modified().ok(), found.len()));
            stamps.push((name.to_owned(), state));
        }
        stamps.sort();
        Ok(stamps)
    }

    fn names(&self) -> Result<Vec<String>, SavedError> {
        Ok(self.stamps()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Everything, by name.
    ///
    /// # Errors
    /// A file is damaged, or a file operation failed.
    pub fn list(&self) -> Result<Vec<T>, SavedError> {
        self.names()?.iter().map(|name| self.read(name)).collect()
    }

    /// What has this name.
    ///
    /// # Errors
    /// Nothing has it, its file is damaged, or a file operation failed.
    pub fn read(&self, name: &str) -> Result<T, SavedError> {
        let Ok(path) = self.file(name) else { return Err(self.unknown(name)) };
        let damaged = |reason| SavedError::Damaged { kind: T::KIND, name: name.to_owned(), reason };
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.unknown(name)),
            other => other.map_err(IoError::at("read", &path))?,
        };
        let size = found.len();
        let (most, _) = T::LIMITS;
        if size > most {
            return Err(damaged(format!("its file has {size} bytes, at most {most} are read")));
        }
        let text = fs::read(&path).map_err(IoError::at("read", &path))?;
        let mut saved: T = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        saved.set_saved_at(found.modified().ok());
        let other = || (saved.name() != name).then(|| "its file has another name in it".to_owned());
        match saved.fault().or_else(other) {
            Some(reason) => Err(damaged(reason)),
            None => Ok(saved),
        }
    }

    fn unknown(&self, name: &str) -> SavedError {
        let names = self.names().unwrap_or_default();
        let remedy = suggest(name, &format!("{}s", T::KIND), names.iter().map(String::as_str));
        SavedError::Unknown { kind: T::KIND, name: excerpt(name), remedy }
    }

    /// Checks that something can be saved by this name.
    ///
    /// # Errors
    /// The name is invalid or taken, or there is too much.
    pub fn check_free(&self, name: &str) -> Result<(), SavedError> {
        if self.file(name)?.exists() {
            return Err(SavedError::Exists { kind: T::KIND, name: name.to_owned() });
        }
        let (_, count) = T::LIMITS;
        if self.names()?.len() >= count { Err(SavedError::Full { kind: T::KIND, count }) } else { Ok(()) }
    }

    /// Saves under a new name, in a file that its owner alone can read.
    ///
    /// # Errors
    /// As of [`Self::check_free`], or a file operation failed.
    pub fn save(&self, saved: &T) -> Result<(), SavedError> {
        self.check_free(saved.name())?;
        self.write(saved)
    }

    /// Saves in place of what has the name already, if anything has.
    ///
    /// # Errors
    /// The name is invalid, there is too much, or a file operation failed.
    pub fn replace(&self, saved: &T) -> Result<(), SavedError> {
        match self.check_free(saved.name()) {
            Ok(()) | Err(SavedError::Exists { .. }) => self.write(saved),
            Err(error) => Err(error),
        }
    }

    fn write(&self, saved: &T) -> Result<(), SavedError> {
        let path = self.file(saved.name())?;
        files::create_private_folder(&self.folder)?;
        // Names do not begin with a dot.
        let part = self.folder.join(format!(".{}.part", saved.name()));
        let write = || {
            files::remove(&part).map_err(io::Error::other)?;
            let mut file = files::private_file().create_new(true).open(&part)?;
            file.write_all(&serde_json::to_vec(saved)?)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        Ok(write().map_err(IoError::at("write", &path))?)
    }

    /// Removes what has this name, valid or not.
    ///
    /// # Errors
    /// Nothing has it, or a file operation failed.
    pub fn remove(&self, name: &str) -> Result<(), SavedError> {
        let Ok(path) = self.file(name) else { return Err(self.unknown(name)) };
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.unknown(name)),
            other => Ok(other.map_err(IoError::at("remove", &path))?),
        }
    }
}
