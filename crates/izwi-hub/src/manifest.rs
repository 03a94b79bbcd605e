//! A model's manifest and its rules. Reads no file and reaches no source.

use izwi_types::{Task, languages};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::HubError;
use crate::rules::{PLAIN_NAME, ensure, is_plain_name};
use crate::sources::{Source, SourceFile};

/// One model: what it is and where its files come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The model's name for users; also the name of the manifest's file and of the model's folder.
    pub name: String,
    /// Name of the architecture that loads it.
    pub family: String,
    /// One line for users who choose a model.
    pub description: String,
    /// Tasks of the model.
    #[serde(rename = "task", deserialize_with = "tasks")]
    pub tasks: Vec<Task>,
    /// SPDX expression of the weights' licence.
    pub licence: String,
    /// Address of the licence.
    pub licence_url: Option<String>,
    /// BCP 47 tags.
    pub languages: Vec<String>,
    /// Tasks for which requests that name no model use it.
    #[serde(default, rename = "default", deserialize_with = "tasks")]
    pub default_for: Vec<Task>,
    /// Whether it can use the voice of a recording.
    #[serde(default)]
    pub clones_voices: bool,
    /// Whether it is a component: files that other models use, without a task of its own.
    #[serde(default)]
    pub component: bool,
    /// Components that the model uses where they are installed. They are pulled with it.
    #[serde(default)]
    pub uses: Vec<String>,
    /// Bounds on one request.
    #[serde(default)]
    pub limits: Limits,
    /// Files with their contents in the manifest, which every source shares. Part of each source after parsing.
    #[serde(default)]
    files: Vec<SourceFile>,
    /// Sources of the files, in the order of attempts: the publisher's hub first, then mirrors.
    pub sources: Vec<Source>,
}

/// Bounds on one request; without one the engine's own bound applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Longest input text, in characters.
    pub max_text_chars: Option<u32>,
    /// Longest input or output audio, in seconds.
    pub max_audio_s: Option<u32>,
}

impl Manifest {
    /// Parses and checks the manifest in `file`, whose name must be `<name>.toml`.
    ///
    /// # Errors
    /// It is not TOML, lacks or adds a field, or a value breaks a rule.
    pub fn parse(file: &str, text: &str) -> Result<Self, HubError> {
        let refuse = |reason: String| HubError::Manifest { file: file.to_owned(), reason };
        let mut manifest: Self = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        manifest.share_files().map_err(&refuse)?;
        manifest.check().map_err(&refuse)?;
        let stem = file.rsplit(['/', '\\']).next().and_then(|name| name.strip_suffix(".toml"));
        if stem != Some(&manifest.name) {
            return Err(refuse(format!("it must be called {}.toml, after its name", manifest.name)));
        }
        Ok(manifest)
    }

    /// Bytes to download from the first source of known size; `None` where only the hub states sizes.
    pub fn download_bytes(&self) -> Option<u64> {
        self.sources.iter().find_map(Source::bytes)
    }

