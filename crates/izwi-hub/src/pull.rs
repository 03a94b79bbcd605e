//! Installs one model: tries its sources in order, converts, records, and renames the finished folder into place.
//!
//! Everything happens in the model's staging folder; the installed folder appears whole or not at all. Knows nothing
//! of how a source is reached.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::access::Access;
use crate::conversion::ConversionError;
use crate::ctranslate2;
use crate::digest::{self, Fingerprint};
use crate::error::{HubError, IoError, SourceError, SourceFailure};
use crate::fetch::{Fetched, fetch};
use crate::manifest::{Conversion, Manifest, Source};
use crate::onnx;
use crate::progress::ProgressSink;
use crate::record::{InstalledFile, Record};

/// One installation under way.
pub(crate) struct Pull<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) access: &'a Access,
    /// Working space on the same disk as `installed`; kept after a failure so that the next pull goes on.
    pub(crate) staging: PathBuf,
    /// Where the model will be.
    pub(crate) installed: PathBuf,
}

impl Pull<'_> {
    pub(crate) fn run(&self, progress: &mut dyn ProgressSink) -> Result<(), HubError> {
        let mut failures = Vec::new();
        for source in &self.manifest.sources {
            let id = source.id();
            progress.note(&format!("trying {id}"));
            match self.build(source, progress) {
                Ok(model) => return Ok(self.install(&model)?),
                // Another source would meet the same disk.
                Err(SourceError::Io(error)) => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(model = self.manifest.name, source = id, %error, "source failed");
                    progress.note(&format!("{id}: {error}"));
                    failures.push(SourceFailure { id, error });
                }
            }
        }
        Err(HubError::AllSourcesFailed { name: self.manifest.name.clone(), failures })
    }

    /// Makes the model's folder inside staging, complete with its record.
    fn build(&self, source: &Source, progress: &mut dyn ProgressSink) -> Result<PathBuf, SourceError> {
        let known = Record::known(&self.installed, source);
        let mut fetched = fetch(source, &self.staging, self.access, &known, progress)?;
        // What is only moved comes last: a conversion that fails or is killed then leaves every download in place.
        fetched.sort_by_key(|fetched| fetched.file.convert.is_none());
        let model = self.staging.join("model");
        remove_folder(&model)?;
        fs::create_dir_all(&model).map_err(IoError::at("create", &model))?;
        let files = fetched
            .into_iter()
            .map(|fetched| place(fetched, &model, progress))
            .collect::<Result<Vec<_>, _>>()?;
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

/// Brings one fetched file into the model's folder, converted where its manifest says so.
fn place(
    fetched: Fetched,
    model: &Path,
    progress: &mut dyn ProgressSink,
) -> Result<InstalledFile, SourceError> {
    let Fetched { file, path } = fetched;
    let target = model.join(&file.target);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
    }
    let contents = match file.convert {
        None => {
            fs::rename(&path, &target).map_err(IoError::at("rename", &path))?;
            Fingerprint { sha256: file.sha256.clone(), size: file.size }
        }
        Some(conversion) => {
            progress.note(&format!("converting {}", file.target));
            let convert = match conversion {
                Conversion::Onnx => onnx::convert,
                Conversion::Ctranslate2 => ctranslate2::convert,
            };
            convert(&path, &target).map_err(|error| match error {
                ConversionError::Io(error) => SourceError::Io(error),
                source => SourceError::Convert { file: file.target.clone(), source },
            })?;
            digest::of_file(&target)?
        }
    };
    let flush = || OpenOptions::new().write(true).open(&target)?.sync_all();
    flush().map_err(IoError::at("write", &target))?;
    Ok(InstalledFile {
        path: file.target.clone(),
        sha256: contents.sha256,
        size: contents.size,
        fetched_sha256: file.sha256.clone(),
        convert: file.convert,
    })
}

/// Removes a folder that may not be there.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), IoError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(IoError::at("remove", folder)(error))
        }
        _ => Ok(()),
    }
}
