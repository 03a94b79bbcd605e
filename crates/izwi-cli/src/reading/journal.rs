//! The journal of a reading: a folder with one file for each unit that is spoken.
//!
//! A file has the name of all that its sound depends on, and appears whole or not at all: whatever stops a run, the next one
//! finds each unit that was done, and none that was not. One run at a time holds the folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_audio::pcm;
use serde::{Deserialize, Serialize};

use super::sound::{UnitSound, Word};
use crate::failure;

/// The longest first line of a unit's file.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Bytes of a stored sample.
const SAMPLE_BYTES: u64 = 2;
/// Samples that are read at a time.
const BLOCK_SAMPLES: usize = 1 << 13;

/// The first line of a unit's file, before its 16-bit samples.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) sample_rate_hz: u32,
    pub(super) samples: u64,
    pub(super) words: Vec<Word>,
}

/// The folder, which this process holds.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    lock: File,
}

impl Journal {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// Another run holds it, or the system refuses.
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        let cannot = || format!("cannot write {}", folder.display());
        fs::create_dir_all(&folder).with_context(cannot)?;
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))
            .with_context(cannot)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failure::with_help(
                    format!("another run reads into {}", folder.display()),
                    "wait for it, stop it, or name another output",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(anyhow::Error::new(error).context(cannot())),
        }
        // What a run that was killed left half written.
        for entry in fs::read_dir(&folder).with_context(cannot)? {
            let path = entry.with_context(cannot)?.path();
            if path.extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(&path).with_context(cannot)?;
            }
        }
        Ok(Self { folder, lock })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.pcm"))
    }

    /// A file in the folder that the next run removes.
    pub(super) fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.part"))
    }

    /// Stores the sound of a unit.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub(crate) fn store(&self, key: &str, sound: &UnitSound) -> Result<()> {
        let samples = sound.samples.len() as u64;
        let header = Header { sample_rate_hz: sound.sample_rate_hz, samples, words: sound.words.clone() };
        let mut bytes = serde_json::to_vec(&header).context("cannot write a unit")?;
        bytes.push(b'\n');
        pcm::write_i16_le(&sound.samples, &mut bytes);
        let part = self.part(key);
        let written = File::create(&part).and_then(|mut file| {
            file.write_all(&bytes)?;
            // Its name must not survive a power failure that its bytes do not.
            file.sync_data()
        });
        written.and_then(|()| fs::rename(&part, self.path(key))).map_err(|error| self.full(error))
    }

    /// The error of a file of the folder that cannot be written.
    fn full(&self, error: io::Error) -> anyhow::Error {
        failure::with_help(
            format!("cannot write {}: {error}", self.folder.display()),
            "what is spoken is kept: make room, and give the same command again",
        )
    }

    /// The header of a unit that is stored whole.
    pub(super) fn header(&self, key: &str) -> Option<Header> {
        self.open_unit(key).ok().map(|(header, _)| header)
    }

    /// Whether nothing is stored.
    pub(crate) fn is_empty(&self) -> bool {
        let is_unit = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "pcm"))
        };
        fs::read_dir(&self.folder).is_ok_and(|mut entries| !entries.any(is_unit))
    }

    /// Whether a unit is stored whole.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.header(key).is_some()
    }

    fn open_unit(&self, key: &str) -> io::Result<(Header, BufReader<File>)> {
        let file = File::open(self.path(key))?;
        let bytes = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        reader.by_ref().take(MAX_HEADER_BYTES).read_until(b'\n', &mut line)?;
        let header: Header = serde_json::from_slice(&line)?;
        let expected = header
            .samples
            .checked_mul(SAMPLE_BYTES)
            .and_then(|samples| samples.checked_add(line.len() as u64));
        if expected != Some(bytes) || header.sample_rate_hz == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a unit has another length than it tells",
            ));
        }
        Ok((header, reader))
    }

    /// Passes the samples of a unit on, block by block.
    ///
    /// # Errors
    /// The unit cannot be read, or `sink` fails.
    pub(super) fn read(&self, key: &str, sink: &mut impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let cannot = || format!("cannot read {}", self.path(key).display());
        let (header, mut reader) = self.open_unit(key).with_context(cannot)?;
        let mut left = header.samples;
        let mut bytes = [0; BLOCK_SAMPLES * SAMPLE_BYTES as usize];
        while left > 0 {
            let count = left.min(BLOCK_SAMPLES as u64) as usize;
            let block = &mut bytes[..count * SAMPLE_BYTES as usize];
            reader.read_exact(block).with_context(cannot)?;
            let samples: Vec<f32> = block
                .chunks_exact(2)
                .map(|sample| f32::from(i16::from_le_bytes([sample[0], sample[1]])) / 32_768.0)
                .collect();
            sink(&samples)?;
            left -= count as u64;
        }
        Ok(())
    }

    /// Removes the folder.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn remove(self) -> Result<()> {
        let Self { folder, lock } = self;
        // Windows removes no open file.
        drop(lock);
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> UnitSound {
        let words = vec![Word { text_start: 0, start: 1, end: 2 }];
        UnitSound {
            sample_rate_hz: 24_000,
            samples: (0..20_000).map(|at| at as f32 / 40_000.0).collect(),
            words,
        }
    }

    #[test]
    fn a_unit_is_read_as_it_was_stored_and_a_damaged_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path().join("work")).unwrap();
        journal.store("a", &sound()).unwrap();
        let mut read = Vec::new();
        journal
            .read("a", &mut |block: &[f32]| {
                read.extend_from_slice(block);
                Ok(())
            })
            .unwrap();
        assert!(read.iter().zip(&sound().samples).all(|(read, stored)| (read - stored).abs() < 1e-4));
        assert_eq!(read.len(), 20_000);
        assert!(journal.has("a") && !journal.has("b"));
        let path = journal.path("a");
        let bytes = fs::read(&path).unwrap();
        for damaged in [&bytes[..bytes.len() - 1], &bytes[40..], b"", b"{}\n"] {
            fs::write(&path, damaged).unwrap();
            assert!(!journal.has("a"));
        }
    }

    #[test]
    fn one_run_holds_the_folder_and_the_next_one_tidies_it() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        let journal = Journal::open(work.clone()).unwrap();
        fs::write(journal.part("x"), "half").unwrap();
        let error = failure::render(&Journal::open(work.clone()).unwrap_err());
        assert!(error.contains("another run reads into"), "{error}");
        drop(journal);
        let journal = Journal::open(work.clone()).unwrap();
        assert!(!journal.part("x").exists());
        journal.remove().unwrap();
        assert!(!work.exists());
        fs::write(&work, "a file").unwrap();
        assert!(Journal::open(work).unwrap_err().to_string().contains("cannot write"));
    }
}
