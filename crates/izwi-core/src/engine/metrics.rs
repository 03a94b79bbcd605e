//! Metrics: Prometheus series, and a rolling window for snapshots with percentiles.
//!
//! The only file with metric macros. Names, labels and buckets are part of the public interface.

mod benchmark;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{
    SharedString, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use tokio::time::Instant;

use super::kv_cache::KVCacheStats;
use super::qos::playback::Underrun;
use super::scheduler::ScheduleResult;
use super::types::{FinishReason, RequestStats, rtf};
use izwi_types::Task;

pub use benchmark::{BenchmarkResult, RequestTimer};

/// Requests in the rolling window.
const WINDOW: usize = 1_000;

/// Upper bounds of each histogram's buckets.
pub const BUCKETS: &[(&str, &[f64])] = &[
    ("izwi_rtf", &[0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 5.0, 10.0]),
    ("izwi_time_to_first_audio_seconds", LATENCY),
    ("izwi_inter_chunk_seconds", SHORT),
    ("izwi_e2e_request_latency_seconds", LATENCY),
    ("izwi_request_queue_seconds", LATENCY),
    ("izwi_prefill_seconds", SHORT),
    ("izwi_step_seconds", SHORT),
    ("izwi_device_wait_seconds", SHORT),
    ("izwi_step_error_ratio", &[0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0]),
    ("izwi_predicted_first_audio_seconds", LATENCY),
    ("izwi_first_audio_error_seconds", SHORT),
    ("izwi_playback_slack_seconds", LATENCY),
    ("izwi_audio_gap_seconds", &[0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]),
    ("izwi_audio_pause_seconds", &[0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]),
    ("izwi_batch_size", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    ("izwi_audio_underrun_seconds", &[0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]),
];
const LATENCY: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
const SHORT: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Registers the help text of every series with the installed recorder.
pub fn describe() {
    describe_counter!("izwi_requests_total", "Requests that ended, by task, model and finish reason");
    describe_counter!("izwi_requests_rejected_total", "Requests rejected before they were queued");
    describe_gauge!("izwi_num_requests_running", "Sequences admitted");
    describe_gauge!("izwi_num_requests_waiting", "Sequences waiting for admission");
    describe_gauge!("izwi_kv_cache_usage_ratio", "Share of KV blocks held by sequences");
    describe_gauge!("izwi_kv_cache_blocks", "KV blocks by state: used, cached, free");
    describe_histogram!("izwi_rtf", "Processing time over audio time of a request");
    describe_histogram!("izwi_time_to_first_audio_seconds", "From acceptance until the first audio leaves");
    describe_histogram!("izwi_inter_chunk_seconds", "Between two chunks of a stream becoming available");
    describe_histogram!("izwi_e2e_request_latency_seconds", "From acceptance to the end");
    describe_histogram!("izwi_request_queue_seconds", "From acceptance to first execution");
    describe_histogram!("izwi_prefill_seconds", "Duration of steps that computed prompts");
    describe_histogram!("izwi_step_seconds", "Duration of steps, without waiting for the device");
    describe_histogram!("izwi_device_wait_seconds", "From a step being ready until it has the device");
    describe_histogram!("izwi_step_error_ratio", "Duration of steps over their predicted duration");
    describe_histogram!(
        "izwi_predicted_first_audio_seconds",
        "Predicted time to first audio of a live stream"
    );
    describe_histogram!(
        "izwi_first_audio_error_seconds",
        "Difference of predicted and actual time to first audio"
    );
    describe_histogram!("izwi_playback_slack_seconds", "Audio delivered and not played when a chunk leaves");
    describe_counter!(
        "izwi_audio_underruns_total",
        "Gaps in live streams, by cause: generation, reader, client"
    );
    describe_histogram!("izwi_audio_gap_seconds", "Length of a gap in a live stream, by cause");
    describe_histogram!("izwi_audio_pause_seconds", "Pauses of live streams that their clients were told");
    describe_histogram!("izwi_batch_size", "Sequences in a step");
    describe_counter!("izwi_audio_seconds_total", "Audio generated or transcribed");
    describe_counter!("izwi_prompt_tokens_total", "Tokens of prepared inputs");
    describe_counter!("izwi_generated_tokens_total", "Tokens generated");
    describe_histogram!(
        "izwi_audio_underrun_seconds",
        "Gaps in a live stream that was generated too late, in total"
    );
    describe_counter!("izwi_audio_continuity_ok_total", "Live streams without a gap that were not cut");
    describe_counter!("izwi_num_preemptions_total", "Preempted sequences");
    describe_counter!("izwi_prefix_cache_queries_total", "Prompt blocks looked up");
    describe_counter!("izwi_prefix_cache_hits_total", "Prompt blocks found");
    describe_counter!(
        "izwi_kv_swap_blocks_total",
        "KV blocks that were saved in files, and that came from there"
    );
    describe_gauge!("izwi_kv_swap_bytes", "Bytes of KV blocks in files");
    describe_counter!("izwi_preschedule_used_total", "Prescheduled steps that were executed");
    describe_counter!("izwi_preschedule_discarded_total", "Prescheduled steps that were discarded");
    describe_counter!("izwi_aborts_total", "Requests aborted, by cause");
    describe_gauge!(
        "izwi_upstream_up",
        "Whether a server of a remote model is asked, or rests after failures"
    );
    describe_gauge!("izwi_upstream_outstanding", "Requests open at a server of a remote model");
    describe_counter!("izwi_upstream_requests_total", "Requests to a server of a remote model, by outcome");
    describe_counter!("izwi_upstream_retries_total", "Requests sent again to a server of a remote model");
    describe_gauge!(
        "izwi_replica_up",
        "Whether a replica of a model on one of several devices takes requests"
    );
    describe_counter!("izwi_replica_requests_total", "Requests that a replica of a model took, by device");
    describe_counter!("izwi_device_faults_total", "Times that a GPU gave up its work and was opened anew");
    describe_gauge!("izwi_build_info", "Constant 1, labelled with version and device");
}

/// Sets `izwi_build_info`.
pub fn set_build_info(device: &str) {
    gauge!("izwi_build_info", "version" => env!("CARGO_PKG_VERSION"), "device" => device.to_owned()).set(1.0);
}

/// Counts that a device gave up the work of an engine.
pub(super) fn count_device_fault(device: &str) {
    counter!("izwi_device_faults_total", "device" => device.to_owned()).increment(1);
}

/// Counts a rejected request. `reason` is one of a fixed set of words.
pub fn count_rejection(reason: &'static str) {
    counter!("izwi_requests_rejected_total", "reason" => reason).increment(1);
}

/// Shows how many requests a server of a remote model has open, and whether it is asked. Servers have numbers from 0, in
/// the order of the configuration.
pub fn set_upstream(model: &str, upstream: usize, outstanding: usize, is_asked: bool) {
    let labels = [("model", model.to_owned()), ("upstream", upstream.to_string())];
    gauge!("izwi_upstream_outstanding", &labels).set(outstanding as f64);
    gauge!("izwi_upstream_up", &labels).set(u8::from(is_asked));
}

/// Counts a request to a server of a remote model. `outcome` is one of a fixed set of words.
pub fn count_upstream_request(model: &str, upstream: usize, outcome: &'static str) {
    let (model, upstream) = (model.to_owned(), upstream.to_string());
    counter!("izwi_upstream_requests_total", "model" => model, "upstream" => upstream, "outcome" => outcome)
        .increment(1);
}

/// Counts a request that one of several replicas of a model took.
pub(super) fn count_replica_request(model: &str, device: &str) {
    let labels = [("model", model.to_owned()), ("device", device.to_owned())];
    counter!("izwi_replica_requests_total", &labels).increment(1);
}

/// Shows whether a replica of a model takes requests.
pub(super) fn set_replica(model: &str, device: &str, is_up: bool) {
    let labels = [("model", model.to_owned()), ("device", device.to_owned())];
    gauge!("izwi_replica_up", &labels).set(u8::from(is_up));
}

/// Counts a request that is sent again, to the same server of a remote model or another.
pub fn count_upstream_retry(model: &str) {
    counter!("izwi_upstream_retries_total", "model" => model.to_owned()).increment(1);
}

/// Creates the counters of rare events at zero, so that rates over them include the first event.
fn announce(model: &SharedString) {
    for cause in ["client", "disconnect", "slow_client", "shutdown"] {
        counter!("izwi_aborts_total", "model" => model.clone(), "cause" => cause).increment(0);
    }
    for reason in [
        "invalid",
        "unsupported_task",
        "overloaded",
        "saturated",
        "upstream",
        "draining",
        "stopped",
        "internal",
    ] {
        counter!("izwi_requests_rejected_total", "reason" => reason).increment(0);
    }
    for cause in ["generation", "reader"] {
        counter!("izwi_audio_underruns_total", "model" => model.clone(), "cause" => cause).increment(0);
    }
    counter!("izwi_num_preemptions_total", "model" => model.clone()).increment(0);
    counter!("izwi_preschedule_used_total", "model" => model.clone()).increment(0);
    counter!("izwi_preschedule_discarded_total", "model" => model.clone()).increment(0);
    counter!("izwi_audio_continuity_ok_total", "model" => model.clone()).increment(0);
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    finished_at: Instant,
    latency: Duration,
    tokens: u64,
    audio: Duration,
}

/// Totals that the replicas of a model share.
#[derive(Debug)]
struct SharedTotals(Mutex<Totals>);

/// What [`MetricsSnapshot`] is made of: the rolling window and the totals.
#[derive(Debug)]
struct Totals {
    window: VecDeque<Sample>,
    started_at: Instant,
    requests: u64,
    tokens: u64,
    audio: Duration,
    processing: Duration,
}

impl Totals {
    fn new() -> Self {
        Self {
            window: VecDeque::with_capacity(WINDOW),
            started_at: Instant::now(),
            requests: 0,
            tokens: 0,
            audio: Duration::ZERO,
            processing: Duration::ZERO,
        }
    }

    fn record(&mut self, sample: Sample) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(sample);
        self.count(sample.latency, sample.tokens, sample.audio);
    }

    fn count(&mut self, latency: Duration, tokens: u64, audio: Duration) {
        self.requests += 1;
        self.tokens += tokens;
        self.audio += audio;
        self.processing += latency;
    }

    /// The window's statistics and the totals.
    fn snapshot(&self) -> MetricsSnapshot {
        let mut latencies: Vec<f64> = self.window.iter().map(|s| s.latency.as_secs_f64() * 1e3).collect();
        latencies.sort_by(f64::total_cmp);
        let rtfs: Vec<f32> =
            self.window.iter().filter(|s| !s.audio.is_zero()).map(|s| rtf(s.latency, s.audio)).collect();
        let busy = self.busy().as_secs_f64();
        let tokens: u64 = self.window.iter().map(|s| s.tokens).sum();
        // The window starts with its oldest request.
        let begin =
            self.window.front().map(|s| s.finished_at.checked_sub(s.latency).unwrap_or(s.finished_at));
        let span = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        // The sum of no floats is -0.0: adding 0.0 makes it positive.
        let mean = |values: &[f64]| (0.0 + values.iter().sum::<f64>()) / values.len().max(1) as f64;
        MetricsSnapshot {
            total_requests: self.requests,
            total_tokens: self.tokens,
            total_audio: self.audio,
            total_processing: self.processing,
            uptime: self.started_at.elapsed(),
            avg_latency_ms: mean(&latencies),
            p50_latency_ms: percentile(&latencies, 0.50),
            p90_latency_ms: percentile(&latencies, 0.90),
            p99_latency_ms: percentile(&latencies, 0.99),
            avg_rtf: (0.0 + rtfs.iter().sum::<f32>()) / rtfs.len().max(1) as f32,
            avg_tokens_per_sec: if busy > 0.0 { tokens as f64 / busy } else { 0.0 },
            requests_per_sec: if span > 0.0 { self.window.len() as f64 / span } else { 0.0 },
        }
    }

    /// Time in which some request of the window was open.
    fn busy(&self) -> Duration {
        let begin = |sample: &Sample| sample.finished_at.checked_sub(sample.latency);
        let mut open: Vec<(Instant, Instant)> = self
            .window
            .iter()
            .map(|sample| (begin(sample).unwrap_or(sample.finished_at), sample.finished_at))
            .collect();
        open.sort_unstable();
        let mut covered_until: Option<Instant> = None;
        let mut busy = Duration::ZERO;
        for (begin, end) in open {
            let begin = covered_until.map_or(begin, |until| begin.max(until));
            busy += end.saturating_duration_since(begin);
            covered_until = Some(covered_until.map_or(end, |until| until.max(end)));
        }
        busy
    }
}

/// Collects the metrics of one engine.
#[derive(Debug)]
pub struct MetricsCollector {
    model: SharedString,
    /// Where the model runs.
    device: SharedString,
    totals: Arc<SharedTotals>,
    prefix_seen: (u64, u64),
}

impl MetricsCollector {
    /// A collector whose series carry the label `model`.
    pub fn new(model: &str) -> Self {
        let model = SharedString::from_shared(Arc::from(model));
        announce(&model);
        let totals = Arc::new(SharedTotals(Mutex::new(Totals::new())));
        Self { model, device: SharedString::const_str(""), totals, prefix_seen: (0, 0) }
    }

