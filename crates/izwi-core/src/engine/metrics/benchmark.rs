//! Measurements of a caller: the time of one request, and the summary of many.
//!
//! Must not know the engine, which records its own requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{MetricsCollector, MetricsSnapshot};

/// The time of a request that no engine runs. An engine records its requests itself.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use izwi_core::engine::metrics::{MetricsCollector, RequestTimer};
///
/// let metrics = Arc::new(MetricsCollector::new("my-model"));
/// let timer = RequestTimer::start(metrics.clone());
/// // ... process request ...
/// # let (tokens_generated, audio_duration) = (25, Duration::from_secs(2));
/// timer.stop(tokens_generated, audio_duration);
/// assert_eq!(metrics.snapshot().total_tokens, 25);
/// ```
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Arc<MetricsCollector>,
    started_at: Instant,
}

impl RequestTimer {
    /// Starts the time of a request.
    pub fn start(metrics: Arc<MetricsCollector>) -> Self {
        Self { metrics, started_at: Instant::now() }
    }

    /// Records the request. A timer that is dropped instead records nothing.
    pub fn stop(self, tokens_generated: u64, audio_duration: Duration) {
        self.metrics.record_request(self.started_at.elapsed(), tokens_generated, audio_duration);
    }
}

/// What a benchmark measured: its wall time, and the metrics behind it.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use izwi_core::engine::metrics::MetricsCollector;
/// use izwi_core::engine::metrics::BenchmarkResult;
///
/// # let metrics = MetricsCollector::new("my-model");
/// # let num_requests = 2;
/// let start = Instant::now();
/// // Run benchmark...
/// # for _ in 0..2 {
/// #     metrics.record_request(Duration::from_millis(500), 25, Duration::from_secs(2));
/// # }
/// let duration = start.elapsed();
/// let snapshot = metrics.snapshot();
///
/// let result = BenchmarkResult::new(
///     "TTS Benchmark",
///     num_requests,
///     duration,
///     snapshot,
/// );
///
/// println!("{}", result.summary());
/// # assert!(result.summary().contains("p99 500.0 ms"), "{}", result.summary());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BenchmarkResult {
    /// Name of the benchmark.
    pub name: String,
    /// Requests that it made.
    pub num_requests: usize,
    /// Wall time of all of them.
    pub duration: Duration,
    /// Metrics after it.
    pub metrics: MetricsSnapshot,
}

impl BenchmarkResult {
    /// The result of `num_requests` requests in `duration`; `metrics` is the snapshot after them.
    pub fn new(
        name: impl Into<String>,
        num_requests: usize,
        duration: Duration,
        metrics: MetricsSnapshot,
    ) -> Self {
        Self { name: name.into(), num_requests, duration, metrics }
    }

    /// Requests per second of wall time; 0 without any time.
    pub fn requests_per_sec(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.num_requests as f64 / seconds } else { 0.0 }
    }

    /// The result in a few lines of text, without a line break at the end.
    pub fn summary(&self) -> String {
        let Self { name, num_requests, duration, metrics } = self;
        format!(
            "{name}: {num_requests} requests in {:.2} s\n  \
             throughput: {:.2} requests/s, {:.1} tokens/s\n  \
             latency: avg {:.1} ms, p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms\n  \
             audio: {:.2} s, RTF {:.3}",
            duration.as_secs_f64(),
            self.requests_per_sec(),
            metrics.avg_tokens_per_sec,
            metrics.avg_latency_ms,
            metrics.p50_latency_ms,
            metrics.p90_latency_ms,
            metrics.p99_latency_ms,
            metrics.total_audio.as_secs_f64(),
            metrics.avg_rtf
        )
    }
}
