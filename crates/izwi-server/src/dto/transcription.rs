//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`. Members that are not listed are ignored, as clients
//! of the OpenAI API expect.

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct TranscriptionRequest {
    pub(crate) model: Option<String>,
    pub(crate) audio: Option<String>,
    pub(crate) audio_base64: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) prompt: Option<String>,
    pub(crate) response_format: Option<String>,
    pub(crate) temperature: Option<f32>,
    #[serde(alias = "timestamp_granularities[]")]
    pub(crate) timestamp_granularities: Option<Vec<String>>,
    pub(crate) stream: Option<bool>,
    pub(crate) seed: Option<u64>,
    pub(crate) priority: Option<String>,
}

/// Usage by the length of the recording.
#[derive(Debug, Serialize)]
pub(crate) struct DurationUsage {
    /// Always `duration`.
    r#type: &'static str,
    /// Rounded up.
    seconds: u64,
}

impl DurationUsage {
    /// The usage of a recording of `duration_s` seconds.
    pub(crate) fn new(duration_s: f64) -> Self {
        Self { r#type: "duration", seconds: duration_s.max(0.0).ceil() as u64 }
    }
}

/// `response_format: "json"`.
#[derive(Debug, Serialize)]
pub(crate) struct TranscriptObject {
    pub(crate) text: String,
    pub(crate) usage: DurationUsage,
}

/// Events of `stream: true`.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    #[serde(rename = "transcript.text.delta")]
    Delta { delta: String },
    #[serde(rename = "transcript.text.done")]
    Done { text: String, usage: DurationUsage },
}
