//! Files without a hash in the manifest: trust on first use. The hub states a hash before the download, the download is
//! verified against it, and a hash that differs from the one of an earlier installation is refused.
//!
//! Owns the index of a model in several files, which names the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::download::{Hub, NOT_FOUND, Piece};
use super::pinned;
use super::statement::Hash;
use crate::digest;
use crate::files::remove;
use crate::io_error::IoError;
use crate::progress::ProgressSink;
use crate::room;
use crate::rules::is_safe_path;
use crate::source_error::SourceError;
use crate::sources::file::{SourceFile, Trust};
use crate::sources::staging::{Fetched, Staging};

/// The most bytes of an index.
const MAX_INDEX_BYTES: u64 = 16 << 20;
/// The most files of a model.
const MAX_SHARDS: usize = 512;

/// Fetches files on trust.
pub(super) struct FirstUse<'a> {
    pub(super) hub: &'a Hub<'a>,
    pub(super) staging: &'a Staging,
    /// SHA-256 of each file of an earlier installation from the same source, by target.
    pub(super) known: &'a BTreeMap<String, String>,
}

impl FirstUse<'_> {
    /// Fetches all of `files`, and the files that indexes among them name.
    pub(super) fn fetch(
        &self,
        files: &[&SourceFile],
        progress: &mut dyn ProgressSink,
    ) -> Result<Vec<Fetched>, SourceError> {
        let mut fetched = Vec::new();
        // The files that an index names replace the single file that it is named after.
        let mut replaced = BTreeSet::new();
        let mut shards: Vec<SourceFile> = Vec::new();
        for file in files.iter().filter(|file| file.index) {
            let Some(index) = self.fetch_one(file, progress)? else { continue };
            replaced.extend(file.indexed().map(str::to_owned));
            shards.extend(named_by(file, &index.path)?);
            fetched.push(index);
        }
        let taken = |target: &str, listed: &[&SourceFile]| {
            listed
                .iter()
                .any(|file| file.target.eq_ignore_ascii_case(target) && !replaced.contains(&file.target))
        };
        if let Some(shard) = shards.iter().find(|shard| taken(&shard.target, files)) {
            return Err(SourceError::Index {
                file: shard.target.clone(),
                reason: "names a file that the manifest lists already".to_owned(),
            });
        }
        let single = files.iter().filter(|file| !file.index && !replaced.contains(&file.target));
        for file in single.copied().chain(&shards) {
            fetched.extend(self.fetch_one(file, progress)?);
        }
        Ok(fetched)
    }

    /// Fetches one file; `None` for an optional one that the repository lacks.
    fn fetch_one(
        &self,
        file: &SourceFile,
        progress: &mut dyn ProgressSink,
    ) -> Result<Option<Fetched>, SourceError> {
        let statement = match self.hub.statement(path_of(file)) {
            Err(SourceError::Status { status: NOT_FOUND, .. }) if file.optional => {
                progress.note(&format!("{} is not in the source; it is optional", file.target));
                return Ok(None);
            }
            answer => answer?,
        };
        room::check(self.staging.partial(), statement.size)?;
        let fetched = match statement.hash {
            Hash::Sha256(sha256) => {
                self.compare(file, &sha256)?;
                let file = SourceFile { sha256, size: statement.size, ..file.clone() };
                match self.staging.complete(&file)? {
                    Some(path) => Some(Fetched { file, path }),
                    None => pinned::fetch(self.hub, &file, self.staging, progress)?,
                }
            }
            Hash::GitBlob(id) => {
                let path = self.fetch_blob(file, &id, statement.size, progress)?;
                let found = digest::of_file(&path)?;
                self.compare(file, &found.sha256)?;
                let file = SourceFile { sha256: found.sha256, size: found.size, ..file.clone() };
                Some(Fetched { file, path })
            }
        };
        if let Some(Fetched { file, .. }) = &fetched {
            progress.note(&format!("{}: sha256 {}, stated by the hub", file.target, file.sha256));
        }
        Ok(fetched)
    }

    /// Refuses a hash that differs from the one of an earlier installation.
    fn compare(&self, file: &SourceFile, found: &str) -> Result<(), SourceError> {
        match self.known.get(&file.target) {
            Some(expected) if expected != found => Err(SourceError::Changed {
                file: file.target.clone(),
                expected: expected.clone(),
                found: found.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Downloads a file that is identified by its git id.
    fn fetch_blob(
        &self,
        file: &SourceFile,
        id: &str,
        size: u64,
        progress: &mut dyn ProgressSink,
    ) -> Result<PathBuf, SourceError> {
        let target = self.staging.partial().join(format!("git-{id}"));
        let path = path_of(file);
        let piece = Piece { path, base: 0, total: size, is_last: true, label: &file.target };
        let mut resumed = self.hub.download(&piece, &target, progress)?;
        loop {
            let found = digest::git_blob(&target)?;
            if found == id {
                return Ok(target);
            }
            remove(&target)?;
            if !resumed {
                let (expected, file) = (format!("(git) {id}"), file.target.clone());
                return Err(SourceError::Checksum { file, expected, found });
            }
            // The beginning may come from another version of the file: download it again once.
            resumed = self.hub.download(&piece, &target, progress)?;
        }
    }
}

/// The path of a trusted file, which has one.
fn path_of(file: &SourceFile) -> &str {
    file.paths.first().map(String::as_str).unwrap_or_default()
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names, which are in its folder.
fn named_by(index: &SourceFile, path: &Path) -> Result<Vec<SourceFile>, SourceError> {
    let refuse = |reason: String| SourceError::Index { file: index.target.clone(), reason };
    let size = fs::metadata(path).map_err(IoError::at("read", path))?.len();
    if size > MAX_INDEX_BYTES {
        return Err(refuse(format!("has {size} bytes, at most {MAX_INDEX_BYTES} are read")));
    }
    let text = fs::read(path).map_err(IoError::at("read", path))?;
    let map: Index =
        serde_json::from_slice(&text).map_err(|error| refuse(format!("is no index: {error}")))?;
    let names: BTreeSet<String> = map.weight_map.into_values().collect();
    if names.is_empty() || names.len() > MAX_SHARDS {
        return Err(refuse(format!("names {} files, it must be 1 to {MAX_SHARDS}", names.len())));
    }
    let beside = |other: &str, name: &str| match other.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{name}"),
        None => name.to_owned(),
    };
    names
        .iter()
        .map(|name| {
            if name.contains('/') || !is_safe_path(name) || !name.ends_with(".safetensors") {
                let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
                return Err(refuse(format!("names '{shown}', which is no plain name of a safetensors file")));
            }
            Ok(SourceFile {
                paths: vec![beside(path_of(index), name)],
                text: None,
                sha256: String::new(),
                size: 0,
                trust: Some(Trust::FirstUse),
                index: false,
                target: beside(&index.target, name),
                convert: None,
                optional: false,
                offset: None,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        fs::write(&path, text).unwrap();
        let file = SourceFile {
            paths: vec!["sub/model.safetensors.index.json".into()],
            text: None,
            sha256: String::new(),
            size: 0,
            trust: Some(Trust::FirstUse),
            index: true,
            target: "model.safetensors.index.json".into(),
            convert: None,
            optional: true,
            offset: None,
        };
        let named = named_by(&file, &path).map_err(|error| error.to_string())?;
        Ok(named.into_iter().map(|file| format!("{} -> {}", file.paths[0], file.target)).collect())
    }

    #[test]
    fn an_index_names_each_file_once() {
        let text = r#"{"metadata": {}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}"#;
        let expected = ["sub/m-1.safetensors -> m-1.safetensors", "sub/m-2.safetensors -> m-2.safetensors"];
        assert_eq!(index(text).unwrap(), expected);
    }

    #[test]
    fn names_that_could_mean_a_path_are_refused() {
        for name in [
            "../a.safetensors",
            "/a.safetensors",
            "x/a.safetensors",
            "a\\\\b.safetensors",
            ".a.safetensors",
            "a.bin",
        ] {
            let error = index(&format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#)).unwrap_err();
            assert!(error.contains("no plain name"), "{name}: {error}");
        }
        assert!(index("{}").unwrap_err().contains("is no index"));
        assert!(index(r#"{"weight_map": {}}"#).unwrap_err().contains("names 0 files"));
    }
}
