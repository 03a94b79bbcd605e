//! The parts of an item's content, and how fields that clients send are checked.
//!
//! Knows no conversation.

use std::sync::Arc;

use bytes::Bytes;
use izwi_core::engine::Message;
use izwi_server::speech::check_text;
use izwi_server::upload::UploadMemory;
use izwi_server::{ApiError, AppState};
use izwi_types::excerpt;
use serde_json::{Value, json};

use super::audio_format::AudioFormat;
use super::events::{PartFields, audio_bytes};
use super::input::{Clip, decode_whole};
use super::refusal::Refusal;

/// The most bytes of an id.
const MAX_ID_BYTES: usize = 64;

#[derive(Debug, Clone)]
pub(super) enum Part {
    Text(String),
    Audio { source: Source, duration_ms: u64, transcript: Option<String> },
}

/// Audio of the user.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// As it was committed.
    File(Bytes),
    /// As the model takes it.
    Decoded(Samples),
    /// Its transcript replaces it.
    Transcript,
    /// It is not needed any more, or the model cannot take it.
    Dropped,
}

/// Samples that count in the memory of all recordings until nothing holds them.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(super) samples: Arc<[f32]>,
    _memory: Arc<UploadMemory>,
}

impl Samples {
    /// # Errors
    /// There is no memory for them.
    pub(super) fn new(state: &AppState, samples: Arc<[f32]>) -> Result<Self, ApiError> {
        let mut memory = UploadMemory::new(state, 0);
        memory.take(size_of_val(&*samples))?;
        Ok(Self { samples, _memory: Arc::new(memory) })
    }
}

pub(super) fn required<T>(param: &str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::invalid(param, format!("{param} is missing; it is required")))
}

pub(super) fn checked_id(param: &str, id: String) -> Result<String, Refusal> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        let message = format!("{param} '{}' must have 1 to {MAX_ID_BYTES} bytes", excerpt(&id));
        return Err(Refusal::invalid(param, message));
    }
    Ok(id)
}

/// Checks a text of a tool, which may be empty.
pub(super) fn check_length(param: &str, text: &str, max_chars: usize) -> Result<(), Refusal> {
    if text.chars().nth(max_chars).is_some() {
        let message = format!("{param} has more than {max_chars} characters; shorten it");
        return Err(Refusal::invalid(param, message));
    }
    Ok(())
}

impl Part {
    pub(super) fn create(fields: PartFields, format: AudioFormat, state: &AppState) -> Result<Self, Refusal> {
        let max_chars = state.config().max_input_chars;
        match fields.kind.as_deref() {
            Some("input_text") => {
                let text = required("item.content.text", fields.text)?;
                check_text("item.content.text", &text, max_chars)?;
                Ok(Self::Text(text))
            }
            Some("input_audio") => {
                let audio = required("item.content.audio", fields.audio)?;
                // An empty one says that there is none.
                let transcript = fields.transcript.filter(|text| !text.is_empty());
                if let Some(text) = &transcript {
                    check_text("item.content.transcript", text, max_chars)?;
                }
                let Clip { file, duration_ms } = decode_whole(state, &audio_bytes(&audio)?, format)?;
                let source = file.map_or(Source::Dropped, Source::File);
                Ok(Self::Audio { source, duration_ms, transcript })
            }
            Some(other) => {
                let what = format!("it is '{}'; use input_text or input_audio", excerpt(other));
                Err(Refusal::unsupported("item.content.type", &what))
            }
            None => required("item.content.type", None),
        }
    }

    /// Reads a part of an answer that the client tells: its text, or the transcript of its audio.
    pub(super) fn tell(fields: PartFields, max_chars: usize) -> Result<Self, Refusal> {
        let (param, text) = match fields.kind.as_deref() {
            Some("output_text" | "text") => ("item.content.text", fields.text),
            Some("output_audio" | "audio") => ("item.content.transcript", fields.transcript),
            other => {
                let other = excerpt(other.unwrap_or("(none)"));
                let what = format!("it is {other}; use output_text, or output_audio with its transcript");
                return Err(Refusal::unsupported("item.content.type", &what));
            }
        };
        let text = required(param, text)?;
        check_text(param, &text, max_chars)?;
        Ok(Self::Text(text))
    }

    pub(super) fn into_text(self) -> Result<String, Refusal> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Audio { .. } => {
                Err(Refusal::invalid("item.content.type", "a system item has text only; use input_text"))
            }
        }
    }

    pub(super) fn view(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "input_text", "text": text}),
            Self::Audio { transcript, .. } => json!({"type": "input_audio", "transcript": transcript}),
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        !matches!(self, Self::Audio { source: Source::Dropped, .. })
    }

    pub(super) fn message(&self) -> Option<Message> {
        match self {
            Self::Text(text) => Some(Message::Text(text.clone())),
            Self::Audio { source: Source::Decoded(samples), .. } => {
                Some(Message::Recording(Arc::clone(&samples.samples)))
            }
            Self::Audio { source: Source::Transcript, transcript, .. } => {
                transcript.clone().map(Message::Text)
            }
            Self::Audio { .. } => None,
        }
    }
}
