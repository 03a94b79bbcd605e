//! Frames of the WebSocket `/v1/audio/speech/stream`, and the parts that other WebSockets share.

use izwi_core::engine::SpeechOptions;
use serde::{Deserialize, Serialize};

use super::speech::VoiceRef;
use crate::extract::WithOptions;

/// Names of the frames a client may send.
pub(crate) const CLIENT_FRAMES: &str =
    "session.config, input.text, input.flush, input.done, speak, playback.ack, interrupt, ping";

/// The member that every client frame has.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct Tag {
    #[serde(rename = "type")]
    pub(crate) kind: Option<serde_json::Value>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ConfigFields {
    pub(crate) model: Option<String>,
    pub(crate) voice: Option<VoiceRef>,
    pub(crate) response_format: Option<String>,
    pub(crate) chunk_ms: Option<u64>,
    pub(crate) first_chunk_ms: Option<u64>,
    pub(crate) priority: Option<String>,
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for ConfigFields {
    fn options_mut(&mut self) -> &mut SpeechOptions {
        &mut self.options
    }
}

impl ConfigFields {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct TextFields {
    pub(crate) text: Option<String>,
}

/// A frame of the client, checked for shape.
#[derive(Debug)]
pub(crate) enum ClientFrame {
    Config(ConfigFields),
    Text(String),
    Flush,
    Done,
    Speak { text: String, config: ConfigFields },
    PlaybackAck,
    Interrupt,
    Ping,
}

/// A text frame of the server.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum ServerFrame<'a> {
    #[serde(rename = "session.created")]
    Created { session_id: &'a str, sample_rate: u32, channels: u16, encoding: &'static str },
    #[serde(rename = "audio.start")]
    AudioStart { utterance: u64, voice: &'a str, model: &'a str },
    #[serde(rename = "audio.chunk")]
    AudioChunk { utterance: u64, seq: u64, sample_offset: u64, samples: usize, is_final: bool },
    #[serde(rename = "audio.done")]
    AudioDone {
        utterance: u64,
        samples: u64,
        duration_s: f64,
        rtf: f32,
        ttfa_ms: Option<f64>,
        finish_reason: &'static str,
    },
    #[serde(rename = "session.done")]
    Done,
    #[serde(rename = "pong")]
    Pong,
}

/// The error frame.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorFrame<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) code: &'a str,
    pub(crate) message: String,
    pub(crate) param: Option<&'a str>,
}
