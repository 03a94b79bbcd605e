//! What a server answers before its first byte of content: its status, its content type, or that nothing came.
//!
//! Knows no task. What a server wrote is repeated to the client in part, and never logged: it may repeat the text.

use std::time::Duration;

use izwi_core::engine::RemoteError;
use izwi_types::bounded;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use tokio::time::Instant;

use crate::upstreams::Outcome;

/// The most bytes that are read of an error.
const MAX_ERROR_BYTES: usize = 16 << 10;
/// The most characters of a server's message that reach a client.
const MAX_MESSAGE_CHARS: usize = 300;
/// The fewest bytes per second of a transcript that is being sent, besides pauses.
const MIN_BYTES_PER_S: f64 = 1_024.0;
/// Suggested time until a retry where the server tells none.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// A request that failed before its first byte.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) error: RemoteError,
    pub(crate) outcome: Outcome,
    /// Whether another try may help, after this pause where it goes to the same server.
    pub(crate) retry: Option<Duration>,
    /// What the log says: nothing that the server wrote.
    pub(crate) reason: String,
}

impl Fault {
    /// The server did not keep to the protocol: another try would find the same.
    pub(crate) fn failed(model: &str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let error = RemoteError::Failed(format!("a server of model '{model}' {reason}"));
        Self { error, outcome: Outcome::Failed, retry: None, reason }
    }

    /// The server could not be reached or cannot work now.
    fn unavailable(model: &str, reason: String) -> Self {
        let message = format!("a server of model '{model}' {reason}; try again shortly");
        let error = RemoteError::Unavailable { message, retry_after: DEFAULT_RETRY };
        Self { error, outcome: Outcome::Failed, retry: Some(Duration::ZERO), reason }
    }

    /// Nothing came back.
    pub(crate) fn network(model: &str, error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Self::failed(model, "cannot be asked: the request cannot be built");
        }
        if is_tls(error) {
            let reason =
                format!("cannot be reached safely{}; check base_url and the certificates", cause(error));
            return Self::failed(model, reason);
        }
        let what =
            if error.is_connect() { "cannot be reached" } else { "closed the connection without an answer" };
        Self::unavailable(model, format!("{what}{}", cause(error)))
    }
}

/// Whether encryption failed: a certificate is not trusted, or the server does not speak TLS.
fn is_tls(error: &reqwest::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<rustls::Error>() {
            return true;
        }
        // An I/O error passes over what it wraps.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        source = wrapped.map(|inner| inner as &dyn std::error::Error).or_else(|| error.source());
    }
    false
}

/// The innermost cause of a network error, which has no text of a request.
fn cause(error: &reqwest::Error) -> String {
    let mut source = std::error::Error::source(error);
    let mut last = None;
    while let Some(error) = source {
        last = Some(error);
        source = error.source();
    }
    last.map_or_else(String::new, |cause| format!(" ({cause})"))
}

/// Passes a success on, and reads why a request was refused.
pub(crate) async fn check_status(model: &str, response: Response) -> Result<Response, Fault> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let asked_pause = retry_after(response.headers());
    let told = read_error(response).await.map(|text| format!(": {text}")).unwrap_or_default();
    let code = status.as_u16();
    let reason = format!("answers {code}");
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let message = format!("a server of model '{model}' refuses the key ({code}); check its api_key");
            Fault { error: RemoteError::Failed(message), outcome: Outcome::Refused, retry: None, reason }
        }
        StatusCode::TOO_MANY_REQUESTS => {
            let retry_after = asked_pause.unwrap_or(DEFAULT_RETRY);
            let seconds = retry_after.as_secs_f64().ceil();
            let message = format!("the servers of model '{model}' are busy; try again in {seconds:.0} s");
            let error = RemoteError::Busy { message, retry_after };
            Fault { error, outcome: Outcome::Busy, retry: Some(retry_after), reason }
        }
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            let mut fault = Fault::unavailable(model, reason);
            if let (Some(pause), RemoteError::Unavailable { retry_after, .. }) =
                (asked_pause, &mut fault.error)
            {
                *retry_after = pause;
                fault.retry = Some(pause);
            }
            fault
        }
        _ if status.is_client_error() => {
            let message = format!("a server of model '{model}' refuses the request ({code}){told}");
            Fault { error: RemoteError::Refused(message), outcome: Outcome::Refused, retry: None, reason }
        }
        _ if status.is_redirection() => {
            Fault::failed(model, format!("redirects ({code}), which is not followed; set its base_url"))
        }
        _ => Fault {
            error: RemoteError::Failed(format!("a server of model '{model}' answers {code}{told}")),
            ..Fault::failed(model, reason)
        },
    })
}

