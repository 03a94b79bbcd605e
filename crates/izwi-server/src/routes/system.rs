//! Probes, summaries and metrics. They answer while the server loads, drains or is overloaded.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use izwi_core::engine::{
    Engine, EngineState, KVCacheStats, MetricsSnapshot, Placement, ReplicaStatus, SequenceId, UpstreamStatus,
};
use tokio::time::Instant;

use crate::dto::status::{
    EngineHealth, Health, KvHealth, MemoryUse, ModelHealth, Probe, ReplicaHealth, Statistics, StreamHealth,
    UpstreamHealth, Version,
};
use crate::error::ApiError;
use crate::metrics as server_metrics;
use crate::openapi::NotReadyRefusals;
use crate::registry::{Entry, Slot, Unready};
use crate::state::AppState;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a summary waits for an engine that is executing a step.
const STATISTICS_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the process works
///
/// Fails once a default model is given up: only a restart of the process helps then.
#[utoipa::path(
    get,
    path = "/livez",
    tag = "service",
    responses((status = 200, description = "It works.", body = Probe), NotReadyRefusals),
)]
pub(super) async fn livez(State(state): State<AppState>) -> Result<Json<Probe>, ApiError> {
    match state.registry().given_up().map(|unready| in_the_open(&state, unready)) {
        Some(Unready { code, reason }) => Err(ApiError::NotReady { code, reason }),
        None => Ok(Json(Probe { status: "alive" })),
    }
}

/// Name and version
#[utoipa::path(get, path = "/version", tag = "service", responses((status = 200, description = "The version.", body = Version)))]
pub(super) async fn version() -> Json<Version> {
    Json(Version { name: "izwi", version: VERSION })
}

/// Whether the default models are loaded and requests are taken
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses((status = 200, description = "It is ready.", body = Probe), NotReadyRefusals),
)]
pub(super) async fn readyz(State(state): State<AppState>) -> Result<Json<Probe>, ApiError> {
    readiness(&state).map_err(|Unready { code, reason }| ApiError::NotReady { code, reason })?;
    Ok(Json(Probe { status: "ready" }))
}

/// Metrics for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "service",
    responses((status = 200, description = "The metrics, in the text format.", body = String, content_type = "text/plain")),
)]
pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    server_metrics::set_memory(state.memory());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], state.recorder().render())
}

/// State of the models
#[utoipa::path(get, path = "/health", tag = "service", responses((status = 200, description = "The state.", body = Health)))]
pub(super) async fn health(State(state): State<AppState>) -> Json<Health> {
    let (status, reason) = match readiness(&state) {
        Ok(()) => ("ok", None),
        Err(Unready { code: "loading", reason }) => ("loading", Some(reason)),
        Err(Unready { code: "draining", reason }) => ("draining", Some(reason)),
        Err(Unready { reason, .. }) => ("degraded", Some(reason)),
    };
    let entries = state.registry().entries();
    let (state, memory) = (&state, state.memory());
    let models = futures::future::join_all(entries.into_iter().map(|(id, entry)| async move {
        let mut health = model_health(state, &id, &entry).await;
        if let Some(reason) = health.reason.take() {
            health.reason = Some(in_the_open(state, Unready { code: health.state, reason }).reason);
        }
        (id, health)
    }));
    Json(Health {
        status,
        reason,
        version: VERSION,
        uptime_s: state.uptime().as_secs(),
        requests_open: state.requests_open(),
        sessions_open: state.sessions_open(),
        memory: MemoryUse {
            budget_bytes: memory.limit(),
            models_bytes: memory.models(),
            recordings_bytes: memory.recordings(),
        },
        models: models.await.into_iter().collect(),
    })
}

fn readiness(state: &AppState) -> Result<(), Unready> {
    if state.is_draining() {
        return Err(Unready { code: "draining", reason: "the server is shutting down".to_owned() });
    }
    state.registry().readiness().map_err(|unready| in_the_open(state, unready))
}

