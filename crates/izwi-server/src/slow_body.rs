//! The least rate of request bodies: a client that sends its body drop by drop must not hold a place for minutes.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::state::AppState;

/// How long a body may pause, at first and after enough bytes.
const CREDIT: Duration = Duration::from_secs(10);

/// The body came too slowly.
#[derive(Debug, thiserror::Error)]
#[error("body comes too slowly")]
pub(crate) struct SlowBody;

/// Whether an error of reading a body is that it came too slowly.
pub(crate) fn is_slow(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<SlowBody>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Middleware: fails a body that comes more slowly than the configured rate.
pub(crate) async fn demand_progress(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let rate = state.config().min_body_rate;
    if rate == 0 || request.body().is_end_stream() {
        return next.run(request).await;
    }
    next.run(request.map(|body| Body::new(PacedBody::new(body, rate)))).await
}

/// A body that must come at a rate. Waiting for the client spends credit, bytes earn it back; the time in which the server
/// does not read costs nothing.
struct PacedBody {
    body: Body,
    bytes_per_s: u64,
    credit: Duration,
    /// Since when it waits for the client, and the timer of its credit.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl PacedBody {
    fn new(body: Body, bytes_per_s: u64) -> Self {
        Self { body, bytes_per_s, credit: CREDIT, waiting: None }
    }

    /// Settles the credit when `bytes` have arrived.
    fn received(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.credit = self.credit.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.credit = self.credit.saturating_add(earned).min(CREDIT);
    }
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(context) {
            let bytes = polled.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
            self.received(bytes.unwrap_or(0));
            return Poll::Ready(polled);
        }
        let credit = self.credit;
        let (_, timer) =
            self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(credit))));
        timer.as_mut().poll(context).map(|()| Some(Err(axum::Error::new(SlowBody))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::config::ServerConfig;
    use crate::dialect::Dialects;
    use crate::metrics::Recorder;
    use crate::registry::{Registry, RegistryConfig};
    use crate::routes::router;

    const RATE: u64 = 1_024;

    /// Reads a body of `chunks` of `bytes`, one per `pause` of simulated time. Returns how many bytes arrived, and whether it
    /// failed as too slow.
    async fn read(chunks: usize, bytes: usize, pause: Duration) -> (usize, bool) {
        let stream = futures::stream::iter(0..chunks).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, std::convert::Infallible>(Bytes::from(vec![0; bytes]))
        });
        let mut body = PacedBody::new(Body::from_stream(stream), RATE);
        let mut arrived = 0;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => arrived += frame.into_data().unwrap_or_default().len(),
                Err(error) => return (arrived, is_slow(&error)),
            }
        }
        (arrived, false)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_fails_when_its_credit_is_spent() {
        let (arrived, is_slow) = read(300, 1, Duration::from_secs(1)).await;
        assert!(is_slow && arrived <= 10, "{arrived} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_at_the_rate_passes_and_may_pause_within_its_credit() {
        assert_eq!(read(300, 1_024, Duration::from_secs(1)).await, (300 * 1_024, false));
        assert_eq!(read(10, 10 * 1_024, Duration::from_secs(9)).await, (100 * 1_024, false));
    }

    #[tokio::test(start_paused = true)]
    async fn many_bytes_earn_no_long_pause() {
        assert_eq!(read(2, 1 << 20, Duration::from_secs(11)).await, (0, true));
        let stream =
            futures::stream::iter([Bytes::from(vec![0; 1 << 20])]).map(Ok::<_, std::convert::Infallible>);
        let stream = stream.chain(futures::stream::pending());
        let mut body = PacedBody::new(Body::from_stream(stream), RATE);
        assert!(body.frame().await.unwrap().is_ok());
        let begun = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(begun.elapsed().as_secs(), CREDIT.as_secs(), "in simulated time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_reads_slowly_costs_the_client_nothing() {
        let chunks =
            futures::stream::iter((0..10).map(|_| Ok::<_, std::convert::Infallible>(Bytes::from("x"))));
        let mut body = PacedBody::new(Body::from_stream(chunks), RATE);
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(body.frame().await.unwrap().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_drips_is_refused_long_before_its_time_limit() {
        let registry = Registry::new(RegistryConfig::new("m"));
        let config = ServerConfig { body_timeout: Duration::from_secs(300), ..Default::default() };
        let state = AppState::new(config, registry, Recorder::install().unwrap(), None);
        let service = TowerToHyperService::new(router(state, Dialects::default()));
        for (path, kind) in [
            ("/v1/audio/transcriptions", "application/json"),
            ("/v1/audio/transcriptions", "multipart/form-data; boundary=x"),
            ("/v1/audio/speech", "application/json"),
        ] {
            let drip = futures::stream::repeat(Bytes::from(" ")).then(|byte| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, std::convert::Infallible>(byte)
            });
            let request = Request::post(path).header("host", "localhost").header("content-type", kind);
            let begun = Instant::now();
            let response = service.call(request.body(Body::from_stream(drip)).unwrap()).await.unwrap();
            assert_eq!((response.status().as_u16(), begun.elapsed().as_secs()), (408, 10), "{path} {kind}");
        }
    }
}