    /// One of the same model on `device`, with the same window and totals.
    #[must_use]
    pub fn on(&self, device: &str) -> Self {
        let device = SharedString::from_shared(Arc::from(device));
        Self { model: self.model.clone(), device, totals: Arc::clone(&self.totals), prefix_seen: (0, 0) }
    }

    /// Ignores poisoning: every statement leaves the totals consistent.
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one request that was generated whole to the window and the totals.
    pub fn record_request(&self, latency: Duration, tokens_generated: u64, audio_duration: Duration) {
        let (finished_at, tokens, audio) = (Instant::now(), tokens_generated, audio_duration);
        self.totals().record(Sample { finished_at, latency, tokens, audio });
    }

    /// The window's statistics and the totals.
    pub fn snapshot(&self) -> MetricsSnapshot {
        self.totals().snapshot()
    }

    /// Resets everything but the Prometheus series.
    pub fn reset(&self) {
        *self.totals() = Totals::new();
    }

    pub(super) fn request_finished(&mut self, task: Task, stats: &RequestStats) {
        let (model, task) = (self.model.clone(), task.name());
        let reason = stats.finish_reason.label();
        let tokens = stats.generated_tokens as u64;
        let is_whole = !matches!(
            stats.finish_reason,
            FinishReason::Cancelled | FinishReason::Interrupted | FinishReason::Error
        );
        let (latency, audio) = (stats.generation_time, stats.audio_duration);
        let mut totals = self.totals();
        let before = totals.audio;
        if is_whole {
            totals.record(Sample { finished_at: Instant::now(), latency, tokens, audio });
        } else {
            // Its latency says nothing about the speed of a request.
            totals.count(latency, tokens, audio);
        }
        let after = totals.audio;
        drop(totals);
        counter!("izwi_requests_total", "task" => task, "model" => model.clone(), "finish_reason" => reason)
            .increment(1);
        histogram!("izwi_e2e_request_latency_seconds", "task" => task, "model" => model.clone())
            .record(stats.generation_time);
        if is_whole && !stats.audio_duration.is_zero() {
            histogram!("izwi_rtf", "task" => task, "model" => model.clone()).record(stats.rtf());
        }
        if let Some(ttfa) = stats.time_to_first_audio {
            histogram!("izwi_time_to_first_audio_seconds", "model" => model.clone()).record(ttfa);
        }
        counter!("izwi_prompt_tokens_total", "model" => model.clone()).increment(stats.prompt_tokens as u64);
        counter!("izwi_generated_tokens_total", "model" => model.clone())
            .increment(stats.generated_tokens as u64);
        // Counters are integers: the totals carry the fraction of a second.
        counter!("izwi_audio_seconds_total", "task" => task, "model" => model)
            .increment(after.as_secs() - before.as_secs());
    }

