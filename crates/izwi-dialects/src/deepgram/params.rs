//! Query parameters: read by name, refused by name where ignoring them would do harm, and told where nothing reads them.
//! Knows no request.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use izwi_audio::pcm_format::{PcmEncoding, PcmFormat};
use izwi_audio::pcm_input::PcmInput;
use izwi_server::ApiError;
use izwi_server::extract::{ApiQuery, check_range};
use izwi_server::ignored::IgnoredFields;
use izwi_types::excerpt;

/// Parameters of every route of this server.
const COMMON: [&str; 2] = ["ticket", "instance"];

/// The parameters of a request, in order. A name may repeat.
#[derive(Debug, Default)]
pub(super) struct Params {
    pairs: Vec<(String, String)>,
    /// Names that were read.
    read: Mutex<BTreeSet<String>>,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        ApiQuery::from_request_parts(parts, state).await.map(|ApiQuery(pairs)| Self::new(pairs))
    }
}

impl Params {
    fn new(pairs: Vec<(String, String)>) -> Self {
        Self { pairs, read: Mutex::default() }
    }

    /// The value of a parameter; an empty one counts as absent, because SDKs send them.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let values = self.pairs.iter().filter(move |(known, value)| known == name && !value.is_empty());
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

    /// Whether speakers are told, and then whether saved ones are by name; `None` for what the server's settings say.
    pub(super) fn speakers(&self) -> Result<Option<Option<bool>>, ApiError> {
        let diarizes = self.switch("diarize")?;
        let saved = self.text("saved_speakers").map(|_| self.switch("saved_speakers")).transpose()?;
        if saved.is_some() && !diarizes {
            let message = "saved_speakers is only for transcripts with speakers; set diarize to true";
            return Err(ApiError::invalid("saved_speakers", message));
        }
        Ok(diarizes.then_some(saved))
    }

    /// What samples without a header are: `encoding` and `sample_rate`, of one channel.
    pub(super) fn pcm_format(&self) -> Result<PcmFormat, ApiError> {
        let encoding = match self.text("encoding") {
            Some("linear16") => PcmEncoding::S16Le,
            Some("mulaw") => PcmEncoding::MuLaw,
            Some("alaw") => PcmEncoding::ALaw,
            None => {
                let message =
                    "encoding is missing; containers are not read here, send linear16, mulaw or alaw";
                return Err(ApiError::invalid("encoding", message));
            }
            Some(other) => {
                let message =
                    format!("encoding '{}' is not supported; send linear16, mulaw or alaw", excerpt(other));
                return Err(ApiError::invalid("encoding", message));
            }
        };
        let missing =
            || ApiError::invalid("sample_rate", "sample_rate is missing; it is required with encoding");
        let rate_hz = self.number("sample_rate")?.ok_or_else(missing)?;
        check_range("sample_rate", rate_hz, &PcmInput::RATES_HZ)?;
        if self.number::<u32>("channels")?.is_some_and(|channels| channels != 1) {
            return Err(ApiError::invalid("channels", "only one channel is supported; send channels=1"));
        }
        Ok(PcmFormat { encoding, rate_hz })
    }

    /// A number.
    pub(super) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        // Some SDKs write whole numbers as `24000.0`.
        let read = |text: &str| text.strip_suffix(".0").unwrap_or(text).parse();
        let value = self.text(name).map(|text| read(text).map_err(|_| self.bad(name, text, "a number")));
        value.transpose()
    }

    /// What nothing has read so far, unless it is switched off.
    pub(super) fn ignored(&self) -> IgnoredFields {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ignored = IgnoredFields::default();
        for (name, value) in &self.pairs {
            if !read.contains(name) && !COMMON.contains(&name.as_str()) && !value.is_empty() && !is_off(value)
            {
                ignored.add(name);
            }
        }
        ignored
    }

    /// Refuses what is not supported, unless it is switched off.
    pub(super) fn refuse(&self, unsupported: &[&str]) -> Result<(), ApiError> {
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

fn is_off(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "false" | "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
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
        let refused = |name, value| params(&[(name, value)]).refuse(&["callback", "redact"]);
        assert!(refused("callback", "false").is_ok() && refused("other", "true").is_ok());
        assert_eq!(refused("callback", "true").unwrap_err().param(), Some("callback"));
        assert_eq!(refused("redact", "pii").unwrap_err().param(), Some("redact"));
    }

    #[test]
    fn what_nothing_reads_is_told() {
        let params = params(&[
            ("model", "m"),
            ("filler_words", "true"),
            ("diarize", "false"),
            ("tag", ""),
            ("search", "a"),
            ("ticket", "t"),
            ("search", "b"),
        ]);
        params.text("model");
        let mut expected = IgnoredFields::default();
        ["filler_words", "search"].iter().for_each(|name| expected.add(name));
        assert_eq!(params.ignored(), expected);
    }
}
