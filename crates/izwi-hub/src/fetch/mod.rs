//! Brings the files of one source into a staging folder, each checked against its manifest. Knows neither where
//! models are installed nor what becomes of the files.
//!
//! Staging holds `files/<sha256>` for a file that is whole and checked (`files/git-<id>` for one that is known by git's
//! id alone), `files/<sha256>.<n>` for a piece that is whole but unchecked, and what [`hub`] and [`package`] keep to go on after an interruption.

mod hub;
mod package;
mod statement;
mod trust;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::access::Access;
use crate::digest;
use crate::error::{IoError, SourceError};
use crate::manifest::{Source, SourceFile};
use crate::progress::ProgressSink;
pub(crate) use trust::Known;
use trust::Trusting;

const NOT_FOUND: u16 = 404;

/// A file that arrived whole.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// With what it holds, whoever said so.
    pub(crate) file: SourceFile,
    /// Where it lies; the caller may move it away.
    pub(crate) path: PathBuf,
}

/// Brings every file of `source` into `staging`; optional ones that the source lacks are left out. `known` is what an
/// earlier installation had.
pub(crate) fn fetch(
    source: &Source,
    staging: &Path,
    access: &Access,
    known: &Known,
    progress: &mut dyn ProgressSink,
) -> Result<Vec<Fetched>, SourceError> {
    let folder = staging.join("files");
    fs::create_dir_all(&folder).map_err(IoError::at("create", &folder))?;
    let mut missing = Vec::new();
    let mut fetched = Vec::new();
    let (trusted, certain): (Vec<_>, Vec<_>) = source.files().iter().partition(|file| file.trust.is_some());
    for file in certain {
        match whole(file, &folder)? {
            Some(path) => fetched.push(Fetched { file: file.clone(), path }),
            None => missing.push(file),
        }
    }
    match source {
        Source::Hub { repo, revision, .. } => {
            let hub = hub::Hub::new(access, repo, revision);
            for file in missing {
                fetched.extend(from_hub(&hub, file, &folder, progress)?);
            }
            let trusting = Trusting { hub: &hub, folder: &folder, known };
            fetched.extend(trusting.fetch(&trusted, progress)?);
        }
        Source::Package { ecosystem, packages, .. } => {
            if missing.iter().any(|file| !file.paths.is_empty()) {
                let archives = staging.join("archives");
                let archives = package::archives(*ecosystem, packages, &archives, access, progress)?;
                unpack::unpack(&archives, &missing, &folder, progress)?;
            }
            for file in missing {
                fetched.extend(from_pieces(file, &folder)?);
            }
        }
    }
    Ok(fetched)
}

/// The file, if an earlier pull already brought it.
fn whole(file: &SourceFile, folder: &Path) -> Result<Option<PathBuf>, SourceError> {
    let path = folder.join(&file.sha256);
    if let Some(text) = &file.text {
        fs::write(&path, text).map_err(IoError::at("write", &path))?;
        check(file, &path)?;
    }
    if !path.exists() {
        return Ok(None);
    }
    Ok(check(file, &path).is_ok().then_some(path))
}

fn from_hub(
    hub: &hub::Hub<'_>,
    file: &SourceFile,
    folder: &Path,
    progress: &mut dyn ProgressSink,
) -> Result<Option<Fetched>, SourceError> {
    let mut resumed = false;
    let mut base = 0;
    for (index, path) in file.paths.iter().enumerate() {
        let is_last = index + 1 == file.paths.len();
        let piece = hub::Piece { path, base, total: file.size, is_last, label: &file.target };
        let target = piece_path(file, folder, index);
        match hub.download(&piece, &target, progress) {
            Ok(went_on) => resumed |= went_on,
            Err(SourceError::Status { status: NOT_FOUND, .. }) if file.optional => {
                progress.note(&format!("{} is not in the source; it is optional", file.target));
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        base += fs::metadata(&target).map_err(IoError::at("read", &target))?.len();
    }
    match from_pieces(file, folder) {
        // The first half may come from another version of the file, or from a crash: once more, from the start.
        Err(SourceError::Checksum { .. }) if resumed => {
            progress.note(&format!("{} did not fit together after going on; fetched anew", file.target));
            from_hub(hub, file, folder, progress)
        }
        other => other,
    }
}

/// Joins the pieces of a file and checks it; whatever is wrong is removed.
fn from_pieces(file: &SourceFile, folder: &Path) -> Result<Option<Fetched>, SourceError> {
    let pieces: Vec<PathBuf> = (0..file.paths.len()).map(|index| piece_path(file, folder, index)).collect();
    if file.optional && pieces.iter().any(|piece| !piece.exists()) {
        return Ok(None);
    }
    let joined = match pieces.as_slice() {
        [only] => only.clone(),
        _ => join(&pieces, &folder.join(format!("{}.joined", file.sha256)))?,
    };
    let checked = check(file, &joined);
    if checked.is_err() || pieces.len() > 1 {
        for piece in &pieces {
            remove(piece)?;
        }
    }
    checked?;
    let path = folder.join(&file.sha256);
    fs::rename(&joined, &path).map_err(IoError::at("rename", &joined))?;
    Ok(Some(Fetched { file: file.clone(), path }))
}

fn piece_path(file: &SourceFile, folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{}.{index}", file.sha256))
}

fn join(pieces: &[PathBuf], target: &Path) -> Result<PathBuf, IoError> {
    let mut joined = File::create(target).map_err(IoError::at("create", target))?;
    for piece in pieces {
        let mut part = File::open(piece).map_err(IoError::at("open", piece))?;
        io::copy(&mut part, &mut joined).map_err(IoError::at("write", target))?;
    }
    Ok(target.to_path_buf())
}

/// Compares a file with its manifest and removes it if it differs.
fn check(file: &SourceFile, path: &Path) -> Result<(), SourceError> {
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

/// Removes a file that may be gone already.
fn remove(path: &Path) -> Result<(), IoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(IoError::at("remove", path)(error)),
        _ => Ok(()),
    }
}
