//! `[[pipelines]]` of the configuration file: chat models that are composed of one that transcribes, a language model at a
//! server, and one that speaks.
//!
//! Knows no disk and no environment.

use std::time::Duration;

use izwi_remote::{ConfigError, PipelineConfig, RemoteConfig};
use izwi_types::{Eagerness, TurnEnds};
use serde_json::{Map, Number, Value as Json};
use toml::de::{DeTable, DeValue};

use super::field::Kind;
use super::key_source::KeySource;
use super::keys::{Fault, Key, Keys, find, key, one_api_key};
use super::origin::Origin;
use super::pipeline_model::PipelineModel;
use super::ranges::SECONDS;
use super::server_keys::{ServerKeys, Servers};

/// The key of the tables in the file.
pub(crate) const TABLES: &str = "pipelines";
/// The table of the language model within.
const LLM: &str = "llm";
/// The table of the ends of turns within.
const TURNS: &str = "turn_detection";
/// Members of its requests.
const PARAMETERS: &str = "parameters";

/// Every key, in the order of the documentation.
pub(crate) static KEYS: &[Key<PipelineModel>] = &[
    key!("name", Kind::Text, "required", "Its name, which no other model has", |model, value| {
        model.config.llm.name = value.text()?.to_owned();
    }),
    key!(
        "asr",
        Kind::Text,
        "`asr_model`",
        "The model that transcribes what the user says",
        |model, value| {
            model.config.asr = Some(value.text()?.to_owned());
        }
    ),
    key!("tts", Kind::Text, "`model`", "The model that speaks", |model, value| {
        model.config.tts = Some(value.text()?.to_owned());
    }),
    key!("voice", Kind::Text, "its first", "Voice of the model that speaks", |model, value| {
        model.config.voice = Some(value.text()?.to_owned());
    }),
    key!(
        "language",
        Kind::Text,
        "detected",
        "Language of the conversation, as a BCP 47 tag",
        |model, value| {
            model.config.language = Some(value.text()?.to_owned());
        }
    ),
    key!(
        "speculate",
        Kind::Switch,
        "false",
        "Whether the language model is asked in a pause, before it is known that the turn has ended: answers come sooner, and \
         requests whose turn goes on are for nothing",
        |model, value| model.config.speculates = value.switch()?
    ),
];

/// Every key of the table of the language model.
pub(crate) static LLM_KEYS: &[Key<PipelineModel>] = &[
    key!(
        "base_url",
        Kind::List,
        "required",
        "Address of its server, or several, each with the path before /chat/completions: http://127.0.0.1:11434/v1",
        |model, value| model.config.llm.base_urls = value.list()?.to_vec()
    ),
    ServerKeys::MODEL,
    ServerKeys::API_KEY,
    ServerKeys::API_KEY_ENV,
    ServerKeys::API_KEY_FILE,
    key!(
        "system",
        Kind::Text,
        "brief spoken answers",
        "System prompt; instructions of a client take its place",
        |model, value| model.config.system = Some(value.text()?.to_owned())
    ),
    key!(
        "context",
        Kind::Whole { min: 256, max: 1_048_576 },
        "8192",
        "Tokens of the conversation, about, beyond which the oldest turns are dropped",
        |model, value| model.config.context = value.whole()?
    ),
    ServerKeys::MAX_CONCURRENT,
    ServerKeys::RETRIES,
    ServerKeys::CONNECT_TIMEOUT,
    key!("first_byte_timeout_s", SECONDS, "60", "Time that the first token may take", |model, value| {
        model.config.llm.first_byte_timeout = Duration::from_secs(value.whole()?);
    }),
    ServerKeys::IDLE_TIMEOUT,
];

/// Every key of the table of the ends of turns.
pub(crate) static TURN_KEYS: &[Key<TurnTable>] = &[
    key!(
        "type",
        Kind::Choice(&TurnEnds::TYPES),
        "required",
        "Silence alone, or a turn model that is asked in a pause; without an installed one, silence",
        |turns, value| turns.is_semantic = value.text()? == TurnEnds::TYPES[1]
    ),
    key!(
        "eagerness",
        Kind::Choice(&Eagerness::NAMES),
        "auto",
        "How early a turn may end with semantic_vad",
        |turns, value| turns.eagerness = Eagerness::parse(value.text()?)
    ),
    key!(
        "silence_duration_ms",
        Kind::Whole { min: *TurnEnds::SILENCES_MS.start(), max: *TurnEnds::SILENCES_MS.end() },
        "500; by eagerness 2000, 4000 or 8000",
        "Silence that ends a turn, whatever a turn model says",
        |turns, value| turns.silence_ms = Some(value.whole()?)
    ),
];

/// The table of the ends of turns, as it is read.
#[derive(Debug, Default)]
pub(crate) struct TurnTable {
    is_semantic: bool,
    eagerness: Option<Eagerness>,
    silence_ms: Option<u64>,
}

