//! Error envelopes for requests that the HTTP library refuses itself: heads that are malformed or too large.
//!
//! The library answers these before any route, with a status and no body. It offers no hook, so the bytes of such an answer are
//! replaced on their way to the socket. Knows no route and no socket.

use izwi_core::engine::metrics;

use crate::dto::error::{ErrorBody, ErrorEnvelope};
use crate::middleware::REQUEST_ID;

/// The most bytes of an answer of the library.
const MAX_BARE: usize = 256;

/// The answer to send in place of `bytes`, if they are an answer of the library. Answers of routes differ: each has a request
/// id.
pub(crate) fn replacement(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() > MAX_BARE || !bytes.starts_with(b"HTTP/1.") || !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.to_ascii_lowercase();
    let (line, headers) = head.split_once("\r\n")?;
    if headers.contains(REQUEST_ID) || !headers.contains("content-length: 0\r\n") {
        return None;
    }
    let (phrase, message, code) = match line.split(' ').nth(1)? {
        "400" => (
            "400 Bad Request",
            "request is not valid HTTP/1.1; check its first line and its headers",
            "malformed_request",
        ),
        "414" => ("414 URI Too Long", "path and query are too long; send values in the body", "uri_too_long"),
        "431" => (
            "431 Request Header Fields Too Large",
            "request has too many or too large headers; send less",
            "headers_too_large",
        ),
        _ => return None,
    };
    metrics::count_rejection("malformed");
    let kind = "invalid_request_error";
    let body = ErrorBody { message: message.to_owned(), kind, param: None, code };
    let body = serde_json::to_string(&ErrorEnvelope { error: body }).ok()?;
    let head = format!(
        "HTTP/1.1 {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Some((head + &body).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_without_a_body_and_an_id_are_replaced() {
        let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let replaced = String::from_utf8(replacement(bare).unwrap()).unwrap();
        let (head, body) = replaced.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "malformed_request");
        for other in [
            "HTTP/1.1 400 Bad Request\r\nx-request-id: req-1\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nmore",
            "audio",
            "",
        ] {
            assert_eq!(replacement(other.as_bytes()), None, "{other}");
        }
    }
}
