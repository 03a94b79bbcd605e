//! `POST /v1/audio/encodings`. Names are those of speech.

use serde::Deserialize;
use utoipa::ToSchema;

use super::schemas;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct EncodingRequest {
    /// The recording, as base64 or a `data:` URL. Required, unless `audio_base64` is given.
    #[schema(format = "base64-audio")]
    pub(crate) audio: Option<String>,
    /// Another name of `audio`.
    #[schema(format = "base64-audio")]
    pub(crate) audio_base64: Option<String>,
    /// Format of the answer.
    #[schema(schema_with = schemas::speech_format)]
    pub(crate) response_format: Option<String>,
    /// Samples per second of the answer; 24000 without it, or the nearest rate that the format has.
    #[schema(schema_with = schemas::speech_sample_rate)]
    pub(crate) sample_rate: Option<u32>,
    /// Bits per second of a lossy format.
    #[schema(schema_with = schemas::speech_bit_rate)]
    pub(crate) bit_rate: Option<u32>,
}
