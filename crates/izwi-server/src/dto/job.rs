//! Jobs. Members of their requests that are not listed are ignored.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schemas;

/// What a request for a job asks for.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct JobType {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobObject {
    pub(crate) id: String,
    #[schema(schema_with = schemas::job_object)]
    pub(crate) object: &'static str,
    #[serde(rename = "type")]
    #[schema(schema_with = schemas::job_type)]
    pub(crate) kind: &'static str,
    #[schema(schema_with = schemas::job_status)]
    pub(crate) status: &'static str,
    /// The model that does it.
    pub(crate) model: String,
    /// Unix time at which it was received.
    pub(crate) created_at: u64,
    /// Unix time at which it ended.
    pub(crate) finished_at: Option<u64>,
    pub(crate) progress: JobProgress,
    /// Why it failed.
    pub(crate) error: Option<JobError>,
    /// What it made, once it is completed.
    pub(crate) result: Option<JobResult>,
}

/// How far a job is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobProgress {
    pub(crate) done: f64,
    /// Unknown until the job was begun.
    pub(crate) total: Option<f64>,
    /// What is counted: characters of text, or seconds of a recording.
    #[schema(schema_with = schemas::job_unit)]
    pub(crate) unit: &'static str,
    /// Estimated time until it is done, while it runs.
    pub(crate) remaining_s: Option<u64>,
}

/// Why a job failed, as an error of the API.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobError {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The file that a job made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobResult {
    /// Path to fetch it from.
    pub(crate) url: String,
    pub(crate) media_type: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobList {
    #[schema(schema_with = schemas::list_object)]
    pub(crate) object: &'static str,
    /// The newest first.
    pub(crate) data: Vec<JobObject>,
}

/// A job that was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobDeleted {
    pub(crate) id: String,
    #[schema(schema_with = schemas::job_deleted_object)]
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

/// An event of a job: its state as it is now. The last event has the status that stays.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobEvent {
    #[serde(rename = "type")]
    #[schema(schema_with = schemas::job_event)]
    pub(crate) kind: &'static str,
    pub(crate) job: JobObject,
}