    /// ISO 639 codes of the languages, each once.
    pub fn language_codes(&self) -> Vec<String> {
        let mut codes: Vec<String> = Vec::new();
        for code in self.languages.iter().filter_map(|tag| languages::code_of(tag)) {
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }

    /// Adds the shared files to every source.
    fn share_files(&mut self) -> Result<(), String> {
        let shared = std::mem::take(&mut self.files);
        if let Some(file) = shared.iter().find(|file| file.text.is_none()) {
            return Err(format!("'{}' has no text, so it must be listed in each source", file.target));
        }
        self.sources.iter_mut().for_each(|source| source.add_files(&shared));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        ensure(is_plain_name(&self.name), || format!("name '{}' must be {PLAIN_NAME}", self.name))?;
        for (field, value) in
            [("family", &self.family), ("description", &self.description), ("licence", &self.licence)]
        {
            ensure(!value.trim().is_empty(), || format!("{field} must not be empty"))?;
        }
        if self.component {
            ensure(self.tasks.is_empty(), || "task must be empty for a component".into())?;
            ensure(self.uses.is_empty(), || "uses must be empty for a component".into())?;
        } else {
            ensure(!self.tasks.is_empty(), || {
                "task must list at least one of tts, asr, chat, diarize".into()
            })?;
            ensure(!self.languages.is_empty(), || "languages must list at least one tag".into())?;
        }
        if let Some(task) = self.default_for.iter().find(|task| !self.tasks.contains(task)) {
            return Err(format!("default lists {}, which task does not", task.name()));
        }
        ensure(!self.clones_voices || self.tasks.contains(&Task::Tts), || {
            "clones_voices is true, but task does not list tts".into()
        })?;
        ensure(!self.sources.is_empty(), || "sources must list at least one source".into())?;
        self.sources.iter().try_for_each(Source::check)
    }
}

/// A list of tasks by their names.
fn tasks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Task>, D::Error> {
    let task = |name: String| {
        Task::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| {
            let names = Task::ALL.map(Task::name).join(", ");
            D::Error::custom(format!("task '{name}' is unknown; use {names}"))
        })
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest;

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
    fn a_complete_manifest() {
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
        check("default = [\"tts\"]", "default = [\"asr\"]", "default lists asr");
        check("task = [\"tts\"]", "task = []", "task must list");
        let asr_only = lark().replace("task = [\"tts\"]", "task = [\"asr\"]\nclones_voices = true");
        let error = Manifest::parse("lark.toml", &asr_only.replace("default = [\"tts\"]", "")).unwrap_err();
        assert!(error.to_string().contains("clones_voices is true"), "{error}");
        check("task = [\"tts\"]", "task = [\"tts\"]\ncomponent = true", "task must be empty for a component");
        check("task = [\"tts\"]\n", "task = []\ncomponent = true\nuses = [\"wren\"]\n", "uses must be empty");
        check("task = [\"tts\"]", "task = [\"sing\"]", "task 'sing' is unknown; use tts, asr, chat");
        check("\"pip\"", "\"gem\"", "unknown variant `gem`");
        check("size = 3", "size = 0", "size of 'model.safetensors' must be given");
        check("size = 3", "size = 3\noffset = 7", "has an offset, so it must have one path");
        check(
            "target = \"model.bin\"",
            "target = \"model.bin\"\noffset = 7",
            "offset of 'model.bin' is for package",
        );
        check(
            "version = \"1.0\"",
            "version = \"1.0\", platform = \"-r\"",
            "platform '-r' of package 'lark-tts'",
        );
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
    fn shared_files_belong_to_every_source() {
        let shared = format!(
            "[[files]]\ntext = \"[]\"\nsha256 = \"{}\"\nsize = 2\ntarget = \"list.json\"\n\n[[sources]]",
            digest::of_bytes(b"[]").sha256
        );
        let text = lark().replacen("[[sources]]", &shared, 1);
        let manifest = Manifest::parse("lark.toml", &text).unwrap();
        for source in &manifest.sources {
            assert!(source.files().iter().any(|file| file.target == "list.json"), "{}", source.id());
        }
        let error = Manifest::parse("lark.toml", &text.replace("text = \"[]\"", "path = \"a\"")).unwrap_err();
        assert!(error.to_string().contains("'list.json' has no text"), "{error}");
    }

    #[test]
    fn malformed_hashes_are_refused() {
        let upper = "0A".repeat(32);
        check("size = 3\ntarget = \"model.safetensors\"", "size = 3", "missing field `target`");
        for wrong in ["", "0a", &upper, &"0g".repeat(32)] {
            let error = Manifest::parse("lark.toml", &LARK.replace("HASH", wrong)).unwrap_err();
            assert!(error.to_string().contains("must be 64 lower-case hex digits"), "{error}");
        }
    }
}