const TABLE: Keys<PipelineModel> = Keys { name: TABLES, page: "docs/config.md", keys: KEYS };
const LLM_TABLE: Keys<PipelineModel> = Keys { name: "pipelines.llm", page: "docs/config.md", keys: LLM_KEYS };
const TURN_TABLE: Keys<TurnTable> =
    Keys { name: "pipelines.turn_detection", page: "docs/config.md", keys: TURN_KEYS };

impl Servers for PipelineModel {
    fn config(&mut self) -> &mut RemoteConfig {
        &mut self.config.llm
    }

    fn set_key(&mut self, key: KeySource) {
        self.key = key;
    }
}

/// Reads one table. Problems come with the byte that they are about.
pub(super) fn parse(table: &DeTable<'_>, at: usize, origin: Origin) -> Result<PipelineModel, Vec<Fault>> {
    let config = PipelineConfig::new("", Vec::new(), "");
    let mut model = PipelineModel::new(config, origin);
    let mut faults = TABLE.missing(table, at);
    faults.extend(TABLE.read(table, &[LLM, TURNS], &mut model));
    match find(table, TURNS).map(turn_ends).transpose() {
        Ok(turns) => model.config.turns = turns,
        Err(found) => faults.extend(found),
    }
    let Some(llm) = find(table, LLM) else {
        faults.push((at, format!("{TABLES}: {LLM} is missing; it is required")));
        return Err(faults);
    };
    let llm_at = llm.span().start;
    let Some(llm) = llm.get_ref().as_table() else {
        faults.push((llm_at, format!("{TABLES}: {LLM} is a table: write [pipelines.llm] on a line")));
        return Err(faults);
    };
    faults.extend(LLM_TABLE.missing(llm, llm_at));
    faults.extend(one_api_key(llm, LLM_TABLE.name, llm_at));
    faults.extend(LLM_TABLE.read(llm, &[PARAMETERS], &mut model));
    if let Some(parameters) = find(llm, PARAMETERS) {
        match json(parameters.get_ref()) {
            Some(Json::Object(members)) => model.config.parameters = members,
            _ => {
                let message = format!(
                    "{}: {PARAMETERS} is no table of numbers, texts, switches, lists and tables",
                    LLM_TABLE.name
                );
                faults.push((parameters.span().start, message));
            }
        }
    }
    if faults.is_empty()
        && let Err(ConfigError { field, message }) = model.config.check()
    {
        let at = find(llm, field)
            .map_or(Keys::<PipelineModel>::place(table, field, at), |value| value.span().start);
        faults.push((at, format!("{TABLES}: {field}: {message}")));
    }
    if faults.is_empty() { Ok(model) } else { Err(faults) }
}