/// `Retry-After` in seconds; a date counts as none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(86_400)))
}

/// The media type without its parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// The first `limit` bytes of a body.
pub(crate) async fn read_some(response: Response, limit: usize) -> Result<Vec<u8>, reqwest::Error> {
    let (mut response, mut bytes) = (response, Vec::new());
    while bytes.len() < limit
        && let Some(more) = response.chunk().await?
    {
        bytes.extend_from_slice(&more[..more.len().min(limit - bytes.len())]);
    }
    Ok(bytes)
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub(crate) enum Stop {
    Network(reqwest::Error),
    Slow(Duration),
}

impl Stop {
    pub(crate) fn fault(self, model: &str) -> Fault {
        match self {
            Self::Network(error) => Fault::network(model, &error),
            Self::Slow(limit) => Fault::failed(model, format!("sent too little for {} s", limit.as_secs())),
        }
    }
}

/// As [`read_some`], of a server that neither pauses for `idle` nor sends slower than [`MIN_BYTES_PER_S`] for that long.
pub(crate) async fn read_within(
    mut response: Response,
    limit: usize,
    idle: Duration,
) -> Result<Vec<u8>, Stop> {
    let (mut bytes, mut patience) = (Vec::new(), Patience::new(idle));
    while bytes.len() < limit {
        let chunk = patience.wait(response.chunk()).await.ok_or(Stop::Slow(idle))?;
        let Some(more) = chunk.map_err(Stop::Network)? else { break };
        patience.earn(Duration::from_secs_f64(more.len() as f64 / MIN_BYTES_PER_S));
        bytes.extend_from_slice(&more[..more.len().min(limit - bytes.len())]);
    }
    Ok(bytes)
}

/// How long a server is waited for: no longer than a limit for anything, and what it sends earns more time. One that drips
/// bytes uses it up.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    left: Duration,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, left: limit }
    }

    /// Waits for something; `None` once the time is used up.
    pub(crate) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let came = tokio::time::timeout(self.left, what).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        came.ok()
    }

    /// Adds time for something that came.
    pub(crate) fn earn(&mut self, time: Duration) {
        self.left = self.left.saturating_add(time).min(self.limit);
    }
}

/// The message of an error body, in part.
async fn read_error(response: Response) -> Option<String> {
    let body = read_some(response, MAX_ERROR_BYTES).await.ok()?;
    let text = message(&body).unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
    Some(bounded(text.trim(), MAX_MESSAGE_CHARS)).filter(|text| !text.is_empty())
}

#[derive(Deserialize)]
struct ErrorBody {
    error: Option<ErrorValue>,
    message: Option<String>,
    detail: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorValue {
    Object { message: String },
    Text(String),
}

/// The message of the error forms of OpenAI, vLLM and FastAPI.
fn message(body: &[u8]) -> Option<String> {
    let body: ErrorBody = serde_json::from_slice(body).ok()?;
    let error = body.error.map(|error| match error {
        ErrorValue::Object { message } | ErrorValue::Text(message) => message,
    });
    let detail = |detail: serde_json::Value| match detail {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    error.or(body.message).or_else(|| body.detail.map(detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_known_error_forms_are_found() {
        for (body, expected) in [
            (r#"{"error": {"message": "no such voice", "type": "x"}}"#, Some("no such voice")),
            (r#"{"error": "no such voice"}"#, Some("no such voice")),
            (r#"{"object": "error", "message": "no such voice", "code": 400}"#, Some("no such voice")),
            (r#"{"detail": "no such voice"}"#, Some("no such voice")),
            (r#"{"detail": [{"loc": ["voice"]}]}"#, Some(r#"[{"loc":["voice"]}]"#)),
            ("<html>", None),
        ] {
            assert_eq!(message(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
