//! Health, readiness and version.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Probe {
    /// `alive` or `ready`.
    pub(crate) status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(schema_with = schemas::health_status)]
    pub(crate) status: &'static str,
    /// Why it is not `ok`.
    pub(crate) reason: Option<String>,
    pub(crate) version: &'static str,
    pub(crate) uptime_s: u64,
    pub(crate) requests_open: usize,
    pub(crate) sessions_open: usize,
    pub(crate) memory: MemoryUse,
    pub(crate) models: BTreeMap<String, ModelHealth>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryUse {
    /// What models and recordings may take together; absent without a limit.
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) models_bytes: u64,
    /// Uploads, decoded audio, and audio that sessions hold.
    pub(crate) recordings_bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelHealth {
    #[schema(schema_with = schemas::model_state)]
    pub(crate) state: &'static str,
    pub(crate) reason: Option<String>,
    #[schema(schema_with = schemas::tasks)]
    pub(crate) tasks: Vec<&'static str>,
    #[serde(flatten)]
    pub(crate) engine: Option<EngineHealth>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EngineHealth {
    pub(crate) device: String,
    pub(crate) memory_bytes: usize,
    pub(crate) pending: usize,
    pub(crate) running: usize,
    pub(crate) steps: u64,
    pub(crate) kv: KvHealth,
    /// The live streams that play.
    pub(crate) streams: Vec<StreamHealth>,
    /// The replicas of a model on several devices; empty with one device.
    pub(crate) replicas: Vec<ReplicaHealth>,
    /// The servers of a remote model.
    pub(crate) upstreams: Vec<UpstreamHealth>,
    /// Absent when the engine did not answer in time.
    pub(crate) statistics: Option<Statistics>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamHealth {
    /// Number of the stream within its model, never used again.
    pub(crate) id: u64,
    /// Audio that was delivered and not played yet, in milliseconds.
    pub(crate) slack_ms: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplicaHealth {
    pub(crate) device: String,
    /// `starting`, `ready`, `draining`, `stopped`, or `failed`: then it takes no more requests.
    pub(crate) state: &'static str,
    pub(crate) memory_bytes: usize,
    pub(crate) pending: usize,
    pub(crate) running: usize,
    pub(crate) steps: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpstreamHealth {
    /// Where it is; absent where a key is set, since anybody may read this.
    pub(crate) url: Option<String>,
    /// `closed` while it is asked, `open` while it rests after failures, `half_open` while one request tries it.
    pub(crate) circuit: &'static str,
    /// Requests open there.
    pub(crate) outstanding: usize,
    /// Failures since its last answer.
    pub(crate) failures: u32,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KvHealth {
    pub(crate) total_blocks: usize,
    pub(crate) used_blocks: usize,
    pub(crate) cached_blocks: usize,
    pub(crate) free_blocks: usize,
    pub(crate) utilization: f32,
}

/// Over the last 1,000 requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Statistics {
    pub(crate) total_requests: u64,
    pub(crate) audio_seconds: f64,
    pub(crate) avg_latency_ms: f64,
    pub(crate) p50_latency_ms: f64,
    pub(crate) p90_latency_ms: f64,
    pub(crate) p99_latency_ms: f64,
    pub(crate) avg_rtf: f32,
    pub(crate) tokens_per_second: f64,
    pub(crate) requests_per_second: f64,
}
