//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`. Members that are not listed are ignored, as clients
//! of the OpenAI API expect. Names are those of the `openai` package.

use izwi_types::{Segment, TokenLogprob, TranscriptionOptions};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::diarized_segment::DiarizedSegment;
use super::schemas;
use super::timed_segment::TimedSegment;
use crate::extract::WithOptions;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub struct TranscriptionRequest {
    /// Id or alias of a model, from `/v1/models`; the default model without it.
    #[schema(examples("whisper-1"))]
    pub(crate) model: Option<String>,
    /// The recording, as base64 or a `data:` URL. Required, unless `audio_base64` is given.
    #[schema(format = "base64-audio")]
    pub(crate) audio: Option<String>,
    /// Another name of `audio`.
    #[schema(format = "base64-audio")]
    pub(crate) audio_base64: Option<String>,
    /// Form of the answer. `stream` allows `json`, `text`, `verbose_json` and `diarized_json`.
    #[schema(schema_with = schemas::transcript_format)]
    pub(crate) response_format: Option<String>,
    /// Whether the text is sent as server-sent events while it is recognised.
    #[schema(default = false)]
    pub(crate) stream: Option<bool>,
    #[schema(schema_with = schemas::priority)]
    pub(crate) priority: Option<String>,
    /// With `diarized_json`: names of speakers, each with a reference.
    #[serde(alias = "known_speaker_names[]")]
    #[schema(max_items = 16)]
    pub(crate) known_speaker_names: Option<Vec<String>>,
    /// A recording of each of those speakers, some seconds of the voice alone, as a `data:` URL.
    #[serde(alias = "known_speaker_references[]")]
    #[schema(max_items = 16)]
    pub(crate) known_speaker_references: Option<Vec<String>>,
    /// With `diarized_json`: whether saved speakers are told by their names, which the server's setting `saved_speakers` allows;
    /// by default as that says. References take their place.
    pub(crate) saved_speakers: Option<bool>,
    #[serde(skip)]
    pub(crate) options: TranscriptionOptions,
}

impl WithOptions for TranscriptionRequest {
    type Options = TranscriptionOptions;

    fn options_mut(&mut self) -> &mut TranscriptionOptions {
        &mut self.options
    }
}

/// Usage by the length of the recording.
#[derive(Debug, Serialize, ToSchema)]
pub struct DurationUsage {
    /// Always `duration`.
    #[schema(schema_with = schemas::usage_duration)]
    r#type: &'static str,
    /// Rounded up.
    seconds: u64,
}

impl DurationUsage {
    /// The usage of a recording of `duration_s` seconds.
    pub fn new(duration_s: f64) -> Self {
        Self { r#type: "duration", seconds: duration_s.max(0.0).ceil() as u64 }
    }
}

/// Usage by tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokensUsage {
    #[schema(schema_with = schemas::usage_tokens)]
    r#type: &'static str,
    input_tokens: usize,
    output_tokens: usize,
    total_tokens: usize,
}

impl TokensUsage {
    pub(crate) fn new(input_tokens: usize, output_tokens: usize) -> Self {
        Self { r#type: "tokens", input_tokens, output_tokens, total_tokens: input_tokens + output_tokens }
    }
}

/// Usage as the model of a request is billed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = TranscriptUsage)]
pub(crate) enum Usage {
    Duration(DurationUsage),
    Tokens(TokensUsage),
}

/// A token of the text and its log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LogprobObject {
    /// Its text; what is no whole character is U+FFFD.
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
}

impl From<&TokenLogprob> for LogprobObject {
    fn from(token: &TokenLogprob) -> Self {
        Self { token: token.text(), bytes: token.bytes.clone(), logprob: token.logprob }
    }
}

/// The tokens of segments.
pub(crate) fn logprobs(segments: &[Segment]) -> Vec<LogprobObject> {
    segments.iter().flat_map(|segment| &segment.logprobs).map(LogprobObject::from).collect()
}

/// A detected language.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LanguageObject {
    pub(crate) code: String,
}

/// `response_format: "json"`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TranscriptObject {
    pub(crate) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) languages: Option<Vec<LanguageObject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) logprobs: Option<Vec<LogprobObject>>,
    pub(crate) usage: Usage,
}

/// Events of `stream: true`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    #[serde(rename = "transcript.text.delta")]
    Delta {
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        logprobs: Option<Vec<LogprobObject>>,
    },
    /// With `response_format` `diarized_json`, in place of deltas.
    #[serde(rename = "transcript.text.segment")]
    Segment(DiarizedSegment),
    /// With `response_format` `verbose_json`, besides deltas: a segment whose text is final.
    #[serde(rename = "transcript.segment")]
    TimedSegment(TimedSegment),
    #[serde(rename = "transcript.text.done")]
    Done {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        languages: Option<Vec<LanguageObject>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        logprobs: Option<Vec<LogprobObject>>,
        usage: TokensUsage,
    },
}