/// What anybody may read: with a key set, no failure text, which may name folders and settings.
fn in_the_open(state: &AppState, unready: Unready) -> Unready {
    if state.api_key().is_none()
        || matches!(unready.code, "loading" | "unloaded" | "unloading" | "draining" | "stopped")
    {
        return unready;
    }
    Unready { reason: format!("{}; the server's log tells why", unready.code), ..unready }
}

async fn model_health(state: &AppState, id: &str, entry: &Entry) -> ModelHealth {
    let (code, reason) = match entry.slot.readiness(id) {
        Ok(_) => ("ready", None),
        Err(unready) => (unready.code, Some(unready.reason)),
    };
    let engine = match &entry.slot {
        Slot::Ready(engine) => Some(engine_health(state, engine).await),
        Slot::Unloaded | Slot::Loading | Slot::Unloading => None,
        Slot::Failed(_) | Slot::Restarting { .. } | Slot::GivenUp(_) => None,
    };
    let tasks = entry.tasks.iter().map(|task| task.name()).collect();
    ModelHealth { state: code, reason, tasks, engine }
}

async fn engine_health(state: &AppState, engine: &Engine) -> EngineHealth {
    let status = engine.status();
    let now = Instant::now();
    let stream = |(id, end): &(SequenceId, Instant)| StreamHealth {
        id: id.0,
        slack_ms: u64::try_from(end.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX),
    };
    let is_open = state.api_key().is_none();
    let upstream = |UpstreamStatus { url, circuit, outstanding, failures }: UpstreamStatus| UpstreamHealth {
        url: Some(url).filter(|_| is_open),
        circuit,
        outstanding,
        failures,
    };
    let (replicas, upstreams) = match engine.placement() {
        Placement::Local => (Vec::new(), Vec::new()),
        Placement::Replicated(replicas) => (replicas, Vec::new()),
        Placement::Remote(upstreams) => (Vec::new(), upstreams),
    };
    let snapshot = tokio::time::timeout(STATISTICS_TIMEOUT, engine.try_metrics()).await;
    EngineHealth {
        device: engine.profile().device.clone(),
        memory_bytes: engine.profile().memory_bytes,
        pending: status.pending,
        running: status.running,
        steps: status.steps,
        kv: kv_health(&status.kv),
        streams: status.streams.iter().map(stream).collect(),
        replicas: replicas.into_iter().map(replica_health).collect(),
        upstreams: upstreams.into_iter().map(upstream).collect(),
        statistics: snapshot.ok().and_then(Result::ok).map(statistics),
    }
}

fn replica_health(ReplicaStatus { device, memory_bytes, engine }: ReplicaStatus) -> ReplicaHealth {
    let state = match engine.state {
        EngineState::Starting => "starting",
        EngineState::Ready => "ready",
        EngineState::Draining => "draining",
        EngineState::Stopped => "stopped",
        EngineState::Dead(_) => "failed",
    };
    let (pending, running, steps) = (engine.pending, engine.running, engine.steps);
    ReplicaHealth { device, state, memory_bytes, pending, running, steps }
}

fn kv_health(kv: &KVCacheStats) -> KvHealth {
    KvHealth {
        total_blocks: kv.total_blocks,
        used_blocks: kv.used_blocks,
        cached_blocks: kv.cached_blocks,
        free_blocks: kv.free_blocks,
        utilization: kv.utilization(),
    }
}

fn statistics(snapshot: MetricsSnapshot) -> Statistics {
    Statistics {
        total_requests: snapshot.total_requests,
        audio_seconds: snapshot.total_audio.as_secs_f64(),
        avg_latency_ms: snapshot.avg_latency_ms,
        p50_latency_ms: snapshot.p50_latency_ms,
        p90_latency_ms: snapshot.p90_latency_ms,
        p99_latency_ms: snapshot.p99_latency_ms,
        avg_rtf: snapshot.avg_rtf,
        tokens_per_second: snapshot.avg_tokens_per_sec,
        requests_per_second: snapshot.requests_per_sec,
    }
}
