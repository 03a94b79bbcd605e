//! Frames of the WebSocket `/v1/audio/chat/stream`.

use bytes::Bytes;
use izwi_core::engine::SpeechOptions;
use serde::{Deserialize, Serialize};

use super::session::{Interrupt, PlaybackAck, Resume};
use crate::extract::WithOptions;

/// Names of the text frames a client may send.
pub(crate) const CLIENT_FRAMES: &str = "session.config, session.resume, input.text, input.audio.commit, input.audio.clear, input.done, playback.ack, interrupt, ping";

/// Configuration of a session. The model's defaults stand for absent members.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ConfigFields {
    pub(crate) model: Option<String>,
    pub(crate) text_temperature: Option<f32>,
    pub(crate) response_format: Option<String>,
    /// Samples per second of the encoded audio.
    pub(crate) sample_rate: Option<u32>,
    /// Bits per second of a lossy format.
    pub(crate) bit_rate: Option<u32>,
    pub(crate) chunk_ms: Option<u64>,
    pub(crate) first_chunk_ms: Option<u64>,
    pub(crate) input_sample_rate: Option<u32>,
    pub(crate) priority: Option<String>,
    /// Of these, `language`, `speed`, `lexicons` and `non_streaming_mode` have no effect.
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for ConfigFields {
    type Options = SpeechOptions;

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
    Ack(PlaybackAck),
    Interrupt(Interrupt),
    Resume(Resume),
    Ping,
}

/// A text frame of the server.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum ServerFrame<'a> {
    #[serde(rename = "session.created")]
    Created {
        session_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        resume_token: Option<&'a str>,
        /// Seconds; 0 if the session cannot be continued.
        resume_window_s: u64,
        /// The server that holds the session, where there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        instance: Option<&'a str>,
        model: &'a str,
        sample_rate: u32,
        input_sample_rate: u32,
        channels: u16,
        encoding: &'static str,
    },
    #[serde(rename = "text.delta")]
    TextDelta {
        turn: u64,
        /// Characters of the turn's text before this piece.
        offset: usize,
        delta: &'a str,
    },
    #[serde(rename = "interrupted")]
    Interrupted {
        /// `None` if nothing was being played.
        turn: Option<u64>,
        played_ms: u64,
        text_spoken: &'a str,
        /// The rest of the answer as far as it was generated.
        text_remaining: &'a str,
        approximate: bool,
    },
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
