//! Downloads over HTTP. A download continues where an earlier attempt stopped.
//!
//! An incomplete piece is `<piece>.part`, with the server's entity tag, if any, in `<piece>.etag`. Knows no hash: the
//! caller verifies the bytes.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, header};
use ureq::typestate::WithoutBody;
use ureq::{Agent, RequestBuilder};

use crate::access::Access;
use crate::files::remove;
use crate::io_error::IoError;
use crate::progress::ProgressSink;
use crate::source_error::SourceError;

pub(super) const NOT_FOUND: u16 = 404;
/// An unreachable hub must fail soon, so that the next source gets its turn.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
pub(super) const MAX_ATTEMPTS: u32 = 5;
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(250);
/// An attempt that receives this many bytes resets the count of attempts.
const GOOD_ATTEMPT_BYTES: u64 = 1 << 20;
const BUFFER_BYTES: usize = 1 << 16;
/// Characters of an address that an error shows.
const MAX_SHOWN_CHARS: usize = 200;
const USER_AGENT: &str = concat!("izwi/", env!("CARGO_PKG_VERSION"));

/// One repository at one revision.
pub(super) struct Hub<'a> {
    pub(super) agent: Agent,
    pub(super) access: &'a Access,
    repo: &'a str,
    revision: &'a str,
    /// Whether the hub has answered a request.
    reached: Cell<bool>,
}

/// One download: a file or a part of one.
pub(super) struct Piece<'a> {
    /// Path in the repository.
    pub(super) path: &'a str,
    /// Bytes of the file's earlier pieces.
    pub(super) base: u64,
    /// Bytes of the whole file.
    pub(super) total: u64,
    /// Whether the file ends with this piece.
    pub(super) is_last: bool,
    /// Its name in progress messages.
    pub(super) label: &'a str,
}

/// A failed attempt.
enum Stopped {
    /// Another attempt may succeed.
    Retry(SourceError),
    /// Another attempt would fail too.
    Fail(SourceError),
}

impl From<IoError> for Stopped {
    fn from(error: IoError) -> Self {
        Self::Fail(error.into())
    }
}

impl Piece<'_> {
    fn limit(&self) -> u64 {
        self.total.saturating_sub(self.base)
    }

    /// Refuses a length that contradicts the stated one.
    fn check_length(&self, found: u64) -> Result<(), SourceError> {
        if found > self.limit() || (self.is_last && found != self.limit()) {
            let file = self.label.to_owned();
            return Err(SourceError::Size { file, expected: self.total, found: self.base + found });
        }
        Ok(())
    }
}

impl<'a> Hub<'a> {
    pub(super) fn new(access: &'a Access, repo: &'a str, revision: &'a str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(access.is_encrypted())
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(RESOLVE_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .user_agent(USER_AGENT)
            .build()
            .new_agent();
        Self { agent, access, repo, revision, reached: Cell::new(false) }
    }

    /// Sends a request. A hub that never answered is unreachable; a network error after that is one of the request.
    ///
    /// # Errors
    /// [`SourceError::Unreachable`] or [`SourceError::Request`].
    pub(super) fn send(
        &self,
        url: &str,
        request: RequestBuilder<WithoutBody>,
    ) -> Result<Response<ureq::Body>, SourceError> {
        let response = request.call().map_err(|error| self.network_error(url, error))?;
        self.reached.set(true);
        Ok(response)
    }

    fn network_error(&self, url: &str, error: ureq::Error) -> SourceError {
        if let ureq::Error::RequireHttpsOnly(target) = &error {
            return SourceError::Unencrypted { target: target.chars().take(MAX_SHOWN_CHARS).collect() };
        }
        let error = Box::new(error);
        match self.reached.get() {
            true => SourceError::Request { url: url.to_owned(), source: error },
            false => SourceError::Unreachable { endpoint: self.access.endpoint.clone(), cause: error },
        }
    }

    /// Downloads a piece to `target`. The result says whether it has bytes of an earlier pull.
    pub(super) fn download(
        &self,
        piece: &Piece<'_>,
        target: &Path,
        progress: &mut dyn ProgressSink,
    ) -> Result<bool, SourceError> {
        if target.exists() {
            return Ok(true);
        }
        if self.access.offline {
            return Err(SourceError::Offline);
        }
        let part = target.with_added_extension("part");
        let before = length(&part);
        let mut attempts = 0;
        loop {
            let start = length(&part);
            let stopped = match self.attempt(piece, &part, progress) {
                Ok(()) => break,
                Err(stopped) => stopped,
            };
            if length(&part) >= start + GOOD_ATTEMPT_BYTES {
                attempts = 0;
            }
            attempts += 1;
            match stopped {
                Stopped::Retry(error) if attempts < MAX_ATTEMPTS => {
                    progress.note(&format!("{}: {error}; retrying", piece.label));
                    thread::sleep(FIRST_WAIT * (1 << (attempts - 1)));
                }
                Stopped::Retry(error) | Stopped::Fail(error) => return Err(error),
            }
        }
        fs::rename(&part, target).map_err(IoError::at("rename", &part))?;
        remove(&part.with_extension("etag"))?;
        Ok(before > 0)
    }

    /// One request, from where `part` ends.
    fn attempt(
        &self,
        piece: &Piece<'_>,
        part: &Path,
        progress: &mut dyn ProgressSink,
    ) -> Result<(), Stopped> {
        let url = self.url(piece.path);
        let mut have = length(part);
        if have > 0 && piece.is_last && have == piece.limit() {
            return Ok(());
        }
        let etag_file = part.with_extension("etag");
        let mut request = self.agent.get(&url);
        if let Some(token) = self.access.bearer() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
            if let Ok(etag) = fs::read_to_string(&etag_file) {
                request = request.header(header::IF_RANGE, etag);
            }
        }
        let response = self.send(&url, request).map_err(|error| match error {
            error @ SourceError::Request { .. } => Stopped::Retry(error),
            error => Stopped::Fail(error),
        })?;
        match response.status().as_u16() {
            200 => {
                have = 0;
                save_etag(response.headers(), &etag_file)?;
            }
            206 if content_start(response.headers()) == Some(have) => {}
            206 | 416 => {
                remove(part)?;
                return Err(Stopped::Retry(status_error(&url, 416)));
            }
            status @ (408 | 429 | 500..=599) => return Err(Stopped::Retry(status_error(&url, status))),
            status => return Err(Stopped::Fail(status_error(&url, status))),
        }
        let mut file = open_part(part, have)?;
        progress.start(piece.label, piece.total);
        progress.advance(piece.base + have);
        let received = receive(response, &mut file, part, have, piece, progress);
        progress.finish();
        received.map_err(|error| match error {
            Broken::Network(error) => Stopped::Retry(self.network_error(&url, error)),
            Broken::Source(error) => Stopped::Fail(error),
        })
    }

