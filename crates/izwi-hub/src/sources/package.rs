//! Packages that together have the files of a model, as a manifest describes them. Knows no client's options.

use std::fs;

use serde::Deserialize;

use super::archive::{self, Archive};
use super::client::{Client, Wanted};
use super::file::SourceFile;
use super::npm::NPM;
use super::pip::PIP;
use super::staging::{Fetched, Staging};
use crate::access::Access;
use crate::digest;
use crate::io_error::IoError;
use crate::progress::ProgressSink;
use crate::rules::{SHA256, ensure, is_identifier, is_sha256};
use crate::source_error::SourceError;

/// Packages of one ecosystem; one of them may name another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packages {
    ecosystem: Ecosystem,
    packages: Vec<Package>,
    /// The files to take from them.
    pub(super) files: Vec<SourceFile>,
}

/// A package ecosystem, by its name in manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ecosystem {
    Pip,
    Npm,
}

/// One package of one version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    /// Its own ecosystem, if it is not that of the others.
    ecosystem: Option<Ecosystem>,
    name: String,
    /// The exact version.
    version: String,
    /// The platform of its archive, where each has its own.
    platform: Option<String>,
    /// SHA-256 of its archive, in lower-case hex.
    sha256: String,
    /// Bytes of its archive, if they are known.
    size: Option<u64>,
}

impl Ecosystem {
    fn client(self) -> &'static Client {
        match self {
            Self::Pip => &PIP,
            Self::Npm => &NPM,
        }
    }
}

impl Packages {
    fn client(&self, package: &Package) -> &'static Client {
        package.ecosystem.unwrap_or(self.ecosystem).client()
    }

    pub(super) fn id(&self) -> String {
        let ids: Vec<String> = self.packages.iter().map(|package| package.id(self.client(package))).collect();
        ids.join(" + ")
    }

    /// Bytes of the archives, if all are known.
    pub(super) fn archive_bytes(&self) -> Option<u64> {
        let mut sizes = self.packages.iter().map(|package| package.size);
        sizes.try_fold(0_u64, |sum, size| Some(sum.saturating_add(size?)))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(file) = self.files.iter().find(|file| file.trust.is_some()) {
            return Err(format!("trust of '{}' is for hub sources alone", file.target));
        }
        ensure(!self.packages.is_empty(), || "packages must list at least one package".into())?;
        self.packages.iter().try_for_each(|package| package.check(self.client(package)))
    }

    pub(super) fn fetch(
        &self,
        access: &Access,
        staging: &Staging,
        progress: &mut dyn ProgressSink,
    ) -> Result<Vec<Fetched>, SourceError> {
        let (mut fetched, missing) = staging.split(&self.files)?;
        if missing.iter().any(|file| !file.paths.is_empty()) {
            let archives = self.archives(access, staging, progress)?;
            archive::unpack(&archives, &missing, staging, progress)?;
        }
        for file in missing {
            fetched.extend(staging.join(file)?);
        }
        Ok(fetched)
    }

    /// Downloads and verifies the archive of every package; a complete one is kept.
    fn archives(
        &self,
        access: &Access,
        staging: &Staging,
        progress: &mut dyn ProgressSink,
    ) -> Result<Vec<Archive>, SourceError> {
        let folder = staging.partial().join("archives");
        fs::create_dir_all(&folder).map_err(IoError::at("create", &folder))?;
        let archive = |package: &Package| {
            let client = self.client(package);
            let name = package.id(client);
            let path = folder.join(&package.sha256);
            if path.exists() && digest::of_file(&path)?.sha256 == package.sha256 {
                return Ok(Archive { name, path, format: client.format });
            }
            progress.note(&format!("downloading {name}"));
            let download = client.download(access, &package.wanted(), &folder)?;
            let found = digest::of_file(&download)?;
            if found.sha256 != package.sha256 {
                fs::remove_file(&download).map_err(IoError::at("remove", &download))?;
                let (expected, found) = (package.sha256.clone(), found.sha256);
                return Err(SourceError::Checksum { file: name, expected, found });
            }
            fs::rename(&download, &path).map_err(IoError::at("rename", &download))?;
            Ok(Archive { name, path, format: client.format })
        };
        self.packages.iter().map(archive).collect()
    }
}

impl Package {
    fn wanted(&self) -> Wanted<'_> {
        Wanted { package: &self.name, version: &self.version, platform: self.platform.as_deref() }
    }

    fn id(&self, client: &Client) -> String {
        format!("{} {}{}{}", client.name, self.name, client.version_separator, self.version)
    }

    fn check(&self, client: &Client) -> Result<(), String> {
        // Name and version become arguments of a command: neither may look like an option or a path.
        let scoped = self.name.strip_prefix('@').and_then(|rest| rest.split_once('/'));
        let name = match scoped.filter(|_| client.has_scopes) {
            Some((scope, name)) => is_identifier(scope, "") && is_identifier(name, ""),
            None => is_identifier(&self.name, ""),
        };
        ensure(name, || format!("package name '{}' is not one", self.name))?;
        ensure(is_identifier(&self.version, "+!"), || {
            format!("version '{}' of package '{}' must be exact", self.version, self.name)
        })?;
        if let Some(platform) = &self.platform {
            ensure(client.platform.is_some() && is_identifier(platform, ""), || {
                format!("platform '{platform}' of package '{}' is not one of {}", self.name, client.name)
            })?;
        }
        ensure(is_sha256(&self.sha256), || format!("sha256 of package '{}' {SHA256}", self.name))
    }
}
