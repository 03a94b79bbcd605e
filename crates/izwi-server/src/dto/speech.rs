//! `POST /v1/audio/speech`. Members that are not listed are ignored, as clients of the OpenAI API expect.

use izwi_core::engine::SpeechOptions;
use serde::{Deserialize, Serialize};

use crate::extract::WithOptions;

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct SpeechRequest {
    pub(crate) model: Option<String>,
    pub(crate) input: Option<String>,
    pub(crate) voice: Option<VoiceRef>,
    pub(crate) response_format: Option<String>,
    pub(crate) stream_format: Option<String>,
    pub(crate) first_chunk_ms: Option<u64>,
    pub(crate) priority: Option<String>,
    /// Whether somebody listens while the audio is generated, by default true.
    pub(crate) live: Option<bool>,
    /// Base64 of a recording, or a `data:` URL.
    pub(crate) ref_audio: Option<String>,
    pub(crate) ref_text: Option<String>,
    pub(crate) x_vector_only_mode: Option<bool>,
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for SpeechRequest {
    fn options_mut(&mut self) -> &mut SpeechOptions {
        &mut self.options
    }
}

/// A voice, by name or as an object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected the name of a voice, or an object with its id")]
pub(crate) enum VoiceRef {
    Name(String),
    Object { id: String },
}

impl VoiceRef {
    pub(crate) fn into_id(self) -> String {
        match self {
            Self::Name(id) | Self::Object { id } => id,
        }
    }
}

/// Events of `stream_format: "sse"`.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum SpeechEvent {
    #[serde(rename = "speech.audio.delta")]
    Delta { audio: String },
    #[serde(rename = "speech.audio.done")]
    Done { usage: Usage },
}

#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) total_tokens: usize,
}