    pub(super) fn url(&self, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(percent_encoded).collect();
        format!("{}/{}/resolve/{}/{}", self.access.endpoint, self.repo, self.revision, path.join("/"))
    }
}

/// Why a body was not received completely.
enum Broken {
    Network(ureq::Error),
    Source(SourceError),
}

/// Appends the response's body to `file`, which holds `have` bytes.
fn receive(
    mut response: Response<ureq::Body>,
    file: &mut File,
    path: &Path,
    mut have: u64,
    piece: &Piece<'_>,
    progress: &mut dyn ProgressSink,
) -> Result<(), Broken> {
    if let Some(rest) = response.body().content_length() {
        piece.check_length(have.saturating_add(rest)).map_err(Broken::Source)?;
    }
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = body.read(&mut buffer).map_err(|error| Broken::Network(error.into()))?;
        if read == 0 {
            break;
        }
        have += read as u64;
        if have > piece.limit() {
            piece.check_length(have).map_err(Broken::Source)?;
        }
        file.write_all(&buffer[..read])
            .map_err(|error| Broken::Source(IoError::at("write", path)(error).into()))?;
        progress.advance(read as u64);
    }
    if piece.is_last && have < piece.limit() {
        let closed = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        return Err(Broken::Network(closed.into()));
    }
    Ok(())
}

/// Opens the incomplete file for appending at `have` and removes the bytes after it.
fn open_part(part: &Path, have: u64) -> Result<File, IoError> {
    let open = || {
        let file = OpenOptions::new().create(true).append(true).open(part)?;
        file.set_len(have)?;
        Ok(file)
    };
    open().map_err(IoError::at("write", part))
}

/// Saves a strong entity tag. With it, a server that has another file later sends that file from its start.
fn save_etag(headers: &HeaderMap, path: &Path) -> Result<(), IoError> {
    let etag = headers.get(header::ETAG).and_then(|etag| etag.to_str().ok());
    match etag.filter(|etag| !etag.starts_with("W/")) {
        Some(etag) => fs::write(path, etag).map_err(IoError::at("write", path)),
        None => remove(path),
    }
}

/// First byte of the body of a partial answer: `bytes 5-9/10` gives 5.
fn content_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

pub(super) fn status_error(url: &str, status: u16) -> SourceError {
    let remedy = match status {
        401 | 403 => "accept the model's terms on its page and set HF_TOKEN to your token",
        404 => "the file is not there; check the manifest's repo, revision and path",
        416 => "the partial download of an earlier pull does not fit; it was removed",
        429 => "too many requests; wait and pull again",
        500..=599 => "the server failed; pull again later",
        _ => "check HF_ENDPOINT",
    };
    SourceError::Status { url: url.to_owned(), status, remedy }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// One segment of a URL's path. https://www.rfc-editor.org/rfc/rfc3986#section-2.3
fn percent_encoded(segment: &str) -> String {
    segment
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_encoded_by_segment() {
        let access = Access::resolve(|_| None);
        let hub = Hub::new(&access, "bird/lark", "main");
        assert_eq!(
            hub.url("sub dir/ä?.bin"),
            "https://huggingface.co/bird/lark/resolve/main/sub%20dir/%C3%A4%3F.bin"
        );
    }

    #[test]
    fn an_encrypted_hub_leads_to_no_unencrypted_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let target = format!("http://{}/blob", listener.local_addr().unwrap());
        let access = Access::resolve(|_| None);
        let hub = Hub::new(&access, "bird/lark", "main");
        let error = hub.send(&target, hub.agent.get(&target)).unwrap_err();
        assert!(
            matches!(&error, SourceError::Unencrypted { target: refused } if *refused == target),
            "{error}"
        );
        assert!(listener.accept().is_err(), "nothing connects");
    }

    #[test]
    fn content_ranges() {
        let start = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, value.parse().unwrap());
            content_start(&headers)
        };
        assert_eq!(start("bytes 5-9/10"), Some(5));
        assert_eq!(start("bytes */10"), None);
        assert_eq!(start("items 5-9/10"), None);
    }
}
