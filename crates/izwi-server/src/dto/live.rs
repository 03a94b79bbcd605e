//! Frames of the WebSocket `/v1/audio/transcriptions/stream`.

use bytes::Bytes;
use izwi_types::TurnEnds;
use serde::{Deserialize, Serialize};

use super::speech::WordTimes;
use crate::live::Stretch;

/// Names of the text frames a client may send.
pub(crate) const CLIENT_FRAMES: &str = "session.config, input.flush, input.done, ping";

/// Configuration of a session.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(crate) struct ConfigFields {
    pub(crate) model: Option<String>,
    /// Code or name; without one it is detected in each turn.
    pub(crate) language: Option<String>,
    /// Codes or names of the languages of which one is detected in each turn, in place of `language`.
    #[serde(default)]
    pub(crate) languages: Vec<String>,
    /// Context as if it preceded the audio: names, spellings, style.
    pub(crate) prompt: Option<String>,
    /// Words that are likely in the audio.
    #[serde(default)]
    pub(crate) keywords: Vec<String>,
    /// Whether numbers are written in figures, where the model writes them in words; by default false.
    pub(crate) inverse_normalization: Option<bool>,
    /// Whether spoken commands such as `new line` are carried out, by default false.
    pub(crate) spoken_commands: Option<bool>,
    /// Of the binary frames.
    pub(crate) encoding: Option<String>,
    pub(crate) sample_rate: Option<u32>,
    /// New audio from one transcript of a turn to the next.
    pub(crate) latency_ms: Option<u64>,
    /// Whether `committed` frames have words, by default false.
    pub(crate) word_times: Option<bool>,
    /// Score at which speech begins, 0 to 1.
    pub(crate) threshold: Option<f32>,
    /// Audio before the first speech that belongs to a turn.
    pub(crate) prefix_padding_ms: Option<u64>,
    /// Silence that ends a turn, whatever a turn model says.
    pub(crate) silence_duration_ms: Option<u64>,
    /// `server_vad`, by default, or `semantic_vad`: a turn model is asked in a pause whether the turn is complete.
    pub(crate) turn_detection: Option<String>,
    /// How early a turn may end with `semantic_vad`: `low`, `medium`, `high`, or `auto` by default.
    pub(crate) eagerness: Option<String>,
    /// Whether who speaks is told, or the model that tells it; by default false.
    pub(crate) speakers: Option<Speakers>,
    /// With `speakers`: whether saved speakers are told by their names, which the server's setting `saved_speakers` allows; by
    /// default what that says.
    pub(crate) saved_speakers: Option<bool>,
    pub(crate) priority: Option<String>,
}

/// Whether who speaks is told, and by which model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "true, false or the name of a model")]
pub(crate) enum Speakers {
    Told(bool),
    By(String),
}

impl ConfigFields {
    /// The model that tells who speaks, if that is asked for; the default one without a name.
    pub(crate) fn speaker_model(&self) -> Option<Option<String>> {
        match self.speakers.as_ref()? {
            Speakers::Told(is_told) => is_told.then_some(None),
            Speakers::By(model) => Some(Some(model.clone())),
        }
    }

    /// Whether a turn model is asked for.
    pub(crate) fn is_semantic(&self) -> bool {
        self.turn_detection.as_deref() == Some(TurnEnds::TYPES[1])
    }
}

/// A frame of the client, checked for shape.
#[derive(Debug)]
pub(crate) enum ClientFrame {
    Config(Box<ConfigFields>),
    Audio(Bytes),
    Flush,
    Done,
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
        encoding: &'static str,
        sample_rate: u32,
        channels: u16,
        /// `null` if a turn is transcribed once it has ended.
        latency_ms: Option<u64>,
        /// `server_vad` where no turn model is installed.
        turn_detection: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        eagerness: Option<&'static str>,
        silence_duration_ms: u64,
    },
    #[serde(rename = "speech.started")]
    Started { turn: u64, at_ms: u64 },
    /// Replaces the last one: what follows the committed text, and may change.
    #[serde(rename = "partial")]
    Partial { turn: u64, text: &'a str },
    /// Follows what was committed before, and never changes.
    #[serde(rename = "committed")]
    Committed {
        turn: u64,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        words: Option<Vec<WordTimes<'a>>>,
    },
    #[serde(rename = "turn.end")]
    TurnEnd { turn: u64, text: &'a str, language: Option<&'a str>, start_ms: u64, end_ms: u64 },
    /// Who says what was committed of a turn, which may have ended: replaces what was told of that turn before.
    #[serde(rename = "turn.speakers")]
    Speakers { turn: u64, segments: Vec<Spoken<'a>> },
    #[serde(rename = "session.done")]
    Done { duration_s: f64 },
    #[serde(rename = "pong")]
    Pong,
}

/// What one speaker says.
#[derive(Debug, Serialize)]
pub(crate) struct Spoken<'a> {
    speaker: &'a str,
    text: &'a str,
    start_ms: u64,
    end_ms: u64,
}

impl<'a> From<&'a Stretch> for Spoken<'a> {
    fn from(Stretch { speaker, text, start_ms, end_ms }: &'a Stretch) -> Self {
        Self { speaker, text: text.trim(), start_ms: *start_ms, end_ms: *end_ms }
    }
}
