//! The working folder of a pull. Owns the layout below; knows no kind of source.
//!
//! ```text
//! <staging>/verified/<sha256>          a complete, verified file, from any source
//! <staging>/partial/<source>/          what one source has fetched so far; no other source reads it
//! <staging>/partial/<source>/<sha256>.<n>   a complete piece of a file, not verified yet
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::file::SourceFile;
use crate::digest;
use crate::files::remove;
use crate::io_error::IoError;
use crate::source_error::SourceError;

/// Hex digits that identify a source in a folder's name.
const SOURCE_DIGITS: usize = 16;

/// A file that arrived and was verified.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Its description, with hash and length even where the manifest has none.
    pub(crate) file: SourceFile,
    /// Its place; the caller may move it.
    pub(crate) path: PathBuf,
}

/// The folders that one source fetches into.
#[derive(Debug)]
pub(super) struct Staging {
    verified: PathBuf,
    partial: PathBuf,
}

impl Staging {
    /// The folders below `root` for the source named `source`, which are created.
    pub(super) fn open(root: &Path, source: &str) -> Result<Self, IoError> {
        let hash = digest::of_bytes(source.as_bytes()).sha256;
        let name = hash.get(..SOURCE_DIGITS).unwrap_or(&hash);
        let staging = Self { verified: root.join("verified"), partial: root.join("partial").join(name) };
        for folder in [&staging.verified, &staging.partial] {
            fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
        }
        Ok(staging)
    }

    /// The source's own folder.
    pub(super) fn partial(&self) -> &Path {
        &self.partial
    }

    /// The place of a piece of a file.
    pub(super) fn piece(&self, file: &SourceFile, index: usize) -> PathBuf {
        self.partial.join(format!("{}.{index}", file.sha256))
    }

    /// Splits `files` into those that are complete already and the others.
    pub(super) fn split<'f>(
        &self,
        files: impl IntoIterator<Item = &'f SourceFile>,
    ) -> Result<(Vec<Fetched>, Vec<&'f SourceFile>), SourceError> {
        let (mut fetched, mut missing) = (Vec::new(), Vec::new());
        for file in files {
            match self.complete(file)? {
                Some(path) => fetched.push(Fetched { file: file.clone(), path }),
                None => missing.push(file),
            }
        }
        Ok((fetched, missing))
    }

    /// The verified file, if an earlier pull completed it or the manifest has its text.
    pub(super) fn complete(&self, file: &SourceFile) -> Result<Option<PathBuf>, SourceError> {
        let path = self.verified.join(&file.sha256);
        if let Some(text) = &file.text {
            fs::write(&path, text).map_err(IoError::at("write", &path))?;
            verify(file, &path)?;
        }
        if !path.exists() {
            return Ok(None);
        }
        Ok(verify(file, &path).is_ok().then_some(path))
    }

    /// Joins the pieces of a file and verifies it; a file that fails is removed. `None` for an optional file without
    /// pieces.
    pub(super) fn join(&self, file: &SourceFile) -> Result<Option<Fetched>, SourceError> {
        let pieces: Vec<PathBuf> = (0..file.paths.len()).map(|index| self.piece(file, index)).collect();
        if file.optional && pieces.iter().any(|piece| !piece.exists()) {
            return Ok(None);
        }
        let joined = match pieces.as_slice() {
            [only] => only.clone(),
            _ => concatenate(&pieces, &self.partial.join(format!("{}.joined", file.sha256)))?,
        };
        let verified = verify(file, &joined);
        if verified.is_err() || pieces.len() > 1 {
            for piece in &pieces {
                remove(piece)?;
            }
        }
        verified?;
        let path = self.verified.join(&file.sha256);
        fs::rename(&joined, &path).map_err(IoError::at("rename", &joined))?;
        Ok(Some(Fetched { file: file.clone(), path }))
    }
}

fn concatenate(pieces: &[PathBuf], target: &Path) -> Result<PathBuf, IoError> {
    let mut joined = File::create(target).map_err(IoError::at("create", target))?;
    for piece in pieces {
        let mut part = File::open(piece).map_err(IoError::at("open", piece))?;
        io::copy(&mut part, &mut joined).map_err(IoError::at("write", target))?;
    }
    Ok(target.to_path_buf())
}

/// Compares a file with its description and removes it if it differs.
fn verify(file: &SourceFile, path: &Path) -> Result<(), SourceError> {
    let found = digest::of_file(path)?;
    if found.sha256 == file.sha256 && found.size == file.size {
        return Ok(());
    }
    remove(path)?;
    if found.size != file.size {
        return Err(SourceError::Size { file: file.target.clone(), expected: file.size, found: found.size });
    }
    Err(SourceError::Checksum {
        file: file.target.clone(),
        expected: file.sha256.clone(),
        found: found.sha256,
    })
}
