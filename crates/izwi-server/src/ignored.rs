//! The fields of a request that nothing reads: told in a response header, and logged once each.
//!
//! Clients of the OpenAI API expect unknown fields to be ignored, and their users want to know it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderValue};
use izwi_types::excerpt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Names of the ignored fields, percent-encoded, separated by commas.
const HEADER: &str = "x-ignored-fields";
/// Names that are reported of one request.
const MAX_NAMES: usize = 16;
/// Names that are looked at: more than there are fields of a request.
const MAX_SEEN: usize = 128;
/// Names that are remembered as logged.
const MAX_LOGGED: usize = 256;
/// What a name consists of besides letters and digits.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.').remove(b'[').remove(b']');

/// Names of ignored fields, in order of the alphabet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredFields(BTreeSet<String>);

impl IgnoredFields {
    /// Adds a field by its path.
    pub fn add(&mut self, name: &str) {
        if self.0.len() < MAX_SEEN {
            // Serde writes `?` for the content of an optional field.
            self.0.insert(excerpt(&name.replace(".?", "")));
        }
    }

    /// Takes a field out that somebody else reads.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Adds the fields that another part of the request ignores.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Keeps what `other` ignores too: both were read from the same object.
    pub(crate) fn keep_common(&mut self, other: &Self) {
        let ignores = |all: &BTreeSet<String>, name: &str| {
            all.contains(name) || name.match_indices('.').any(|(end, _)| all.contains(&name[..end]))
        };
        // What one of them ignores as a whole may be read in part by the other.
        let nested: Vec<_> = other.0.iter().filter(|name| ignores(&self.0, name)).cloned().collect();
        self.0.retain(|name| ignores(&other.0, name));
        self.0.extend(nested);
    }

    /// The response header; none without ignored fields.
    pub fn headers(&self) -> HeaderMap {
        let names = self.0.iter().take(MAX_NAMES).map(|name| utf8_percent_encode(name, ENCODED).to_string());
        let names: Vec<String> = names.collect();
        let mut headers = HeaderMap::new();
        if !names.is_empty()
            && let Ok(value) = HeaderValue::from_str(&names.join(", "))
        {
            headers.insert(HEADER, value);
        }
        headers
    }
}

/// Whether a name looks like that of a field: a short identifier, or a path of some.
fn is_plain(name: &str) -> bool {
    const MAX_PLAIN: usize = 40;
    name.len() <= MAX_PLAIN
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte))
}

/// The names that were logged already.
#[derive(Debug, Default)]
pub struct IgnoredLog(Mutex<BTreeSet<String>>);

impl IgnoredLog {
    /// Logs names that were not logged before, up to a limit. They are the client's and may be anything, a text too: names
    /// that look like those of fields are logged at `debug` alone, others never.
    pub fn note(&self, ignored: &IgnoredFields) {
        for name in self.new_names(ignored) {
            tracing::debug!(
                field = name,
                "a request has a field that this service does not know; it is ignored"
            );
        }
    }

    fn new_names(&self, ignored: &IgnoredFields) -> Vec<String> {
        if ignored.0.is_empty() {
            return Vec::new();
        }
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = ignored.0.iter().filter(|name| is_plain(name)).take(MAX_NAMES);
        names.filter(|name| logged.len() < MAX_LOGGED && logged.insert((*name).clone())).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(names: &[String]) -> IgnoredFields {
        let mut ignored = IgnoredFields::default();
        names.iter().for_each(|name| ignored.add(name));
        ignored
    }

    #[test]
    fn names_are_told_encoded_and_in_bounds() {
        let header = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let headers = ignored(&names).headers();
            headers.get(HEADER).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["user", "a.?.b", "größe\r\nx"]).unwrap(), "a.b, gr%C3%B6%C3%9Fex, user");
        let many: Vec<String> = (0..1_000).map(|n| format!("{n}{}", "é".repeat(1_000))).collect();
        let value = ignored(&many).headers()[HEADER].to_str().unwrap().to_owned();
        assert!(value.split(", ").count() == MAX_NAMES && value.len() < 8 << 10, "{}", value.len());
    }

    #[test]
    fn of_two_readers_of_an_object_both_ignore_what_is_told() {
        let of = |names: &[&str]| ignored(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        let mut first = of(&["a", "b.c", "d", "e"]);
        first.keep_common(&of(&["a", "b", "d.?.f", "ef"]));
        assert_eq!(first, of(&["a", "b.c", "d.f"]));
    }

    #[test]
    fn each_name_is_logged_once_and_a_limited_number_is() {
        let log = IgnoredLog::default();
        let names: Vec<String> = ["b", "a"].map(str::to_owned).into();
        assert_eq!(log.new_names(&ignored(&names)), ["a", "b"]);
        assert!(log.new_names(&ignored(&names)).is_empty());
        let texts = ["my secret text".to_owned(), "größe".to_owned(), "x".repeat(41)];
        assert!(log.new_names(&ignored(&texts)).is_empty(), "a text is not logged");
        let total: usize = (0..100)
            .map(|round| {
                let names: Vec<String> = (0..10).map(|n| format!("{round}-{n}")).collect();
                log.new_names(&ignored(&names)).len()
            })
            .sum();
        assert_eq!(total, MAX_LOGGED - 2);
    }
}
