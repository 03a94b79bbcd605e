//! `/v1/jobs`: work that outlives its request.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use izwi_core::engine::RequestId;
use tokio::sync::watch;
use tower_http::services::ServeFile;

use super::streamed::{self, event};
use crate::dto::job::{JobDeleted, JobError, JobEvent, JobList, JobObject, JobProgress, JobResult};
use crate::dto::schemas::{JOB, JOB_DELETED};
use crate::error::{ApiError, NO_RESULT};
use crate::extract::ApiPath;
use crate::jobs::{Job, Made, Snapshot, Status};
use crate::openapi::{JobBody, JobCreationRefusals, JobForm, JobRefusals, JobResultBody, JobResultRefusals};
use crate::state::AppState;
use crate::worker;

/// Interval of keep-alive comments while nothing changes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Begin a job
///
/// Reads a long text or a book aloud, or transcribes a long recording, after the request has ended: `progress`, events and the result
/// are under the job's own path. A job goes on after a restart of the server. Jobs are done one after another, in the time that live
/// streams leave. A form has its file in `file`: a recording, or a book as EPUB, Markdown, HTML or text.
#[utoipa::path(
    post,
    path = "/v1/jobs",
    tag = "jobs",
    request_body(content((JobBody = "application/json"), (JobForm = "multipart/form-data"))),
    responses((status = 202, description = "The job is queued.", body = JobObject), JobCreationRefusals),
)]
pub(super) async fn create(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (job, ignored) = worker::create(request, &state).await?;
    let location = HeaderValue::from_str(&path(&job.id)).ok();
    let mut response = (StatusCode::ACCEPTED, Json(describe(&job, job.snapshot()))).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

/// Jobs
///
/// All jobs that are kept, the newest first.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    tag = "jobs",
    responses((status = 200, description = "The jobs.", body = JobList), JobRefusals),
)]
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<JobList>, ApiError> {
    let jobs = state.jobs().blocking(|jobs| jobs.list()).await?;
    let data = jobs.iter().map(|job| describe(job, job.snapshot())).collect();
    Ok(Json(JobList { object: "list", data }))
}

/// One job
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    params(("id" = String, Path, description = "Id of a job.")),
    responses((status = 200, description = "The job.", body = JobObject), JobRefusals),
)]
pub(super) async fn show(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<JobObject>, ApiError> {
    let job = state.jobs().blocking(move |jobs| jobs.find(&id)).await?;
    Ok(Json(describe(&job, job.snapshot())))
}

/// Delete a job
///
/// Stops it, and removes all its files.
#[utoipa::path(
    delete,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    params(("id" = String, Path, description = "Id of a job.")),
    responses((status = 200, description = "It is gone.", body = JobDeleted), JobRefusals),
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Json<JobDeleted>, ApiError> {
    state.jobs().remove(id.clone()).await?;
    tracing::info!(job = id, "job deleted");
    Ok(Json(JobDeleted { id, object: JOB_DELETED, deleted: true }))
}

/// Events of a job
///
/// Its state at once, and again whenever it changes; the stream ends with the status that stays. Each event has the whole state, so
/// that a client that comes back misses nothing.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/events",
    tag = "jobs",
    params(("id" = String, Path, description = "Id of a job.")),
    responses(
        (status = 200, description = "Server-sent events.", body = JobEvent, content_type = "text/event-stream"),
        JobRefusals,
    ),
)]
pub(super) async fn events(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
) -> Result<Response, ApiError> {
    let job = state.jobs().blocking(move |jobs| jobs.find(&id)).await?;
    let mut changes = job.watch();
    changes.mark_changed();
    let events = Events { job, changes, draining: state.draining(), is_over: false };
    let events = stream::unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, ApiError>(bytes), events))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(streamed::EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The events of a job. They end with it, and where the server drains.
struct Events {
    job: Arc<Job>,
    changes: watch::Receiver<Snapshot>,
    draining: watch::Receiver<bool>,
    is_over: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        tokio::select! {
            biased;
            changed = self.changes.changed() => changed.ok()?,
            _ = self.draining.wait_for(|draining| *draining) => return None,
            // A comment, which clients ignore.
            () = tokio::time::sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b":\n\n")),
        }
        let snapshot = self.changes.borrow_and_update().clone();
        let status = snapshot.record.status;
        self.is_over = status.is_final();
        let kind = match status {
            Status::Queued | Status::Running => "job.progress",
            Status::Completed => "job.completed",
            Status::Failed => "job.failed",
            Status::Cancelled => "job.cancelled",
        };
        Some(event(&JobEvent { kind, job: describe(&self.job, snapshot) }))
    }
}

/// The result of a job
///
/// The audio of a speech job, or the transcript, in the format that was asked for. Ranges of it may be asked for.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/result",
    tag = "jobs",
    params(("id" = String, Path, description = "Id of a job.")),
    responses(JobResultBody, JobResultRefusals),
)]
pub(super) async fn result(
    State(state): State<AppState>,
    ApiPath(id): ApiPath,
    request: Request,
) -> Result<Response, ApiError> {
    let job = state.jobs().blocking(move |jobs| jobs.find(&id)).await?;
    let record = job.snapshot().record;
    let Some(made) = record.result.filter(|_| record.status == Status::Completed) else {
        let remedy = match record.status {
            Status::Failed => "see its error, and send it again",
            _ => "wait for its event job.completed",
        };
        let message = format!("job '{}' has no result: it is {}; {remedy}", job.id, record.status.name());
        return Err(ApiError::Job { message, code: NO_RESULT });
    };
    let served = ServeFile::new(job.result()).try_call(request).await;
    let served = served.map_err(|error| ApiError::internal(&error.to_string(), &RequestId::random()))?;
    let mut response = served.map(Body::new);
    if response.status() == StatusCode::NOT_FOUND {
        // It was deleted meanwhile.
        return state.jobs().blocking(move |jobs| jobs.find(&job.id)).await.map(|_| response);
    }
    let name = format!("attachment; filename=\"{}.{}\"", job.id, made.extension);
    for (header, value) in [(header::CONTENT_TYPE, made.media_type), (header::CONTENT_DISPOSITION, name)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

fn path(id: &str) -> String {
    format!("/v1/jobs/{id}")
}

fn describe(job: &Job, Snapshot { record, remaining_s }: Snapshot) -> JobObject {
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    JobObject {
        id: job.id.clone(),
        object: JOB,
        kind: record.kind.name(),
        status: record.status.name(),
        model: record.model,
        created_at: record.created_unix_s,
        finished_at: record.finished_unix_s,
        progress: JobProgress {
            done: rounded(record.done),
            total: record.total.map(rounded),
            unit: record.kind.unit(),
            remaining_s: remaining_s.filter(|_| record.status == Status::Running),
        },
        error: record.error.map(|failure| JobError { code: failure.code, message: failure.message }),
        result: record.result.map(|Made { media_type, bytes, .. }| JobResult {
            url: path(&job.id) + "/result",
            media_type,
            bytes,
        }),
    }
}
