//! Query parameters: read by name, and those that are not supported refused by name. Knows no request.

use std::str::FromStr;

use izwi_types::excerpt;

use crate::error::ApiError;

/// The parameters of a request, in order. A name may repeat.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(pub(super) Vec<(String, String)>);

impl Params {
    /// The value of a parameter; an empty one counts as absent, because SDKs send them.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.0.iter().filter(move |(known, value)| known == name && !value.is_empty());
        values.map(|(_, value)| value.as_str())
    }

    /// A switch, off without a value.
    pub(super) fn switch(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(other) => Err(self.bad(name, other, "true or false")),
        }
    }

    /// A number.
    pub(super) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        // Some SDKs write whole numbers as `24000.0`.
        let read = |text: &str| text.strip_suffix(".0").unwrap_or(text).parse();
        let value = self.text(name).map(|text| read(text).map_err(|_| self.bad(name, text, "a number")));
        value.transpose()
    }

    /// Refuses what is not supported, unless it is switched off.
    pub(super) fn refuse(&self, unsupported: &[&str]) -> Result<(), ApiError> {
        let is_off = |value: &str| matches!(value.to_ascii_lowercase().as_str(), "false" | "0");
        let found = unsupported.iter().find(|name| self.all(name).any(|value| !is_off(value)));
        match found {
            None => Ok(()),
            Some(name) => Err(ApiError::invalid(name, format!("{name} is not supported; leave it out"))),
        }
    }

    fn bad(&self, name: &str, value: &str, expected: &str) -> ApiError {
        ApiError::invalid(name, format!("{name} is '{}'; it must be {expected}", excerpt(value)))
    }
}

/// The id of a model of this server; `None` for the default one, which names of hosted models stand for.
pub(super) fn model_of<'a>(name: Option<&'a str>, hosted: &[&str]) -> Option<&'a str> {
    name.filter(|name| !hosted.iter().any(|start| name.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn values_are_read_and_bad_ones_are_named() {
        let params =
            params(&[("a", "True"), ("b", ""), ("c", "24000.0"), ("d", "x"), ("k", "one"), ("k", "two")]);
        assert!(params.switch("a").unwrap() && !params.switch("b").unwrap());
        assert_eq!(params.number::<u32>("c").unwrap(), Some(24_000));
        assert_eq!(params.switch("d").unwrap_err().param(), Some("d"));
        assert_eq!(params.number::<u32>("d").unwrap_err().param(), Some("d"));
        assert_eq!(params.all("k").collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn what_is_switched_off_is_not_refused() {
        let refused = |name, value| params(&[(name, value)]).refuse(&["diarize", "redact"]);
        assert!(refused("diarize", "false").is_ok() && refused("other", "true").is_ok());
        assert_eq!(refused("diarize", "true").unwrap_err().param(), Some("diarize"));
        assert_eq!(refused("redact", "pii").unwrap_err().param(), Some("redact"));
    }

    #[test]
    fn hosted_models_stand_for_the_default_one() {
        assert_eq!(model_of(Some("aura-2-thalia-en"), &["aura"]), None);
        assert_eq!(model_of(Some("kestrel"), &["aura"]), Some("kestrel"));
        assert_eq!(model_of(None, &["aura"]), None);
    }
}
