//! Frames of the WebSocket `/v1/audio/speech/stream`, and the parts that other WebSockets share.

use std::time::Duration;

use izwi_core::engine::SpeechOptions;
use serde::{Deserialize, Serialize};

use super::speech::{VoiceRef, WordTimes};
use crate::encoding::EncodedChunk;
use crate::extract::WithOptions;

/// Names of the frames a client may send.
pub(crate) const CLIENT_FRAMES: &str = "session.config, session.resume, input.text, input.flush, input.done, speak, playback.ack, interrupt, ping";

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
    /// Samples per second of the encoded audio.
    pub(crate) sample_rate: Option<u32>,
    /// Bits per second of a lossy format.
    pub(crate) bit_rate: Option<u32>,
    pub(crate) chunk_ms: Option<u64>,
    pub(crate) first_chunk_ms: Option<u64>,
    pub(crate) priority: Option<String>,
    /// Whether `word` frames are sent, by default false.
    pub(crate) word_times: Option<bool>,
    /// Base64 of a recording to clone, or a `data:` URL.
    pub(crate) ref_audio: Option<String>,
    pub(crate) ref_text: Option<String>,
    pub(crate) x_vector_only_mode: Option<bool>,
    #[serde(skip)]
    pub(crate) options: SpeechOptions,
}

impl WithOptions for ConfigFields {
    type Options = SpeechOptions;

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

/// How far the client has played; `played_ms` is required in a report.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct PlayedFields {
    /// Of a speech session.
    pub(crate) utterance: Option<u64>,
    /// Of a conversation.
    pub(crate) turn: Option<u64>,
    pub(crate) played_ms: Option<u64>,
    /// Of a report alone.
    pub(crate) gap_ms: Option<u64>,
}

/// A report of playback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaybackAck {
    /// Number of the utterance or turn; `None` for the one that is played now.
    pub(crate) number: Option<u64>,
    /// From the start of its audio.
    pub(crate) played_ms: u64,
    /// The silence that was heard in it so far because audio was missing; `None` if the client does not tell.
    pub(crate) gap_ms: Option<u64>,
}

/// The listener wants silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interrupt {
    /// As in a report.
    pub(crate) number: Option<u64>,
    /// `None` to estimate it.
    pub(crate) played_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ResumeFields {
    pub(crate) session_id: Option<String>,
    pub(crate) resume_token: Option<String>,
    pub(crate) next_sample: Option<u64>,
}

/// Continues a session whose connection was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    pub(crate) session_id: String,
    pub(crate) resume_token: String,
    /// Samples of the session's audio that the client has.
    pub(crate) next_sample: u64,
}

/// A frame of the client, checked for shape.
#[derive(Debug)]
pub(crate) enum ClientFrame {
    Config(ConfigFields),
    Text(String),
    Flush,
    Done,
    Speak { text: String, config: ConfigFields },
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
        sample_rate: u32,
        channels: u16,
        encoding: &'static str,
        /// Fields of the configuration that have no effect.
        ignored_fields: &'a [&'static str],
    },
    #[serde(rename = "audio.start")]
    AudioStart {
        utterance: u64,
        voice: &'a str,
        model: &'a str,
        /// How long a player waits so that the rest plays without a gap.
        prebuffer_ms: u64,
        /// Processing time over audio time; `None` where nothing is known yet.
        predicted_rtf: Option<f32>,
    },
    /// A word whose first sound is in the chunk after this frame.
    #[serde(rename = "word")]
    Word {
        utterance: u64,
        #[serde(flatten)]
        word: WordTimes<'a>,
    },
    /// Something about the utterance that its user should know; it is spoken all the same.
    #[serde(rename = "warning")]
    Warning {
        utterance: u64,
        /// `unspoken_characters`, `ignored_markup` or `foreign_language`.
        code: &'static str,
        message: &'a str,
        /// What it is about: what is left out, each once, or the code of the language.
        characters: &'a str,
    },
    #[serde(rename = "audio.done")]
    AudioDone {
        utterance: u64,
        samples: u64,
        duration_s: f64,
        rtf: f32,
        ttfa_ms: Option<f64>,
        finish_reason: &'static str,
    },
    #[serde(rename = "interrupted")]
    Interrupted {
        /// `None` if nothing was being played.
        utterance: Option<u64>,
        played_ms: u64,
        text_spoken: &'a str,
        /// The rest of the utterance and all text after it.
        text_remaining: &'a str,
        approximate: bool,
    },
    #[serde(rename = "session.done")]
    Done,
    #[serde(rename = "pong")]
    Pong,
}

/// What an `audio.chunk` is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChunkOf {
    Utterance(u64),
    Turn(u64),
}

/// Describes the binary frame after it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AudioChunk {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    of: ChunkOf,
    pub(crate) seq: u64,
    pub(crate) sample_offset: u64,
    pub(crate) samples: u64,
    pub(crate) is_final: bool,
}

impl AudioChunk {
    pub(crate) fn new(of: ChunkOf, chunk: &EncodedChunk) -> Self {
        let EncodedChunk { seq, sample_offset, samples, is_final, .. } = *chunk;
        Self { kind: "audio.chunk", of, seq, sample_offset, samples, is_final }
    }

    /// The chunk without its first `skip` samples.
    pub(crate) fn after(&self, skip: u64) -> Self {
        Self { sample_offset: self.sample_offset + skip, samples: self.samples - skip, ..self.clone() }
    }
}

/// The machine has become too slow for all streams: this one is silent after the audio so far, and goes on.
#[derive(Debug, Serialize)]
pub(crate) struct AudioPause {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    of: ChunkOf,
    /// How long it is expected to be silent.
    expected_ms: u64,
}

impl AudioPause {
    pub(crate) fn new(of: ChunkOf, expected: Duration) -> Self {
        Self { kind: "audio.pause", of, expected_ms: u64::try_from(expected.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// The first frame on a connection that continues a session.
#[derive(Debug, Serialize)]
pub(crate) struct Resumed<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) session_id: &'a str,
    pub(crate) next_sample: u64,
}

/// The error frame.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorFrame<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) code: &'a str,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    /// Seconds after which the same may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
}
