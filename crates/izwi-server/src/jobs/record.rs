//! What is kept of a job: its state, and what it was asked for. Knows no folder.

use izwi_types::Segment;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::ApiError;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Reads a text or a book aloud.
    Speech,
    /// Transcribes a recording.
    Transcription,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Speech, Self::Transcription];

    /// Its name for clients.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Speech => "speech",
            Self::Transcription => "transcription",
        }
    }

    /// What its progress counts.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Speech => "characters",
            Self::Transcription => "seconds",
        }
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It waits for the jobs before it.
    Queued,
    /// It is worked on.
    Running,
    /// Its result is there.
    Completed,
    /// It failed for good.
    Failed,
    /// It was deleted.
    Cancelled,
}

impl Status {
    pub(crate) const ALL: [Self; 5] =
        [Self::Queued, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Its name for clients and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more happens to it.
    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl From<&ApiError> for Failure {
    fn from(error: &ApiError) -> Self {
        Self { code: error.code().to_owned(), message: error.message() }
    }
}

/// The file that a job made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) media_type: String,
    pub(crate) extension: String,
    pub(crate) bytes: u64,
}

/// The state of a job, as its folder keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Jobs are done in the order of their numbers.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) model: String,
    pub(crate) created_unix_s: u64,
    pub(crate) finished_unix_s: Option<u64>,
    pub(crate) status: Status,
    /// What is done, and all there is to do, in units of its kind; all is `None` until it is known.
    pub(crate) done: f64,
    pub(crate) total: Option<f64>,
    pub(crate) error: Option<Failure>,
    pub(crate) result: Option<Made>,
}

/// What a job was asked for, beside the file that came with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Asked {
    /// The members of a speech request, and the name of the book.
    Speech { fields: Map<String, Value>, book: Option<String> },
    /// The text parts of the form of a transcription.
    Transcription { parts: Vec<(String, String)> },
}

impl Asked {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Speech { .. } => Kind::Speech,
            Self::Transcription { .. } => Kind::Transcription,
        }
    }
}

/// What is stored of a part of a transcription.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) segments: Vec<Segment>,
    pub(crate) language: Option<String>,
    pub(crate) language_probability: Option<f32>,
    pub(crate) prompt_tokens: usize,
    pub(crate) generated_tokens: usize,
}
