//! `POST /v1/audio/speech`. Members that are not listed are ignored, as clients of the OpenAI API expect.

use std::fmt;

use izwi_core::engine::SpeechOptions;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::extract::WithOptions;

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct SpeechRequest {
    pub(crate) model: Option<String>,
    pub(crate) input: Option<String>,
    pub(crate) voice: Option<VoiceRef>,
    pub(crate) response_format: Option<String>,
    /// Samples per second of the encoded audio.
    pub(crate) sample_rate: Option<u32>,
    /// Bits per second of a lossy format.
    pub(crate) bit_rate: Option<u32>,
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

/// A voice: its name, or an object with its id.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VoiceRef(String);

impl VoiceRef {
    pub(crate) fn into_id(self) -> String {
        self.0
    }
}

impl<'de> Deserialize<'de> for VoiceRef {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Name;

        impl<'de> Visitor<'de> for Name {
            type Value = VoiceRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a voice, or an object with its id")
            }

            fn visit_str<E>(self, name: &str) -> Result<VoiceRef, E> {
                Ok(VoiceRef(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<VoiceRef, A::Error> {
                let mut id = None;
                while let Some(member) = members.next_key::<String>()? {
                    if member == "id" {
                        id = Some(members.next_value()?);
                    } else {
                        members.next_value::<IgnoredAny>()?;
                    }
                }
                id.map(VoiceRef).ok_or_else(|| A::Error::missing_field("id"))
            }
        }

        reader.deserialize_any(Name)
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
