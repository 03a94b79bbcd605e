//! The record of an installation, a file next to the model's files: which source, which hashes.
//!
//! Owns the check that an installed folder is complete and fits its manifest. Reaches no source.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::convert::Conversion;
use crate::digest;
use crate::error::HubError;
use crate::io_error::IoError;
use crate::manifest::Manifest;
use crate::rules::is_safe_path;
use crate::sources::{Source, SourceFile};

const FILE: &str = ".izwi.json";
/// Raised when a converter's output changes. A model with an older record is then pulled again.
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
    /// SHA-256 before conversion, from the manifest or stated by the hub.
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

    /// Writes it into the model's folder and syncs it to disk.
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

    /// Reads the record of the model in `folder`. Checks that every file exists with its recorded length, and that the
    /// record fits `manifest`; does not read the files.
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

    /// Reads every file and compares its hash with the recorded one.
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

    /// SHA-256 before conversion of each file of an earlier installation from `source`, by path; empty without one.
    pub(super) fn known(folder: &Path, source: &Source) -> BTreeMap<String, String> {
        let record = fs::read(folder.join(FILE)).ok();
        let record: Option<Self> = record.and_then(|text| serde_json::from_slice(&text).ok());
        let record = record.filter(|record| record.source == source.id());
        let files = record.map(|record| record.files).unwrap_or_default();
        files.into_iter().map(|file| (file.path, file.fetched_sha256)).collect()
    }

    fn is_from(&self, manifest: &Manifest) -> bool {
        let here = |target: &str| self.files.iter().find(|file| file.path == target);
        let fits = |wanted: &SourceFile| {
            here(&wanted.target).is_some_and(|file| {
                let has_hash = wanted.trust.is_some() || file.fetched_sha256 == wanted.sha256;
                has_hash && file.convert == wanted.convert
            })
        };
        // An index replaces the single file that it is named after.
        let is_replaced = |wanted: &SourceFile, source: &Source| {
            let indexes = source.files().iter().filter(|file| file.index && here(&file.target).is_some());
            indexes.into_iter().any(|index| index.indexed() == Some(&wanted.target))
        };
        let has = |wanted: &SourceFile, source: &Source| {
            wanted.optional || fits(wanted) || is_replaced(wanted, source)
        };
        self.model == manifest.name
            && self.files.iter().all(|file| is_safe_path(&file.path))
            && manifest
                .sources
                .iter()
                .filter(|source| source.id() == self.source)
                .any(|source| source.files().iter().all(|wanted| has(wanted, source)))
    }
}