    pub(super) fn first_scheduled(&self, queue_time: Duration) {
        histogram!("izwi_request_queue_seconds", "model" => self.model.clone()).record(queue_time);
    }

    pub(super) fn chunk_gap(&self, gap: Duration) {
        histogram!("izwi_inter_chunk_seconds", "model" => self.model.clone()).record(gap);
    }

    pub(super) fn stream_continuity(&self, underrun: Duration, is_cut: bool) {
        if underrun.is_zero() && !is_cut {
            counter!("izwi_audio_continuity_ok_total", "model" => self.model.clone()).increment(1);
        }
        histogram!("izwi_audio_underrun_seconds", "model" => self.model.clone()).record(underrun);
    }

    /// Records the duration of a step compared with the predicted one.
    pub(super) fn step_error(&self, predicted: Duration, actual: Duration) {
        let ratio = actual.as_secs_f64() / predicted.as_secs_f64().max(1e-9);
        histogram!("izwi_step_error_ratio", "model" => self.model.clone()).record(ratio);
    }

    /// Records a gap that the next chunk ended.
    pub(super) fn underrun(&self, Underrun { cause, gap }: Underrun) {
        let (model, cause) = (self.model.clone(), cause.label());
        counter!("izwi_audio_underruns_total", "model" => model.clone(), "cause" => cause).increment(1);
        histogram!("izwi_audio_gap_seconds", "model" => model, "cause" => cause).record(gap);
    }

