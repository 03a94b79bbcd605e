//! Tables of the configuration file that occur several times: their keys, and how one is read.
//!
//! Knows no disk and no environment.

use izwi_types::similar;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::{Kind, Value};

/// A problem and the byte that it is about.
pub(super) type Fault = (usize, String);

/// A key of a table that sets a field of `M`.
pub(crate) struct Key<M> {
    /// Its name.
    pub(crate) name: &'static str,
    /// Type of its values. A list may also be a single text.
    pub(crate) kind: Kind,
    /// The default in words.
    pub(crate) default: &'static str,
    /// Description: one sentence without a period.
    pub(crate) doc: &'static str,
    pub(super) set: fn(&mut M, &Value) -> Result<(), String>,
}

impl<M> Key<M> {
    /// The type of its values, for people.
    pub(crate) fn values(&self) -> String {
        match self.kind {
            Kind::List => "a text or a list of texts".to_owned(),
            kind => kind.to_string(),
        }
    }
}

macro_rules! key {
    ($name:literal, $kind:expr, $default:literal, $doc:literal, |$model:ident, $value:ident| $set:expr) => {
        $crate::settings::keys::Key {
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
pub(super) use key;

/// Refuses several sources of an API key in one table.
pub(super) fn one_api_key(table: &DeTable<'_>, name: &str, at: usize) -> Option<Fault> {
    let keys = ["api_key", "api_key_env", "api_key_file"];
    let found = keys.into_iter().filter(|key| find(table, key).is_some()).count();
    (found > 1).then(|| (at, format!("{name}: set one of api_key, api_key_env and api_key_file")))
}

/// A kind of table.
pub(super) struct Keys<M: 'static> {
    /// Its name in the file.
    pub(super) name: &'static str,
    /// The page that lists its keys.
    pub(super) page: &'static str,
    pub(super) keys: &'static [Key<M>],
}

impl<M> Keys<M> {
    /// Sets the fields of the keys in a table, but for those in `others`.
    pub(super) fn read(&self, table: &DeTable<'_>, others: &[&str], model: &mut M) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            if others.contains(&name) {
                continue;
            }
            let Some(known) = self.keys.iter().find(|known| known.name == name) else {
                faults.push((key.span().start, self.unknown(name, others)));
                continue;
            };
            if let Err(message) = parse(known.kind, value).and_then(|value| (known.set)(model, &value)) {
                faults.push((value.span().start, format!("{}: {name}: {message}", self.name)));
            }
        }
        faults
    }

    /// The keys without a default that a table lacks.
    pub(super) fn missing(&self, table: &DeTable<'_>, at: usize) -> Vec<Fault> {
        let required = self.keys.iter().filter(|key| key.default == REQUIRED);
        let missing = required.filter(|key| find(table, key.name).is_none());
        missing.map(|key| (at, format!("{}: {} is missing; it is required", self.name, key.name))).collect()
    }

    /// Where the value of a field is, or else the table.
    pub(super) fn place(table: &DeTable<'_>, field: &str, at: usize) -> usize {
        find(table, field).map_or(at, |value| value.span().start)
    }

    fn unknown(&self, name: &str, others: &[&str]) -> String {
        let (table, page) = (self.name, self.page);
        let known = self.keys.iter().map(|key| key.name).chain(others.iter().copied());
        match similar(name, known).as_slice() {
            [] => format!("{table}: unknown key '{name}'; {page} lists all"),
            near => format!("{table}: unknown key '{name}': did you mean {}?", near.join(", ")),
        }
    }
}

/// The default in words of a key without one.
pub(super) const REQUIRED: &str = "required";

/// The value of a key.
pub(super) fn find<'t, 'd>(table: &'t DeTable<'d>, name: &str) -> Option<&'t Spanned<DeValue<'d>>> {
    table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(_, value)| value)
}

fn parse(kind: Kind, value: &Spanned<DeValue<'_>>) -> Result<Value, String> {
    match (kind, value.get_ref()) {
        (Kind::List, DeValue::String(text)) => Ok(Value::List(vec![text.to_string()])),
        (kind, value) => kind.parse_toml(value),
    }
}
