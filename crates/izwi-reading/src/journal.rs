//! The journal of a reading: a folder with one file for each unit that is spoken.
//!
//! A file has the name of all that its sound depends on.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};

use izwi_audio::pcm;
use izwi_hub::{IoError, WorkError, WorkFolder};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::sound::{UnitSound, Word};

/// The longest first line of a unit's file.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Of a unit's file.
const EXTENSION: &str = "pcm";
/// Bytes of a stored sample.
const SAMPLE_BYTES: u64 = 2;
/// Samples that are read at a time.
const BLOCK_SAMPLES: usize = 1 << 13;

/// The first line of a unit's file, before its 16-bit samples.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) sample_rate_hz: u32,
    pub(crate) samples: u64,
    pub(crate) words: Vec<Word>,
}

/// The folder of the units.
#[derive(Debug)]
pub struct Journal {
    folder: WorkFolder,
}

impl Journal {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// As [`WorkFolder::open`].
    pub fn open(folder: PathBuf) -> Result<Self, WorkError> {
        Ok(Self { folder: WorkFolder::open(folder)? })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.file(&format!("{key}.{EXTENSION}"))
    }

    /// A file in the folder that the next run removes.
    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.folder.part(name)
    }

    /// Stores the sound of a unit.
    ///
    /// # Errors
    /// The disk is full, or the system refuses.
    pub fn store(&self, key: &str, sound: &UnitSound) -> Result<(), IoError> {
        let samples = sound.samples.len() as u64;
        let header = Header { sample_rate_hz: sound.sample_rate_hz, samples, words: sound.words.clone() };
        let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
        bytes.push(b'\n');
        pcm::write_i16_le(&sound.samples, &mut bytes);
        self.folder.store(&format!("{key}.{EXTENSION}"), &bytes)
    }

    /// The header of a unit that is stored whole.
    pub(crate) fn header(&self, key: &str) -> Option<Header> {
        self.open_unit(key).ok().map(|(header, _)| header)
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.folder.has_none(EXTENSION)
    }

    /// Whether a unit is stored whole.
    pub fn has(&self, key: &str) -> bool {
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
    pub(crate) fn read(&self, key: &str, sink: &mut impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let path = self.path(key);
        let (header, mut reader) = self.open_unit(key).map_err(IoError::at("read", &path))?;
        let mut left = header.samples;
        let mut bytes = [0; BLOCK_SAMPLES * SAMPLE_BYTES as usize];
        while left > 0 {
            let count = left.min(BLOCK_SAMPLES as u64) as usize;
            let block = &mut bytes[..count * SAMPLE_BYTES as usize];
            reader.read_exact(block).map_err(IoError::at("read", &path))?;
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
    pub fn remove(self) -> Result<(), IoError> {
        self.folder.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
