//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`. Members that are not listed are ignored, as clients
//! of the OpenAI API expect.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::openapi;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct TranscriptionRequest {
    /// Id or alias of a model, from `/v1/models`.
    #[schema(value_type = String, pattern = r"\S")]
    pub(crate) model: Option<String>,
    /// The recording, as base64 or a `data:` URL. Required, unless `audio_base64` is given.
    #[schema(format = "base64-audio")]
    pub(crate) audio: Option<String>,
    /// Another name of `audio`.
    #[schema(format = "base64-audio")]
    pub(crate) audio_base64: Option<String>,
    /// Code of the spoken language; detected without it.
    pub(crate) language: Option<String>,
    /// Text before the recording, or words that occur in it.
    #[schema(max_length = 65536)]
    pub(crate) prompt: Option<String>,
    /// Form of the answer. `stream` allows `json` and `text`.
    #[schema(schema_with = openapi::transcript_format)]
    pub(crate) response_format: Option<String>,
    /// 0 for the most likely text, raised where that fails.
    #[schema(minimum = 0.0, maximum = 1.0, default = 0.0)]
    pub(crate) temperature: Option<f32>,
    /// Times to compute: of segments and of words. `word` needs `response_format` `verbose_json`.
    #[serde(alias = "timestamp_granularities[]")]
    #[schema(schema_with = openapi::granularities)]
    pub(crate) timestamp_granularities: Option<Vec<String>>,
    /// Whether the text is sent as server-sent events while it is recognised. Not for translations.
    #[schema(default = false)]
    pub(crate) stream: Option<bool>,
    #[schema(schema_with = openapi::seed)]
    pub(crate) seed: Option<u64>,
    #[schema(schema_with = openapi::priority)]
    pub(crate) priority: Option<String>,
}

/// Usage by the length of the recording.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DurationUsage {
    /// Always `duration`.
    #[schema(schema_with = openapi::usage_duration)]
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
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TranscriptObject {
    pub(crate) text: String,
    pub(crate) usage: DurationUsage,
}

/// Events of `stream: true`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    #[serde(rename = "transcript.text.delta")]
    Delta { delta: String },
    #[serde(rename = "transcript.text.done")]
    Done { text: String, usage: DurationUsage },
}
