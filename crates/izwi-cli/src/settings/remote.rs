//! `[[remote_models]]` of the configuration file: models that other servers run, one table each.
//!
//! Knows no disk and no environment.

use std::path::PathBuf;
use std::time::Duration;

use izwi_core::engine::Task;
use izwi_remote::{ConfigError, RemoteConfig, Secret};
use izwi_types::similar;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::{Kind, Value};
use super::origin::Origin;
use super::ranges::{ANY_COUNT, SECONDS};
use super::remote_model::{KeySource, RemoteModel};

/// The key of the tables in the file.
pub(crate) const TABLES: &str = "remote_models";

/// A key of a table.
pub(crate) struct Key {
    /// Its name.
    pub(crate) name: &'static str,
    /// Type of its values. A list may also be a single text.
    pub(crate) kind: Kind,
    /// The default in words.
    pub(crate) default: &'static str,
    /// Description: one sentence without a period.
    pub(crate) doc: &'static str,
    set: fn(&mut RemoteModel, &Value) -> Result<(), String>,
}

macro_rules! key {
    ($name:literal, $kind:expr, $default:literal, $doc:literal, |$model:ident, $value:ident| $set:expr) => {
        Key {
            name: $name,
            kind: $kind,
            default: $default,
            doc: $doc,
            set: |$model, $value| {
                $set;
                Ok(())
            },
        }
    };
}

/// Every key, in the order of the documentation.
pub(crate) static KEYS: &[Key] = &[
    key!("name", Kind::Text, "required", "Its name here, which no other model has", |model, value| {
        model.config.name = value.text()?.to_owned();
    }),
    key!(
        "backend",
        Kind::Choice(&["openai"]),
        "openai",
        "Protocol of the servers: OpenAI's audio API",
        |_model, value| { value.text()? }
    ),
    key!(
        "task",
        Kind::Choice(&["tts", "asr"]),
        "required",
        "What it does: synthesise or transcribe",
        |model, value| {
            // Defaults depend on the task: it is read first.
            model.config.task = if value.text()? == "asr" { Task::Asr } else { Task::Tts };
        }
    ),
    key!(
        "base_url",
        Kind::List,
        "required",
        "Address of its server, or several, each with the path before /audio: http://gpu:8091/v1",
        |model, value| model.config.base_urls = value.list()?.to_vec()
    ),
    key!("model", Kind::Text, "required", "Its name at the servers", |model, value| {
        model.config.model = value.text()?.to_owned();
    }),
    key!("api_key", Kind::Secret, "none", "Key that the servers require", |model, value| {
        model.key = KeySource::Text(Secret::new(value.text()?));
    }),
    key!(
        "api_key_env",
        Kind::Text,
        "none",
        "Variable of the environment that holds the key",
        |model, value| {
            model.key = KeySource::Variable(value.text()?.to_owned());
        }
    ),
    key!("api_key_file", Kind::Text, "none", "File that holds the key", |model, value| {
        model.key = KeySource::File(PathBuf::from(value.text()?));
    }),
    key!("voices", Kind::List, "asked of the servers", "Its voices, the default first", |model, value| {
        model.config.voices = value.list()?.to_vec();
    }),
    key!("languages", Kind::List, "any", "Codes of its languages; others are refused", |model, value| {
        model.config.languages = value.list()?.to_vec();
    }),
    key!(
        "sample_rate",
        Kind::Whole { min: 8_000, max: 48_000 },
        "24000",
        "Rate of the audio that the servers send, in Hz",
        |model, value| model.config.sample_rate_hz = value.whole()?
    ),
    key!(
        "max_concurrent",
        ANY_COUNT,
        "32",
        "Maximum number of open requests; more are refused with Retry-After",
        |model, value| model.config.max_concurrent = value.whole()?
    ),
    key!(
        "extensions",
        Kind::Switch,
        "true",
        "Whether the servers take fields that OpenAI's API lacks: stream, language, seed, sampling",
        |model, value| model.config.extensions = value.switch()?
    ),
    key!(
        "timestamps",
        Kind::Switch,
        "true",
        "Whether transcripts are asked for with times (verbose_json) or as text alone (json)",
        |model, value| model.config.timestamps = value.switch()?
    ),
    key!(
        "retries",
        Kind::Whole { min: 0, max: 10 },
        "2",
        "How often a request is sent again before the first byte, to another server first",
        |model, value| model.config.retries = value.whole()?
    ),
    key!("connect_timeout_s", SECONDS, "5", "Time that a connection may take", |model, value| {
        model.config.connect_timeout = Duration::from_secs(value.whole()?);
    }),
    key!(
        "first_byte_timeout_s",
        SECONDS,
        "60; 600 for asr",
        "Time that the first byte of an answer may take",
        |model, value| model.config.first_byte_timeout = Duration::from_secs(value.whole()?)
    ),
    key!("idle_timeout_s", SECONDS, "30", "Time that an answer may pause", |model, value| {
        model.config.idle_timeout = Duration::from_secs(value.whole()?);
    }),
    key!(
        "breaker_failures",
        Kind::Whole { min: 1, max: 1_000 },
        "5",
        "Failures in a row after which a server is not asked for a while",
        |model, value| model.config.breaker_failures = value.whole()?
    ),
    key!("breaker_pause_s", SECONDS, "10", "Time that a server is not asked then", |model, value| {
        model.config.breaker_pause = Duration::from_secs(value.whole()?);
    }),
];

/// Keys without a default.
const REQUIRED: [&str; 4] = ["name", "task", "base_url", "model"];

