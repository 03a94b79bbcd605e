//! One file of a source, as a manifest describes it. Knows no kind of source.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::convert::Conversion;
use crate::digest;
use crate::rules::{SAFE_PATH, SHA256, ensure, is_safe_path, is_sha256};

const INDEX_SUFFIX: &str = ".index.json";

/// One file of the installed model and its origin. Exactly one of `path` and `text` is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceFile {
    /// Path inside the source; several are parts to concatenate in order.
    #[serde(default, rename = "path", deserialize_with = "one_or_many")]
    pub(crate) paths: Vec<String>,
    /// The contents themselves, for a file that the source lacks.
    pub(crate) text: Option<String>,
    /// SHA-256 before conversion, in lower-case hex; empty with `trust`.
    #[serde(default)]
    pub(crate) sha256: String,
    /// Length before conversion, in bytes; 0 with `trust`.
    #[serde(default)]
    pub(crate) size: u64,
    /// Where it begins in the member of a package that holds it, in bytes; without it, it is the whole member.
    pub(crate) offset: Option<u64>,
    /// Given in place of hash and length where the manifest's author does not know them.
    pub(crate) trust: Option<Trust>,
    /// Whether it is the index of a model in several safetensors files. The files that it names replace the single
    /// file that it is named after.
    #[serde(default)]
    pub(crate) index: bool,
    /// Path inside the model's folder.
    pub(crate) target: String,
    /// The converter, if any.
    pub(crate) convert: Option<Conversion>,
    /// Whether the model works without it.
    #[serde(default)]
    pub(crate) optional: bool,
}

/// Where the expected hash of a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Trust {
    /// From the hub at the first pull: the hub states a hash, the download is verified against it, and the hash is
    /// recorded.
    #[serde(rename = "first-use")]
    FirstUse,
}

impl SourceFile {
    /// Checks the rules of the manifest.
    ///
    /// # Errors
    /// The broken rule, with its value.
    pub(super) fn check(&self) -> Result<(), String> {
        let target = &self.target;
        ensure(is_safe_path(target), || format!("target '{target}' must be {SAFE_PATH}"))?;
        ensure(self.paths.is_empty() != self.text.is_none(), || {
            format!("'{target}' must give either path or text")
        })?;
        if let Some(path) = self.paths.iter().find(|path| !is_safe_path(path)) {
            return Err(format!("path '{path}' must be {SAFE_PATH}"));
        }
        ensure(!self.index || self.indexed().is_some(), || {
            format!("'{target}' is an index, so it must end in {INDEX_SUFFIX}")
        })?;
        ensure(self.convert.is_none() || target.ends_with(".safetensors"), || {
            format!("'{target}' is converted, so it must end in .safetensors")
        })?;
        ensure(self.offset.is_none() || (self.paths.len() == 1 && !self.optional), || {
            format!("'{target}' has an offset, so it must have one path and not be optional")
        })?;
        if self.trust.is_some() {
            return self.check_trusted();
        }
        ensure(!self.index, || format!("'{target}' is an index: its files need trust, and so does it"))?;
        ensure(is_sha256(&self.sha256), || format!("sha256 of '{target}' {SHA256}"))?;
        ensure(self.size > 0, || format!("size of '{target}' must be given"))?;
        if let Some(text) = &self.text {
            let found = digest::of_bytes(text.as_bytes());
            ensure((&found.sha256, found.size) == (&self.sha256, self.size), || {
                format!("text of '{target}' has {} bytes and sha256 {}", found.size, found.sha256)
            })?;
        }
        Ok(())
    }

    /// The single file that an index is named after: `model.safetensors` of `model.safetensors.index.json`.
    pub(crate) fn indexed(&self) -> Option<&str> {
        self.target.strip_suffix(INDEX_SUFFIX).filter(|_| self.index)
    }

    fn check_trusted(&self) -> Result<(), String> {
        let target = &self.target;
        ensure(self.sha256.is_empty() && self.size == 0, || {
            format!("'{target}' has trust: leave sha256 and size out, or trust")
        })?;
        ensure(self.paths.len() == 1, || format!("'{target}' has trust, so it must have one path"))
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(path) => Ok(vec![path]),
        toml::Value::Array(paths) => paths
            .into_iter()
            .map(|path| {
                path.try_into().map_err(|_| D::Error::custom("path must be a text or a list of texts"))
            })
            .collect(),
        other => {
            Err(D::Error::custom(format!("path must be a text or a list of texts, not {}", other.type_str())))
        }
    }
}