/// Reads the table of the ends of turns.
fn turn_ends(value: &toml::Spanned<DeValue<'_>>) -> Result<TurnEnds, Vec<Fault>> {
    let at = value.span().start;
    let Some(table) = value.get_ref().as_table() else {
        let message = format!("{TABLES}: {TURNS} is a table: write {TURNS} = {{ type = \"semantic_vad\" }}");
        return Err(vec![(at, message)]);
    };
    let mut turns = TurnTable::default();
    let mut faults = TURN_TABLE.missing(table, at);
    faults.extend(TURN_TABLE.read(table, &[], &mut turns));
    if let Some(eagerness) = find(table, "eagerness").filter(|_| faults.is_empty() && !turns.is_semantic) {
        let name = TURN_TABLE.name;
        let message =
            format!("{name}: eagerness is only for semantic_vad; leave it out, or set type to that");
        faults.push((eagerness.span().start, message));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let eagerness = turns.is_semantic.then(|| turns.eagerness.unwrap_or(Eagerness::Auto));
    Ok(TurnEnds { eagerness, silence_ms: turns.silence_ms })
}

/// A value as JSON; `None` for a date and for a number that JSON lacks.
fn json(value: &DeValue<'_>) -> Option<Json> {
    Some(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(switch) => (*switch).into(),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok()?.into(),
        DeValue::Float(number) => Json::Number(Number::from_f64(number.as_str().parse().ok()?)?),
        DeValue::Array(items) => {
            items.iter().map(|item| json(item.get_ref())).collect::<Option<Vec<_>>>()?.into()
        }
        DeValue::Table(table) => {
            let member = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                Some((key.to_string(), json(value.get_ref())?))
            };
            table.iter().map(member).collect::<Option<Map<_, _>>>()?.into()
        }
        DeValue::Datetime(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::file;
    use super::*;

    const GOOD: &str = "[[pipelines]]\nname = \"talk\"\ntts = \"little\"\nvoice = \"ann\"\n\
        [pipelines.llm]\nbase_url = \"http://127.0.0.1:11434/v1\"\nmodel = \"llama3.2\"\napi_key = \"hunter2\"\n\
        parameters = { temperature = 0.5, top_k = 3, stop = [\"x\"], kwargs = { think = false } }\n";

    fn problems(text: &str) -> Vec<String> {
        let problems = file::parse(Path::new("c.toml"), text).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tables_become_pipelines() {
        let file = file::parse(Path::new("c.toml"), GOOD).unwrap();
        let [talk] = file.pipelines.as_slice() else { panic!("{:?}", file.pipelines) };
        let config = &talk.config;
        assert_eq!(
            (talk.name(), config.tts.as_deref(), config.asr.as_deref()),
            ("talk", Some("little"), None)
        );
        assert_eq!(
            Json::from(config.parameters.clone()),
            json!({"temperature": 0.5, "top_k": 3, "stop": ["x"], "kwargs": {"think": false}})
        );
        assert_eq!(talk.place(), "llama3.2 at http://127.0.0.1:11434/v1, on this machine");
        assert!(!format!("{talk:?}").contains("hunter2"));
        assert_eq!(config.turns, None);
        for (table, eagerness, silence_ms) in [
            (r#"type = "semantic_vad""#, Some(Eagerness::Auto), None),
            (
                r#"type = "semantic_vad", eagerness = "low", silence_duration_ms = 3000"#,
                Some(Eagerness::Low),
                Some(3_000),
            ),
            (r#"type = "server_vad", silence_duration_ms = 700"#, None, Some(700)),
        ] {
            let text = GOOD.replacen(
                "[pipelines.llm]",
                &format!("turn_detection = {{ {table} }}\n[pipelines.llm]"),
                1,
            );
            let file = file::parse(Path::new("c.toml"), &text).unwrap();
            assert_eq!(file.pipelines[0].config.turns, Some(TurnEnds { eagerness, silence_ms }), "{table}");
        }
        let far = GOOD.replace("127.0.0.1:11434", "llm.example");
        let far = file::parse(Path::new("c.toml"), &far).unwrap();
        assert!(far.pipelines[0].place().ends_with("text leaves this machine"));
    }

    #[test]
    fn faults_name_the_line_the_field_and_the_remedy() {
        assert_eq!(
            problems("[[pipelines]]\nasr = 7\n"),
            [
                "c.toml:1: pipelines: name is missing; it is required",
                "c.toml:1: pipelines: llm is missing; it is required",
                "c.toml:2: pipelines: asr: 7 is not a text",
            ]
        );
        for (old, new, expected) in [
            ("voice", "voices", "c.toml:4: pipelines: unknown key 'voices': did you mean voice?"),
            (
                "llama3.2",
                " ",
                "c.toml:7: pipelines: model: is empty; set the name of the model at the server",
            ),
            (
                "temperature = 0.5",
                "stream = true",
                "c.toml:9: pipelines: parameters: has 'stream', which the pipeline sets; leave it out",
            ),
            (
                "api_key =",
                "api_key_env = \"A\"\napi_key =",
                "c.toml:5: pipelines.llm: set one of api_key, api_key_env and api_key_file",
            ),
        ] {
            assert_eq!(problems(&GOOD.replacen(old, new, 1)), [expected]);
        }
        for (table, expected) in [
            ("7", "pipelines: turn_detection is a table: write turn_detection = { type = \"semantic_vad\" }"),
            ("{ eagerness = \"low\" }", "pipelines.turn_detection: type is missing; it is required"),
            ("{ type = \"vad\" }", "pipelines.turn_detection: type: 'vad' is not server_vad or semantic_vad"),
            (
                "{ type = \"server_vad\", eagerness = \"low\" }",
                "pipelines.turn_detection: eagerness is only for semantic_vad; leave it out, or set type to that",
            ),
            (
                "{ type = \"semantic_vad\", eagerness = \"soon\" }",
                "pipelines.turn_detection: eagerness: 'soon' is not low or medium or high or auto",
            ),
            (
                "{ type = \"server_vad\", silence_duration_ms = 50 }",
                "pipelines.turn_detection: silence_duration_ms: '50' is not a whole number from 100 to 10000",
            ),
            (
                "{ type = \"server_vad\", silence = 50 }",
                "pipelines.turn_detection: unknown key 'silence': did you mean silence_duration_ms?",
            ),
        ] {
            let text =
                GOOD.replacen("[pipelines.llm]", &format!("turn_detection = {table}\n[pipelines.llm]"), 1);
            assert_eq!(problems(&text), [format!("c.toml:5: {expected}")]);
        }
        let twice = problems(&format!("{GOOD}{GOOD}"));
        assert_eq!(twice, ["c.toml:10: pipelines: name: 'talk' is given twice; choose another name"]);
    }
}