/// Reads one table. Problems come with the byte that they are about.
pub(super) fn parse(
    table: &DeTable<'_>,
    at: usize,
    origin: Origin,
) -> Result<RemoteModel, Vec<(usize, String)>> {
    let get =
        |name: &str| table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(_, value)| value);
    let mut problems: Vec<(usize, String)> = REQUIRED
        .into_iter()
        .filter(|name| get(name).is_none())
        .map(|name| (at, format!("{TABLES}: {name} is missing; it is required")))
        .collect();
    let keys = ["api_key", "api_key_env", "api_key_file"].into_iter().filter(|name| get(name).is_some());
    if keys.count() > 1 {
        problems.push((at, format!("{TABLES}: set one of api_key, api_key_env and api_key_file")));
    }
    let task = get("task").and_then(|value| value.get_ref().as_str().map(str::to_owned));
    let task = if task.as_deref() == Some("asr") { Task::Asr } else { Task::Tts };
    let config = RemoteConfig::new("", task, Vec::new(), "");
    let mut model = RemoteModel { config, key: KeySource::None, origin };
    for (key, value) in table {
        let name: &str = key.get_ref();
        let set = match KEYS.iter().find(|known| known.name == name) {
            Some(known) => read(known, value).and_then(|value| (known.set)(&mut model, &value)),
            None => {
                problems.push((key.span().start, unknown(name)));
                continue;
            }
        };
        if let Err(message) = set {
            problems.push((value.span().start, format!("{TABLES}: {name}: {message}")));
        }
    }
    if problems.is_empty()
        && let Err(ConfigError { field, message }) = model.config.check()
    {
        let at = get(field).map_or(at, |value| value.span().start);
        problems.push((at, format!("{TABLES}: {field}: {message}")));
    }
    if problems.is_empty() { Ok(model) } else { Err(problems) }
}

fn read(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Value, String> {
    match (key.kind, value.get_ref()) {
        (Kind::List, DeValue::String(text)) => Ok(Value::List(vec![text.to_string()])),
        (kind, value) => kind.parse_toml(value),
    }
}

fn unknown(name: &str) -> String {
    match similar(name, KEYS.iter().map(|key| key.name)).as_slice() {
        [] => format!("{TABLES}: unknown key '{name}'; docs/remote.md lists all"),
        near => format!("{TABLES}: unknown key '{name}': did you mean {}?", near.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = file::parse(Path::new("c.toml"), text).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tables_become_models() {
        let text = "[engine]\nthreads = 2\n\n[[remote_models]]\nname = \"far\"\nbackend = \"openai\"\ntask = \"tts\"\n\
                    base_url = \"http://gpu:8091/v1\"\nmodel = \"m\"\napi_key = \"hunter2\"\nvoices = [\"vivian\"]\n\n\
                    [[remote_models]]\nname = \"near\"\ntask = \"asr\"\nbase_url = [\"http://a/v1\", \"http://b/v1\"]\n\
                    model = \"w\"\n";
        let file = file::parse(Path::new("c.toml"), text).unwrap();
        let [far, near] = file.remote_models.as_slice() else { panic!("{:?}", file.remote_models) };
        assert_eq!(
            (far.config.voices.as_slice(), far.config.sample_rate_hz),
            (["vivian".to_owned()].as_slice(), 24_000)
        );
        assert_eq!((near.place().as_str(), near.config.task), ("http://a/v1, http://b/v1", Task::Asr));
        assert_eq!(near.config.first_byte_timeout, Duration::from_secs(600));
        assert_eq!(
            (far.origin.to_string(), near.origin.to_string()),
            ("c.toml:4".to_owned(), "c.toml:13".to_owned())
        );
        assert!(!format!("{far:?}").contains("hunter2"));
        assert!(format!("{:?}", far.with_key().unwrap().api_key).contains("hidden"));
    }

    #[test]
    fn faults_name_the_line_the_field_and_the_remedy() {
        let table =
            "[[remote_models]]\nname = \"far\"\ntask = \"tts\"\nmodel = \"m\"\nbase_url = \"http://a/v1\"\n";
        assert_eq!(
            problems("[[remote_models]]\nname = \"far\"\n"),
            [
                "c.toml:1: remote_models: task is missing; it is required",
                "c.toml:1: remote_models: base_url is missing; it is required",
                "c.toml:1: remote_models: model is missing; it is required",
            ]
        );
        for (line, expected) in [
            ("voice = \"x\"", "c.toml:6: remote_models: unknown key 'voice': did you mean voices?"),
            ("retries = 11", "c.toml:6: remote_models: retries: '11' is not a whole number from 0 to 10"),
            ("backend = \"grpc\"", "c.toml:6: remote_models: backend: 'grpc' is not openai"),
            ("api_key = 7", "c.toml:6: remote_models: api_key: a value of type integer is not a text"),
            (
                "api_key = \"a\"\napi_key_env = \"B\"",
                "c.toml:1: remote_models: set one of api_key, api_key_env and api_key_file",
            ),
        ] {
            assert_eq!(problems(&format!("{table}{line}\n")), [expected]);
        }
        let bad_url = table.replace("http://a/v1", "gpu:80");
        assert!(
            problems(&bad_url)[0].starts_with("c.toml:5: remote_models: base_url: 'gpu:80'"),
            "{bad_url}"
        );
        let twice = format!("{table}\n{table}");
        assert_eq!(
            problems(&twice),
            ["c.toml:7: remote_models: name: 'far' is given twice; choose another name"]
        );
        assert!(problems("remote_models = 1\n")[0].contains("[[remote_models]]"));
    }
}
