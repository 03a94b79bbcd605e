//! What was installed, written beside the files: which source, which contents. Decides whether a folder is whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::digest;
use super::error::{HubError, IoError};
use super::manifest::{Conversion, Manifest, Source, SourceFile, is_safe_path};

const FILE: &str = ".izwi.json";
/// Raised when converters write something else than before: what an older program installed is then pulled anew.
const FORMAT: u32 = 1;

/// One installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    model: String,
    licence: String,
    licence_url: Option<String>,
    /// [`Source::id`] of the source that gave the files.
    pub(super) source: String,
    pub(super) files: Vec<InstalledFile>,
}

/// One file of an installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstalledFile {
    /// Path inside the model's folder.
    pub(super) path: String,
    pub(super) sha256: String,
    pub(super) size: u64,
    /// SHA-256 before conversion, from the manifest.
    pub(super) fetched_sha256: String,
    pub(super) convert: Option<Conversion>,
}

impl Record {
    pub(super) fn new(manifest: &Manifest, source: &Source, files: Vec<InstalledFile>) -> Self {
        Self {
            format: FORMAT,
            model: manifest.name.clone(),
            licence: manifest.licence.clone(),
            licence_url: manifest.licence_url.clone(),
            source: source.id(),
            files,
        }
    }

    /// Writes it into the model's folder and makes sure that it is on disk.
    pub(super) fn write(&self, folder: &Path) -> Result<(), IoError> {
        let path = folder.join(FILE);
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|error| IoError::at("write", &path)(error.into()))?;
        text.push(b'\n');
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(IoError::at("write", &path))
    }

    /// Reads the record of the model in `folder` and checks, without reading the files, that they are there and are
    /// what `manifest` asks for.
    pub(super) fn of_installed(manifest: &Manifest, folder: &Path) -> Result<Self, HubError> {
        let name = &manifest.name;
        let damaged = |reason: String| HubError::Damaged { name: name.clone(), reason };
        if !folder.is_dir() {
            return Err(HubError::NotInstalled { name: name.clone() });
        }
        let text = fs::read(folder.join(FILE)).map_err(|error| damaged(format!("{FILE}: {error}")))?;
        let record: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("{FILE} is unreadable: {error}")))?;
        if record.format != FORMAT || !record.is_from(manifest) {
            return Err(damaged("its manifest has changed since".into()));
        }
        for file in &record.files {
            let size = fs::metadata(folder.join(&file.path)).ok().map(|metadata| metadata.len());
            match size {
                None => return Err(damaged(format!("{} is missing", file.path))),
                Some(size) if size != file.size => {
                    return Err(damaged(format!("{} has {size} bytes instead of {}", file.path, file.size)));
                }
                Some(_) => {}
            }
        }
        Ok(record)
    }

    /// Reads every file again and compares it with what was written at installation.
    pub(super) fn verify(&self, folder: &Path) -> Result<(), HubError> {
        for file in &self.files {
            let found = digest::of_file(&folder.join(&file.path))?;
            if found.sha256 != file.sha256 {
                let reason = format!("{} has sha256 {} instead of {}", file.path, found.sha256, file.sha256);
                return Err(HubError::Damaged { name: self.model.clone(), reason });
            }
        }
        Ok(())
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    fn is_from(&self, manifest: &Manifest) -> bool {
        let has = |wanted: &SourceFile| {
            wanted.optional
                || self.files.iter().any(|file| {
                    (&file.path, &file.fetched_sha256, file.convert)
                        == (&wanted.target, &wanted.sha256, wanted.convert)
                })
        };
        self.model == manifest.name
            && self.files.iter().all(|file| is_safe_path(&file.path))
            && manifest
                .sources
                .iter()
                .any(|source| source.id() == self.source && source.files().iter().all(has))
    }
}
