//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`. Members that are not listed are ignored, as clients
//! of the OpenAI API expect. Names are those of the `openai` package.

use std::fmt;

use izwi_types::{Segment, TokenLogprob};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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
    #[serde(alias = "include[]")]
    pub(crate) include: Option<Vec<String>>,
    pub(crate) chunking_strategy: Option<ChunkingStrategy>,
    #[serde(alias = "languages[]")]
    pub(crate) languages: Option<Vec<String>>,
    #[serde(alias = "keywords[]")]
    pub(crate) keywords: Option<Vec<String>>,
    #[serde(alias = "known_speaker_names[]")]
    pub(crate) known_speaker_names: Option<Vec<String>>,
    #[serde(alias = "known_speaker_references[]")]
    pub(crate) known_speaker_references: Option<Vec<String>>,
}

/// How a recording is cut: the name of a strategy, or an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChunkingStrategy {
    Named(String),
    Vad(VadFields),
}

/// Parameters of speech detection, as in an object of `type` `server_vad`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct VadFields {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) prefix_padding_ms: Option<u64>,
    pub(crate) silence_duration_ms: Option<u64>,
    pub(crate) threshold: Option<f32>,
}

impl<'de> Deserialize<'de> for ChunkingStrategy {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Strategy;

        impl<'de> Visitor<'de> for Strategy {
            type Value = ChunkingStrategy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", or an object of type server_vad")
            }

            fn visit_str<E>(self, name: &str) -> Result<ChunkingStrategy, E> {
                Ok(ChunkingStrategy::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<ChunkingStrategy, A::Error> {
                VadFields::deserialize(MapAccessDeserializer::new(members)).map(ChunkingStrategy::Vad)
            }
        }

        reader.deserialize_any(Strategy)
    }
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

/// Usage by tokens.
#[derive(Debug, Serialize)]
pub(crate) struct TokensUsage {
    /// Always `tokens`.
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
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Usage {
    Duration(DurationUsage),
    Tokens(TokensUsage),
}

/// A token of the text and its log-probability.
#[derive(Debug, Clone, Serialize)]
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
#[derive(Debug, Serialize)]
pub(crate) struct LanguageObject {
    pub(crate) code: String,
}

/// `response_format: "json"`.
#[derive(Debug, Serialize)]
pub(crate) struct TranscriptObject {
    pub(crate) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) languages: Option<Vec<LanguageObject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<Vec<LogprobObject>>,
    pub(crate) usage: Usage,
}

/// Events of `stream: true`.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    #[serde(rename = "transcript.text.delta")]
    Delta {
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<LogprobObject>>,
    },
    #[serde(rename = "transcript.text.done")]
    Done {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        languages: Option<Vec<LanguageObject>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<LogprobObject>>,
        usage: TokensUsage,
    },
}
