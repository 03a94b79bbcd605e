//! `POST /v1/audio/speech`. Members that are not listed are ignored, as clients of the OpenAI API expect.

use std::fmt;

use izwi_core::engine::{SpeechOptions, SpokenWord};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::schemas;

use crate::extract::WithOptions;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(crate) struct SpeechRequest {
    /// Id or alias of a model, from `/v1/models`; the default model without it.
    #[schema(examples("tts-1"))]
    pub(crate) model: Option<String>,
    /// Text to speak.
    #[schema(value_type = String, min_length = 1, pattern = r"\S")]
    pub(crate) input: Option<String>,
    #[schema(schema_with = schemas::voice)]
    pub(crate) voice: Option<VoiceRef>,
    /// Format of the audio.
    #[schema(schema_with = schemas::speech_format)]
    pub(crate) response_format: Option<String>,
    /// Samples per second of the encoded audio.
    #[schema(schema_with = schemas::speech_sample_rate)]
    pub(crate) sample_rate: Option<u32>,
    /// Bits per second of a lossy format.
    #[schema(schema_with = schemas::speech_bit_rate)]
    pub(crate) bit_rate: Option<u32>,
    /// Form of the body: the bytes of the audio, or server-sent events with base64.
    #[schema(schema_with = schemas::stream_format)]
    pub(crate) stream_format: Option<String>,
    /// Whether the events tell when words are spoken.
    #[schema(default = false)]
    pub(crate) word_times: Option<bool>,
    /// Length of the first chunk, for an earlier start.
    #[schema(minimum = 20, maximum = 200)]
    pub(crate) first_chunk_ms: Option<u64>,
    #[schema(schema_with = schemas::priority)]
    pub(crate) priority: Option<String>,
    /// Whether somebody listens while the audio is generated, by default true.
    #[schema(default = true)]
    pub(crate) live: Option<bool>,
    /// A recording of the voice to clone: base64, or a `data:` URL.
    #[schema(format = "base64-audio")]
    pub(crate) ref_audio: Option<String>,
    /// What is spoken in `ref_audio`.
    pub(crate) ref_text: Option<String>,
    /// Whether only the timbre of `ref_audio` is used, and not its prosody.
    #[schema(default = false)]
    pub(crate) x_vector_only_mode: Option<bool>,
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for SpeechRequest {
    type Options = SpeechOptions;

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

/// A word of the text, and when it is spoken, from the start of the utterance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct WordTimes<'a> {
    pub(crate) text: &'a str,
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
}

impl<'a> WordTimes<'a> {
    /// Of a word of `text`, in audio of this rate.
    pub(crate) fn new(word: &SpokenWord, text: &'a str, sample_rate_hz: u32) -> Self {
        let ms = |samples: u64| samples.saturating_mul(1_000) / u64::from(sample_rate_hz.max(1));
        Self {
            text: text.get(word.text_start..word.text_end).unwrap_or_default().trim(),
            start_ms: ms(word.sample_start),
            end_ms: ms(word.sample_end),
        }
    }
}

/// Events of `stream_format: "sse"`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum SpeechEvent<'a> {
    /// A word whose first sound is in the next delta.
    #[serde(rename = "speech.audio.word")]
    Word(WordTimes<'a>),
    #[serde(rename = "speech.audio.delta")]
    Delta { audio: String },
    #[serde(rename = "speech.audio.done")]
    Done { usage: Usage },
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) total_tokens: usize,
}
