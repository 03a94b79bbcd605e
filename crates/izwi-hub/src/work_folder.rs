//! The folder of a long piece of work: what is done is a file in it, which appears whole or not at all.
//!
//! Whatever stops a run, the next one finds each file that was done. One run at a time holds the folder.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::files;
use crate::io_error::IoError;

/// Why a folder cannot be worked in.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Another process does.
    #[error("another run works in {}", .0.display())]
    Busy(PathBuf),
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Extension of what is half written.
const PART: &str = "part";

/// The folder, which this process holds.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    lock: File,
}

impl WorkFolder {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// Another run holds it, or the system refuses.
    pub fn open(path: PathBuf) -> Result<Self, WorkError> {
        files::create_private_folder(&path)?;
        let lock = path.join("lock");
        let mut options = files::private_file();
        let lock = options.create(true).truncate(false).open(&lock).map_err(IoError::at("write", &lock))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(WorkError::Busy(path)),
            Err(TryLockError::Error(error)) => return Err(IoError::at("lock", &path)(error).into()),
        }
        // What a run that was killed left half written.
        for entry in fs::read_dir(&path).map_err(IoError::at("read", &path))? {
            let file = entry.map_err(IoError::at("read", &path))?.path();
            if file.extension().is_some_and(|extension| extension == PART) {
                files::remove(&file)?;
            }
        }
        Ok(Self { path, lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file in the folder that the next run removes.
    pub fn part(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{PART}"))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub fn store(&self, name: &str, bytes: &[u8]) -> Result<(), IoError> {
        files::write_private(&self.file(name), bytes)
    }

    /// Whether there is no file with this extension.
    pub fn has_none(&self, extension: &str) -> bool {
        let is_one = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|own| own == extension))
        };
        fs::read_dir(&self.path).is_ok_and(|mut entries| !entries.any(is_one))
    }

    /// Removes the folder.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(self) -> Result<(), IoError> {
        let Self { path, lock } = self;
        // Windows removes no open file.
        drop(lock);
        files::remove_folder(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_holds_the_folder_and_the_next_one_tidies_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work");
        let work = WorkFolder::open(path.clone()).unwrap();
        fs::write(work.part("x"), "half").unwrap();
        let error = WorkFolder::open(path.clone()).unwrap_err().to_string();
        assert!(error.contains("another run works in"), "{error}");
        drop(work);
        let work = WorkFolder::open(path.clone()).unwrap();
        assert!(!work.part("x").exists() && work.has_none("json"));
        work.store("a.json", b"{}").unwrap();
        assert!(!work.has_none("json") && work.has_none("pcm"));
        work.remove().unwrap();
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(WorkFolder::open(path).unwrap_err().to_string().contains("cannot create"));
    }
}