    /// Records the silence of a pause that a client was told.
    pub(super) fn paused(&self, length: Duration) {
        histogram!("izwi_audio_pause_seconds", "model" => self.model.clone()).record(length);
    }

    /// Records audio that was delivered and not played when a chunk left.
    pub(super) fn slack(&self, slack: Duration) {
        histogram!("izwi_playback_slack_seconds", "model" => self.model.clone()).record(slack);
    }

    /// Records the predicted time to the first audio of a live stream compared with the actual one.
    pub(super) fn first_audio(&self, predicted: Duration, actual: Duration) {
        let model = || self.model.clone();
        histogram!("izwi_predicted_first_audio_seconds", "model" => model()).record(predicted);
        let error = predicted.as_secs_f64() - actual.as_secs_f64();
        histogram!("izwi_first_audio_error_seconds", "model" => model()).record(error.abs());
    }

    pub(super) fn aborted(&self, cause: &'static str) {
        counter!("izwi_aborts_total", "model" => self.model.clone(), "cause" => cause).increment(1);
    }

    pub(super) fn prescheduled(&self, used: bool) {
        if used {
            counter!("izwi_preschedule_used_total", "model" => self.model.clone()).increment(1);
        } else {
            counter!("izwi_preschedule_discarded_total", "model" => self.model.clone()).increment(1);
        }
    }

