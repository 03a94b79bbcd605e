//! The folder of a long piece of work: what is done is a file in it, which appears whole or not at all.
//!
//! Whatever stops a run, the next one finds each file that was done. One run at a time holds the folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::failure;

/// A name for what a file depends on: its SHA-256.
pub(crate) fn digest(of: impl AsRef<[u8]>) -> String {
    Sha256::digest(of).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder, which this process holds.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    lock: File,
}

impl WorkFolder {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// Another run holds it, or the system refuses.
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        fs::create_dir_all(&path).with_context(cannot)?;
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join("lock"))
            .with_context(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failure::with_help(
                    format!("another run works in {}", path.display()),
                    "wait for it, stop it, or name another output",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(anyhow::Error::new(error).context(cannot())),
        }
        // What a run that was killed left half written.
        for entry in fs::read_dir(&path).with_context(cannot)? {
            let file = entry.with_context(cannot)?.path();
            if file.extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(&file).with_context(cannot)?;
            }
        }
        Ok(Self { path, lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file in the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file in the folder that the next run removes.
    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.part"))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub(crate) fn store(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let part = self.part(name);
        let written = File::create(&part).and_then(|mut file| {
            file.write_all(bytes)?;
            // Its name must not survive a power failure that its bytes do not.
            file.sync_data()
        });
        written.and_then(|()| fs::rename(&part, self.file(name))).map_err(|error| {
            failure::with_help(
                format!("cannot write {}: {error}", self.path.display()),
                "what is done is kept: make room, and give the same command again",
            )
        })
    }

    /// Whether there is no file with this extension.
    pub(crate) fn has_none(&self, extension: &str) -> bool {
        let is_one = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|own| own == extension))
        };
        fs::read_dir(&self.path).is_ok_and(|mut entries| !entries.any(is_one))
    }

    /// Removes the folder.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn remove(self) -> Result<()> {
        let Self { path, lock } = self;
        // Windows removes no open file.
        drop(lock);
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))
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
        let error = failure::render(&WorkFolder::open(path.clone()).unwrap_err());
        assert!(error.contains("another run works in"), "{error}");
        drop(work);
        let work = WorkFolder::open(path.clone()).unwrap();
        assert!(!work.part("x").exists() && work.has_none("json"));
        work.store("a.json", b"{}").unwrap();
        assert!(!work.has_none("json") && work.has_none("pcm"));
        work.remove().unwrap();
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(WorkFolder::open(path).unwrap_err().to_string().contains("cannot write"));
    }
}
