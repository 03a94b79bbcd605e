//! The HTTP client of the exporter. It runs on the exporter's own thread, and may block it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};

/// The most bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 << 10;

/// A collector. It logs when it stops to answer, and when it answers again, not each lost batch.
#[derive(Debug)]
pub(super) struct Collector {
    agent: ureq::Agent,
    is_failing: AtomicBool,
}

impl Collector {
    /// A client whose requests take at most `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            // The exporter looks at the status.
            .http_status_as_error(false)
            .build();
        Self { agent: config.into(), is_failing: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let response = self.agent.run(request.map(Vec::from))?;
        let (head, mut body) = response.into_parts();
        let bytes = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, bytes.into()))
    }

    fn report(&self, sent: &Result<Response<Bytes>, ureq::Error>) {
        let failure = match sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(reason) if !was_failing => {
                tracing::warn!(reason, "the collector of traces fails; spans are dropped until it answers");
            }
            None if was_failing => tracing::info!("the collector of traces answers again"),
            _ => {}
        }
    }
}

impl HttpClient for Collector {
    fn send_bytes<'client, 'call>(
        &'client self,
        request: Request<Bytes>,
    ) -> BoxFuture<'call, Result<Response<Bytes>, HttpError>>
    where
        'client: 'call,
        Self: 'call,
    {
        async move {
            let sent = self.send(request);
            self.report(&sent);
            Ok(sent?)
        }
        .boxed()
    }
}
