//! `[[remote_models]]` of the configuration file: models that other servers run, one table each.
//!
//! Knows no disk and no environment.

use std::time::Duration;

use izwi_core::engine::Task;
use izwi_remote::{ConfigError, RemoteConfig};
use toml::de::DeTable;

use super::field::Kind;
use super::key_source::KeySource;
use super::keys::{Fault, Key, Keys, find, key, one_api_key};
use super::origin::Origin;
use super::ranges::SECONDS;
use super::remote_model::RemoteModel;
use super::server_keys::{ServerKeys, Servers};

/// The key of the tables in the file.
pub(crate) const TABLES: &str = "remote_models";

/// Every key, in the order of the documentation.
pub(crate) static KEYS: &[Key<RemoteModel>] = &[
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
    ServerKeys::MODEL,
    ServerKeys::API_KEY,
    ServerKeys::API_KEY_ENV,
    ServerKeys::API_KEY_FILE,
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
    ServerKeys::MAX_CONCURRENT,
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
    ServerKeys::RETRIES,
    ServerKeys::CONNECT_TIMEOUT,
    key!(
        "first_byte_timeout_s",
        SECONDS,
        "60; 600 for asr",
        "Time that the first byte of an answer may take",
        |model, value| model.config.first_byte_timeout = Duration::from_secs(value.whole()?)
    ),
    ServerKeys::IDLE_TIMEOUT,
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

const TABLE: Keys<RemoteModel> = Keys { name: TABLES, page: "docs/remote.md", keys: KEYS };

impl Servers for RemoteModel {
    fn config(&mut self) -> &mut RemoteConfig {
        &mut self.config
    }

    fn set_key(&mut self, key: KeySource) {
        self.key = key;
    }
}

/// Reads one table. Problems come with the byte that they are about.
pub(super) fn parse(table: &DeTable<'_>, at: usize, origin: Origin) -> Result<RemoteModel, Vec<Fault>> {
    let mut faults = TABLE.missing(table, at);
    faults.extend(one_api_key(table, TABLES, at));
    let task = find(table, "task").and_then(|value| value.get_ref().as_str().map(str::to_owned));
    let task = if task.as_deref() == Some("asr") { Task::Asr } else { Task::Tts };
    let config = RemoteConfig::new("", task, Vec::new(), "");
    let mut model = RemoteModel { config, key: KeySource::None, origin };
    faults.extend(TABLE.read(table, &[], &mut model));
    if faults.is_empty()
        && let Err(ConfigError { field, message }) = model.config.check()
    {
        let at = Keys::<RemoteModel>::place(table, field, at);
        faults.push((at, format!("{TABLES}: {field}: {message}")));
    }
    if faults.is_empty() { Ok(model) } else { Err(faults) }
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
