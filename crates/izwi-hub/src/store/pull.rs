//! Installs one model: tries its sources in order, converts, records, and renames the finished folder into place.
//!
//! All work is in the model's staging folder; the installed folder appears complete or not at all. Knows no kind of
//! source.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use super::first_use::{FirstUse, Hashes};
use super::record::{InstalledFile, Record};
use crate::access::Access;
use crate::convert::ConversionError;
use crate::digest::{self, Fingerprint};
use crate::error::{HubError, SourceFailure, with_causes};
use crate::files::{folder_bytes, remove_folder};
use crate::io_error::IoError;
use crate::manifest::Manifest;
use crate::progress::ProgressSink;
use crate::room;
use crate::source_error::SourceError;
use crate::sources::{Fetched, Source};

/// One running installation.
pub(super) struct Pull<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) access: &'a Access,
    /// Working folder on the same disk as `installed`; kept after a failure, so that the next pull resumes.
    pub(super) staging: PathBuf,
    /// The model's folder.
    pub(super) installed: PathBuf,
    /// Folder of the hashes of first pulls.
    pub(super) first_use: PathBuf,
    /// Whether files may differ from those of the first pull.
    pub(super) accepts_changes: bool,
}

impl Pull<'_> {
    /// # Errors
    /// No source worked, or a file operation failed.
    pub(super) fn run(&self, progress: &mut dyn ProgressSink) -> Result<(), HubError> {
        let mut failures = Vec::new();
        for source in &self.manifest.sources {
            let id = source.id();
            progress.note(&format!("trying {id}"));
            match self.build(source, progress) {
                Ok(model) => return Ok(self.install(&model)?),
                // Another source would fail on the same disk.
                Err(SourceError::Io(error)) => return Err(error.into()),
                Err(error) => {
                    let reason = with_causes(&error);
                    tracing::info!(model = self.manifest.name, source = id, reason, "source failed");
                    progress.note(&format!("{id} failed: {reason}"));
                    failures.push(SourceFailure { id, error });
                }
            }
        }
        Err(HubError::AllSourcesFailed { name: self.manifest.name.clone(), failures })
    }

    /// Builds the model's folder, with its record, inside the staging folder.
    fn build(&self, source: &Source, progress: &mut dyn ProgressSink) -> Result<PathBuf, SourceError> {
        let mut first_use = FirstUse::open(&self.first_use, &self.manifest.name)?;
        let known = match self.accepts_changes {
            true => Hashes::new(),
            false => {
                // Models that were installed before these hashes were kept have a record alone.
                let mut known = Record::known(&self.installed, source);
                known.extend(first_use.of(&source.id()));
                known
            }
        };
        // What an earlier pull has left is no more to be written.
        let left = folder_bytes(&self.staging);
        room::check(&self.staging, source.written_bytes().saturating_sub(left))?;
        let mut fetched = source.fetch(&self.staging, self.access, &known, progress)?;
        let trusted = fetched.iter().map(|fetched| &fetched.file).filter(|file| file.trust.is_some());
        let hashes = trusted.map(|file| (file.target.clone(), file.sha256.clone())).collect();
        first_use.record(&source.id(), hashes)?;
        // Files without conversion are moved last, so that a failed or killed conversion leaves every download.
        fetched.sort_by_key(|fetched| fetched.file.convert.is_none());
        let model = self.staging.join("model");
        remove_folder(&model)?;
        fs::create_dir_all(&model).map_err(IoError::at("create", &model))?;
        let mut files = Vec::new();
        for fetched in fetched {
            place(fetched, &model, &mut files, progress)?;
        }
        Record::new(self.manifest, source, files).write(&model)?;
        Ok(model)
    }

    fn install(&self, model: &Path) -> Result<(), IoError> {
        let replaced = self.staging.join("replaced");
        remove_folder(&replaced)?;
        if self.installed.exists() {
            fs::rename(&self.installed, &replaced).map_err(IoError::at("replace", &self.installed))?;
        }
        fs::rename(model, &self.installed).map_err(IoError::at("create", &self.installed))?;
        remove_folder(&self.staging)
    }
}

/// Moves one fetched file into the model's folder, or converts it there. Adds what it is then to `files`.
fn place(
    fetched: Fetched,
    model: &Path,
    files: &mut Vec<InstalledFile>,
    progress: &mut dyn ProgressSink,
) -> Result<(), SourceError> {
    let Fetched { file, path } = fetched;
    let target = model.join(&file.target);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
    }
    let mut written = vec![target.clone()];
    let mut contents = None;
    match file.convert {
        None => {
            fs::rename(&path, &target).map_err(IoError::at("rename", &path))?;
            contents = Some(Fingerprint { sha256: file.sha256.clone(), size: file.size });
        }
        Some(conversion) => {
            progress.note(&format!("converting {}", file.target));
            let beside = conversion.run(&path, &target).map_err(|error| match error {
                ConversionError::Io(error) => SourceError::Io(error),
                source => SourceError::Convert { file: file.target.clone(), source },
            })?;
            written.extend(beside);
        }
    }
    for path in written {
        let flush = || OpenOptions::new().write(true).open(&path)?.sync_all();
        flush().map_err(IoError::at("write", &path))?;
        let found = match contents.take() {
            Some(known) => known,
            None => digest::of_file(&path)?,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = match file.target.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{name}"),
            None => name.into_owned(),
        };
        files.push(InstalledFile {
            path: name,
            sha256: found.sha256,
            size: found.size,
            fetched_sha256: file.sha256.clone(),
            convert: file.convert,
        });
    }
    Ok(())
}
