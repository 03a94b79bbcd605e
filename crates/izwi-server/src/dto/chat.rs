//! Frames of the WebSocket `/v1/audio/chat/stream`.

use bytes::Bytes;
use izwi_core::engine::SpeechOptions;
use serde::{Deserialize, Serialize};

use crate::extract::WithOptions;

/// Names of the text frames a client may send.
pub(crate) const CLIENT_FRAMES: &str = "session.config, input.text, input.audio.commit, input.audio.clear, input.done, playback.ack, interrupt, ping";

/// Configuration of a session. The model's defaults stand for absent members.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ConfigFields {
    pub(crate) model: Option<String>,
    pub(crate) text_temperature: Option<f32>,
    pub(crate) response_format: Option<String>,
    pub(crate) chunk_ms: Option<u64>,
    pub(crate) first_chunk_ms: Option<u64>,
    pub(crate) input_sample_rate: Option<u32>,
    pub(crate) priority: Option<String>,
    /// Of these, `language`, `speed` and `non_streaming_mode` have no effect.
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for ConfigFields {
    fn options_mut(&mut self) -> &mut SpeechOptions {
        &mut self.options
    }
}

/// A frame of the client, checked for shape.
#[derive(Debug)]
pub(crate) enum ClientFrame {
    Config(Box<ConfigFields>),
    Text(String),
    /// PCM of a recording.
    Audio(Bytes),
    Commit,
    Clear,
    Done,
    PlaybackAck,
    Interrupt,
    Ping,
}

/// A text frame of the server.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum ServerFrame<'a> {
    #[serde(rename = "session.created")]
    Created {
        session_id: &'a str,
        model: &'a str,
        sample_rate: u32,
        input_sample_rate: u32,
        channels: u16,
        encoding: &'static str,
    },
    #[serde(rename = "text.delta")]
    TextDelta { turn: u64, delta: &'a str },
    #[serde(rename = "audio.chunk")]
    AudioChunk { turn: u64, seq: u64, sample_offset: u64, samples: usize, is_final: bool },
    #[serde(rename = "turn.done")]
    TurnDone {
        turn: u64,
        text: &'a str,
        samples: u64,
        duration_s: f64,
        rtf: f32,
        ttfa_ms: Option<f64>,
        finish_reason: &'static str,
        /// Turns at the start of the conversation that no longer fit into the model's context.
        forgotten_turns: usize,
    },
    #[serde(rename = "session.done")]
    Done,
    #[serde(rename = "pong")]
    Pong,
}
