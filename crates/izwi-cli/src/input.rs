//! Bounded reading of files and pipes. Knows no engine.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{failure, output};

/// Reads to the end; `None` if there are more than `max_bytes` bytes.
pub(crate) fn read_bounded(input: impl Read, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    input.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
}

/// Reads the file of a reference recording or of a recorded turn.
///
/// # Errors
/// The file cannot be read, or has more than `max_bytes` bytes.
pub(crate) fn read_recording(path: &Path, max_bytes: usize) -> Result<Vec<u8>> {
    let read = File::open(path).and_then(|file| read_bounded(file, max_bytes as u64));
    let bytes = read.with_context(|| format!("cannot read the recording {}", path.display()))?;
    bytes.ok_or_else(|| {
        let message = format!("the recording {} has more than {max_bytes} bytes", path.display());
        failure::usage(message, "use a shorter recording; a few seconds of one clear voice are enough")
    })
}

/// The bytes of a file, at most `max_bytes`.
///
/// # Errors
/// It cannot be read, or has more.
pub(crate) fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let bytes = File::open(path).and_then(|file| read_bounded(file, max_bytes));
    bytes.with_context(|| format!("cannot read {name}"))?.ok_or_else(|| too_large(&name, max_bytes))
}

/// The error of an input that has more bytes than it may.
pub(crate) fn too_large(name: &str, max_bytes: u64) -> anyhow::Error {
    failure::usage(format!("{name} has more than {}", output::format_bytes(max_bytes)), "split it into parts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_above_the_limit_is_refused() {
        assert_eq!(read_bounded(&b"four"[..], 4).unwrap().as_deref(), Some(&b"four"[..]));
        assert_eq!(read_bounded(&b"fives"[..], 4).unwrap(), None);
        assert_eq!(read_bounded(io::repeat(0), 1_000).unwrap(), None);
    }

    #[test]
    fn a_recording_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let clip = folder.path().join("clip.wav");
        std::fs::write(&clip, [0; 11]).unwrap();
        assert_eq!(read_recording(&clip, 11).unwrap().len(), 11);
        assert!(read_recording(&clip, 10).unwrap_err().to_string().contains("more than 10 bytes"));
        assert!(
            read_recording(folder.path(), 10).unwrap_err().to_string().contains("cannot read the recording")
        );
    }
}