    pub(super) fn step(&self, schedule: &ScheduleResult, waited: Duration, duration: Duration) {
        let model = || self.model.clone();
        histogram!("izwi_device_wait_seconds", "model" => model()).record(waited);
        histogram!("izwi_step_seconds", "model" => model()).record(duration);
        histogram!("izwi_batch_size", "model" => model()).record(schedule.batch_size() as f64);
        if !schedule.prefill_requests.is_empty() {
            histogram!("izwi_prefill_seconds", "model" => model()).record(duration);
        }
        counter!("izwi_num_preemptions_total", "model" => model())
            .increment(schedule.preempted_requests.len() as u64);
    }

    pub(super) fn gauges(&mut self, waiting: usize, running: usize, kv: &KVCacheStats) {
        let model = || self.model.clone();
        let labels = [("model", self.model.clone()), ("device", self.device.clone())];
        gauge!("izwi_num_requests_waiting", &labels).set(waiting as f64);
        gauge!("izwi_num_requests_running", &labels).set(running as f64);
        gauge!("izwi_kv_cache_usage_ratio", &labels).set(kv.utilization());
        let [model_label, device] = &labels;
        for (state, blocks) in
            [("used", kv.used_blocks), ("cached", kv.cached_blocks), ("free", kv.free_blocks)]
        {
            let state = ("state", SharedString::const_str(state));
            gauge!("izwi_kv_cache_blocks", &[model_label.clone(), device.clone(), state]).set(blocks as f64);
        }
        let (queries, hits) = self.prefix_seen;
        counter!("izwi_prefix_cache_queries_total", "model" => model())
            .increment(kv.prefix_queries - queries);
        counter!("izwi_prefix_cache_hits_total", "model" => model()).increment(kv.prefix_hits - hits);
        self.prefix_seen = (kv.prefix_queries, kv.prefix_hits);
    }

