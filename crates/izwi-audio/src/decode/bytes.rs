//! The bytes of a recording, in memory or in a file, of which any part can be read.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

/// Bytes of which any part can be read.
pub(super) trait Bytes: Send + Sync + 'static {
    fn len(&self) -> usize;

    /// Reads some of the bytes from `at` on; none at the end.
    fn read_at(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize>;

    /// The bytes from `at` on, at most `count`; fewer where the end is nearer.
    fn part(&mut self, at: usize, count: usize) -> io::Result<Vec<u8>> {
        let mut part = vec![0; count.min(self.len().saturating_sub(at))];
        let mut filled = 0;
        while filled < part.len() {
            match self.read_at(at + filled, &mut part[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        part.truncate(filled);
        Ok(part)
    }
}

/// Bytes in memory.
pub(super) struct Memory<B>(pub(super) B);

impl<B: AsRef<[u8]> + Send + Sync + 'static> Bytes for Memory<B> {
    fn len(&self) -> usize {
        self.0.as_ref().len()
    }

    fn read_at(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.as_ref().get(at..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Bytes of a file that nobody changes.
pub(super) struct OpenFile {
    file: File,
    length: usize,
}

impl OpenFile {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(Self { file, length })
    }
}

impl Bytes for OpenFile {
    fn len(&self) -> usize {
        self.length
    }

    fn read_at(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        self.file.seek(SeekFrom::Start(at as u64))?;
        self.file.read(into)
    }
}
