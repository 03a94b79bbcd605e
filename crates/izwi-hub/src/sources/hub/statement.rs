//! The hash and the length that the hub states for a file, for files whose hash the manifest does not have.
//!
//! The hub states the SHA-256 of large files and the git id of small ones, before it redirects to the storage.
//! <https://huggingface.co/docs/hub/storage-backends>

use std::thread;

use ureq::http::{HeaderMap, header};

use super::download::{FIRST_WAIT, Hub, MAX_ATTEMPTS, status_error};
use crate::source_error::SourceError;

const MAX_REDIRECTS: usize = 5;
const SHA256_DIGITS: usize = 64;
const GIT_DIGITS: usize = 40;

/// A hash of a file's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hash {
    /// SHA-256, in lower-case hex.
    Sha256(String),
    /// The git id of a blob, in lower-case hex.
    GitBlob(String),
}

/// Hash and length of a file, as the hub states them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) hash: Hash,
    pub(super) size: u64,
}

impl Hub<'_> {
    /// Requests hash and length of the file at `path`.
    pub(super) fn statement(&self, path: &str) -> Result<Statement, SourceError> {
        if self.access.offline {
            return Err(SourceError::Offline);
        }
        let mut attempts = 1;
        loop {
            match self.request_statement(path) {
                Err(error) if attempts < MAX_ATTEMPTS && is_temporary(&error) => {
                    thread::sleep(FIRST_WAIT * (1 << (attempts - 1)));
                    attempts += 1;
                }
                answer => return answer,
            }
        }
    }

    fn request_statement(&self, path: &str) -> Result<Statement, SourceError> {
        let mut url = self.url(path);
        let no_hash = || SourceError::NoHash { file: path.to_owned() };
        for _ in 0..MAX_REDIRECTS {
            let mut request = self.agent.head(&url).config().max_redirects(0).build();
            if let Some(token) = self.access.bearer() {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = self.send(&url, request)?;
            let status = response.status().as_u16();
            let headers = response.headers();
            match status {
                200..=399 if headers.contains_key("x-linked-etag") => {
                    return read_headers(headers).ok_or_else(no_hash);
                }
                200 => return read_headers(headers).ok_or_else(no_hash),
                300..=399 => {
                    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
                    url = location.and_then(|location| self.own_address(location)).ok_or_else(no_hash)?;
                }
                status => return Err(status_error(&url, status)),
            }
        }
        Err(no_hash())
    }

    /// The address that a redirect names, if it is on the hub's own host. No other host may state a hash.
    fn own_address(&self, location: &str) -> Option<String> {
        let endpoint = &self.access.endpoint;
        let (scheme, rest) = endpoint.split_once("://")?;
        let origin = format!("{scheme}://{}", rest.split('/').next()?);
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(format!("{origin}{location}"));
        }
        location.starts_with(&format!("{origin}/")).then(|| location.to_owned())
    }
}

/// Whether another attempt may succeed.
fn is_temporary(error: &SourceError) -> bool {
    match error {
        SourceError::Request { .. } => true,
        SourceError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
        _ => false,
    }
}

/// Reads hash and length from response headers; `None` if one is absent or malformed.
fn read_headers(headers: &HeaderMap) -> Option<Statement> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let tag = text("x-linked-etag").or_else(|| text("etag"))?;
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    let is_hex = tag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let hash = match tag.len() {
        SHA256_DIGITS if is_hex => Hash::Sha256(tag.to_owned()),
        GIT_DIGITS if is_hex => Hash::GitBlob(tag.to_owned()),
        _ => return None,
    };
    let size = text("x-linked-size").or_else(|| text("content-length"))?.parse().ok()?;
    Some(Statement { hash, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;

    #[test]
    fn only_valid_hashes_are_accepted() {
        let of = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            read_headers(&headers)
        };
        let (sha, git) = ("0a".repeat(32), "0b".repeat(20));
        let quoted = format!("\"{sha}\"");
        let large = of(&[
            ("x-linked-etag", &quoted),
            ("x-linked-size", "7"),
            ("etag", "\"x\""),
            ("content-length", "3"),
        ]);
        assert_eq!(large, Some(Statement { hash: Hash::Sha256(sha.clone()), size: 7 }));
        let weak = format!("W/\"{git}\"");
        let small = of(&[("etag", &weak), ("content-length", "3")]);
        assert_eq!(small, Some(Statement { hash: Hash::GitBlob(git), size: 3 }));
        assert_eq!(of(&[("etag", "\"5f-60\""), ("content-length", "3")]), None);
        assert_eq!(of(&[("etag", &sha.to_uppercase()), ("content-length", "3")]), None);
        assert_eq!(of(&[("etag", &sha)]), None, "no size");
    }

    #[test]
    fn redirects_to_other_hosts_are_refused() {
        let access = Access::resolve(|name| (name == "HF_ENDPOINT").then(|| "http://mirror/base".to_owned()));
        let hub = Hub::new(&access, "bird/lark", "main");
        assert_eq!(hub.own_address("/moved/a").as_deref(), Some("http://mirror/moved/a"));
        assert_eq!(hub.own_address("http://mirror/b").as_deref(), Some("http://mirror/b"));
        for elsewhere in ["//evil/a", "http://mirror.evil/a", "https://mirror/a", "moved"] {
            assert_eq!(hub.own_address(elsewhere), None, "{elsewhere}");
        }
    }
}