    /// Counts blocks that went to files and that came back; the files have `bytes` now.
    pub(super) fn swapped(&self, saved: usize, restored: usize, bytes: u64) {
        for (way, blocks) in [("saved", saved), ("restored", restored)] {
            let labels = [("model", self.model.clone()), ("way", SharedString::const_str(way))];
            counter!("izwi_kv_swap_blocks_total", &labels).increment(blocks as u64);
        }
        gauge!("izwi_kv_swap_bytes", "model" => self.model.clone()).set(bytes as f64);
    }
}

/// Nearest-rank percentile `q` of ascending `values`; 0 without values.
fn percentile(values: &[f64], q: f64) -> f64 {
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Statistics over the last requests, and totals.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MetricsSnapshot {
    /// Requests finished since the start.
    pub total_requests: u64,
    /// Tokens they generated.
    pub total_tokens: u64,
    /// Audio they generated or transcribed.
    pub total_audio: Duration,
    /// Sum of their latencies.
    pub total_processing: Duration,
    /// Since the start.
    pub uptime: Duration,
    /// Mean latency in the window.
    pub avg_latency_ms: f64,
    /// Median latency.
    pub p50_latency_ms: f64,
    /// 90th percentile.
    pub p90_latency_ms: f64,
    /// 99th percentile.
    pub p99_latency_ms: f64,
    /// Mean processing time over audio time.
    pub avg_rtf: f32,
    /// Tokens per second in which some request was open.
    pub avg_tokens_per_sec: f64,
    /// Finished requests per second of wall time.
    pub requests_per_sec: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank_over_the_window() {
        let metrics = MetricsCollector::new("m");
        for ms in 1..=100u64 {
            metrics.record_request(Duration::from_millis(ms), 10, Duration::from_millis(2 * ms));
        }
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.p50_latency_ms, 50.0);
        assert_eq!(snapshot.p90_latency_ms, 90.0);
        assert_eq!(snapshot.p99_latency_ms, 99.0);
        assert!((snapshot.avg_latency_ms - 50.5).abs() < 1e-6);
        assert!((snapshot.avg_rtf - 0.5).abs() < 1e-6);
        assert!((snapshot.avg_tokens_per_sec - 10_000.0).abs() < 100.0, "{}", snapshot.avg_tokens_per_sec);
    }

    #[test]
    fn tokens_per_second_count_time_once_and_aborted_requests_leave_no_trace_in_the_window() {
        let mut metrics = MetricsCollector::new("m");
        // Ten at once.
        for _ in 0..10 {
            metrics.record_request(Duration::from_secs(2), 100, Duration::from_secs(4));
        }
        let stats = RequestStats {
            finish_reason: FinishReason::Cancelled,
            error: None,
            seed: 0,
            prompt_tokens: 1,
            generated_tokens: 1,
            samples: 0,
            audio_duration: Duration::from_millis(80),
            accepted_at: Instant::now(),
            prepare_time: Duration::ZERO,
            queue_time: Duration::ZERO,
            generation_time: Duration::from_secs(60),
            time_to_first_output: None,
            time_to_first_audio: None,
        };
        metrics.request_finished(Task::Tts, &stats);
        let snapshot = metrics.snapshot();
        assert!((snapshot.avg_tokens_per_sec - 500.0).abs() < 5.0, "{}", snapshot.avg_tokens_per_sec);
        assert!((snapshot.avg_rtf - 0.5).abs() < 1e-6 && snapshot.p99_latency_ms <= 2_000.0);
        assert_eq!(snapshot.total_requests, 11);
    }

    #[test]
    fn the_window_rolls_and_totals_stay() {
        let metrics = MetricsCollector::new("m");
        for _ in 0..WINDOW {
            metrics.record_request(Duration::from_secs(9), 1, Duration::ZERO);
        }
        for _ in 0..WINDOW {
            metrics.record_request(Duration::from_millis(1), 1, Duration::from_secs(1));
        }
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.p99_latency_ms, 1.0);
        assert_eq!(snapshot.total_requests, 2 * WINDOW as u64);
        metrics.reset();
        assert_eq!(metrics.snapshot().total_requests, 0);
    }

    #[test]
    fn an_empty_snapshot_is_zeros() {
        let snapshot = MetricsCollector::new("m").snapshot();
        assert_eq!((snapshot.p99_latency_ms, snapshot.avg_rtf, snapshot.requests_per_sec), (0.0, 0.0, 0.0));
    }
}
