//! `POST /v1/audio/speech`. Members that are not listed are ignored, as clients of the OpenAI API expect.

use std::fmt;

use izwi_core::engine::{SpeechOptions, SpokenWord};
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
    pub(crate) stream_format: Option<String>,
    /// Whether the events tell when words are spoken, by default false.
    pub(crate) word_times: Option<bool>,
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

/// A word of the text, and when it is spoken, from the start of the utterance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Serialize)]
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

#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) total_tokens: usize,
}
