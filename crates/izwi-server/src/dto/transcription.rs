//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`. Members that are not listed are ignored, as clients
//! of the OpenAI API expect.

use izwi_core::transcript::DurationUsage;
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
