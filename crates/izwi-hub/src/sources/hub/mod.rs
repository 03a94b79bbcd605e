//! A repository of the Hugging Face hub, or of a mirror of it. Knows no package.

mod download;
mod first_use;
mod pinned;
mod statement;

use std::collections::BTreeMap;

use serde::Deserialize;

use self::download::Hub;
use self::first_use::FirstUse;
use super::file::SourceFile;
use super::staging::{Fetched, Staging};
use crate::access::Access;
use crate::progress::ProgressSink;
use crate::rules::{ensure, is_identifier};
use crate::source_error::SourceError;

/// A repository at one revision, as a manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    /// `owner/name`.
    repo: String,
    /// Branch, tag or commit.
    revision: String,
    /// The files to fetch.
    pub(super) files: Vec<SourceFile>,
}

impl Repository {
    pub(super) fn id(&self) -> String {
        format!("hub {}@{}", self.repo, self.revision)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let Self { repo, revision, .. } = self;
        let plain = |(owner, name)| is_identifier(owner, "") && is_identifier(name, "");
        ensure(repo.split_once('/').is_some_and(plain), || format!("repo '{repo}' must be owner/name"))?;
        if let Some(file) = self.files.iter().find(|file| file.offset.is_some()) {
            return Err(format!("offset of '{}' is for package sources alone", file.target));
        }
        ensure(is_identifier(revision, ""), || {
            format!("revision '{revision}' must be a branch, a tag or a commit")
        })
    }

    /// Fetches the files whose hash the manifest has, in the manifest's order, then those that the hub states.
    pub(super) fn fetch(
        &self,
        access: &Access,
        staging: &Staging,
        known: &BTreeMap<String, String>,
        progress: &mut dyn ProgressSink,
    ) -> Result<Vec<Fetched>, SourceError> {
        let hub = Hub::new(access, &self.repo, &self.revision);
        let (trusted, pinned): (Vec<_>, Vec<_>) = self.files.iter().partition(|file| file.trust.is_some());
        let (mut fetched, missing) = staging.split(pinned)?;
        for file in missing {
            fetched.extend(pinned::fetch(&hub, file, staging, progress)?);
        }
        fetched.extend(FirstUse { hub: &hub, staging, known }.fetch(&trusted, progress)?);
        Ok(fetched)
    }
}
