//! What is known of a request or a session at its end: sizes, times, names of models. The access log and the traces tell it.
//!
//! Knows no text, no audio, no key and no address. A record ends when its last handle is dropped: after the last byte of
//! a response, at the end of a session, or when the client leaves.

mod access_log;
mod body;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as _;
use izwi_core::engine::{Engine, FinishReason, RequestId, RequestStats};

use self::body::{CountedBody, Direction};
use crate::config::ServerConfig;
use crate::peer::{Client, Peer};
use crate::traces::RequestSpan;

tokio::task_local! {
    /// The record of the request or session that this task serves. The handlers, bodies and sessions of every dialect add
    /// to it; none of them passes it on.
    static CURRENT: RequestRecord;
}

/// The close code of a session whose connection was lost (<https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1>).
pub(crate) const CONNECTION_LOST: u16 = 1006;

/// In place of a method: a session that no HTTP request opened.
const SOCKET: &str = "TCP";

/// Handle to a record.
#[derive(Debug, Clone)]
pub struct RequestRecord(Arc<Record>);

#[derive(Debug)]
struct Record {
    origin: Origin,
    begun: Instant,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    findings: Mutex<Findings>,
    is_logged: bool,
    span: Option<RequestSpan>,
}

/// What is known of a request when it arrives.
#[derive(Debug)]
struct Origin {
    id: RequestId,
    method: &'static str,
    /// Template of the route, without values of the client.
    route: String,
    /// Class of the peer's address.
    peer: &'static str,
    is_probe: bool,
}

/// What becomes known of it later.
#[derive(Debug, Default)]
struct Findings {
    status: Option<u16>,
    /// Name of the model that was used last.
    model: Option<String>,
    /// Duration of the audio that was generated or transcribed.
    audio: Duration,
    generations: u64,
    finish_reason: Option<&'static str>,
    close_code: Option<u16>,
    /// Whether the whole response was taken, or the connection went to another session.
    is_complete: bool,
}

impl Findings {
    /// Whether they are of a session.
    fn is_session(&self, origin: &Origin) -> bool {
        self.status == Some(StatusCode::SWITCHING_PROTOCOLS.as_u16()) || origin.method == SOCKET
    }
}

impl RequestRecord {
    /// The record of a session that no WebSocket carries.
    pub fn of_session(config: &ServerConfig, id: RequestId, protocol: &'static str, peer: Peer) -> Self {
        let (route, peer) = (protocol.to_owned(), peer.class());
        let origin = Origin { id, method: SOCKET, route, peer, is_probe: false };
        Self::begin(config, origin, &HeaderMap::new())
    }

    /// The record of a request that has its id.
    pub(crate) fn of_request(config: &ServerConfig, request: &Request, is_probe: bool) -> Self {
        let extensions = request.extensions();
        let route = extensions.get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
        let origin = Origin {
            id: extensions.get::<RequestId>().cloned().unwrap_or_else(RequestId::random),
            method: known_method(request.method()),
            route: route.to_owned(),
            peer: extensions.get::<Client>().map_or("unknown", |client| client.peer.class()),
            is_probe,
        };
        Self::begin(config, origin, request.headers())
    }

    fn begin(config: &ServerConfig, origin: Origin, headers: &HeaderMap) -> Self {
        let traces = config.traces.as_ref().filter(|_| !origin.is_probe);
        let begun = Instant::now();
        let span = traces.map(|traces| traces.begin(origin.method, &origin.route, headers, begun));
        Self(Arc::new(Record {
            begun,
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            findings: Mutex::default(),
            is_logged: config.access_log,
            span,
            origin,
        }))
    }

    fn add(&self, direction: Direction, bytes: usize) {
        let counter = match direction {
            Direction::In => &self.0.bytes_in,
            Direction::Out => &self.0.bytes_out,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn responds(&self, status: StatusCode) {
        self.0.findings().status = Some(status.as_u16());
    }

    fn complete(&self) {
        self.0.findings().is_complete = true;
    }
}

impl Record {
    fn findings(&self) -> MutexGuard<'_, Findings> {
        // Its fields are set one by one, so that a panic leaves it whole.
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let findings = std::mem::take(&mut *self.findings());
        let was_left = !findings.is_complete && findings.close_code.is_none();
        let left = was_left.then(|| FinishReason::Cancelled.label());
        let findings = Findings { finish_reason: findings.finish_reason.or(left), ..findings };
        if self.is_logged {
            access_log::write(self, &findings);
        }
        if let Some(span) = &self.span {
            span.end(&self.origin.id, findings.status, findings.close_code);
        }
    }
}

/// Runs the rest of a request, which adds to its record.
pub(crate) async fn keep(record: RequestRecord, request: Request, next: Next) -> Response {
    let request = match request.body().is_end_stream() {
        true => request,
        false => request.map(|body| CountedBody::wrap(body, record.clone(), Direction::In)),
    };
    let response = within(Some(record.clone()), next.run(request)).await;
    record.responds(response.status());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // The session has the record.
        return response;
    }
    response.map(|body: Body| CountedBody::wrap(body, record, Direction::Out))
}

/// Runs `work`, which adds to the record, if there is one.
pub async fn within<F: Future>(record: Option<RequestRecord>, work: F) -> F::Output {
    match record {
        Some(record) => CURRENT.scope(record, work).await,
        None => work.await,
    }
}

/// The record of this task, for a task that continues its request.
pub fn current() -> Option<RequestRecord> {
    CURRENT.try_with(Clone::clone).ok()
}

/// A model is used.
pub(crate) fn uses_model(name: &str) {
    find(|findings| findings.model = Some(name.to_owned()));
}

/// A generation has ended, with `reason` for the client.
pub fn generated(engine: &Engine, stats: &RequestStats, reason: FinishReason) {
    let model = &engine.profile().model;
    find(|findings| {
        findings.model = Some(model.clone());
        findings.audio += stats.audio_duration;
        findings.generations += 1;
        findings.finish_reason = Some(reason.label());
    });
    with(|record| {
        if let Some(span) = &record.0.span {
            span.generated(model, stats, reason);
        }
    });
}

/// A message of a session came.
pub(crate) fn received(bytes: usize) {
    with(|record| record.add(Direction::In, bytes));
}

/// A message of a session went.
pub(crate) fn sent(bytes: usize) {
    with(|record| record.add(Direction::Out, bytes));
}

/// A connection of a session closed.
pub(crate) fn closed(code: u16) {
    find(|findings| findings.close_code = Some(code));
}

/// The connection of a session continues as that of another one.
pub(crate) fn handed_over() {
    find(|findings| findings.is_complete = true);
}

fn find(add: impl FnOnce(&mut Findings)) {
    with(|record| add(&mut record.0.findings()));
}

fn with(add: impl FnOnce(&RequestRecord)) {
    // Without a record nobody asks.
    let _ = CURRENT.try_with(add);
}

/// The method, if it is one that a route may have: others are text of the client.
fn known_method(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|known| method.as_str() == *known).unwrap_or("_OTHER")
}
