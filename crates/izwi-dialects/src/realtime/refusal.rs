//! Why an event of the Realtime API was refused.

use izwi_server::ApiError;
use serde::Serialize;

/// Why an event was refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Refusal {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) param: Option<String>,
    /// The error of this server that it tells, if it is one.
    #[serde(skip)]
    source: Option<Box<ApiError>>,
}

impl Refusal {
    /// An event that cannot be used, with a code of the Realtime API.
    pub(super) fn coded(code: &'static str, param: Option<&str>, message: impl Into<String>) -> Self {
        let param = param.map(str::to_owned);
        Self { kind: "invalid_request_error", code, message: message.into(), param, source: None }
    }

    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::coded("invalid_value", Some(param), message)
    }

    /// The refusal of something that this server does not do.
    pub(super) fn unsupported(param: &str, what: &str) -> Self {
        Self::invalid(param, format!("{param} is not supported here: {what}"))
    }

    /// The same of a value in another place: `place` takes the place of `of`.
    pub(super) fn within(mut self, of: &str, place: &str) -> Self {
        let param = self.param.take();
        if let Some(rest) = param.as_deref().and_then(|param| param.strip_prefix(of)) {
            self.message = self.message.replace(&format!("{of}{rest}"), &format!("{place}{rest}"));
            self.param = Some(format!("{place}{rest}"));
        } else {
            self.param = param;
        }
        self
    }

    /// The same as an error of a route.
    pub(super) fn into_error(self) -> ApiError {
        match self.source {
            Some(error) => *error,
            None => ApiError::invalid(self.param.as_deref().unwrap_or_default(), self.message),
        }
    }

    /// Counts it in the metrics.
    pub(super) fn count(&self) {
        match &self.source {
            Some(error) => error.count(),
            None => ApiError::invalid(self.param.as_deref().unwrap_or_default(), "").count(),
        }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let body = error.envelope().error;
        let (kind, code, message, param) = (body.kind, body.code, body.message, body.param);
        Self { kind, code, message, param, source: Some(Box::new(error)) }
    }
}
