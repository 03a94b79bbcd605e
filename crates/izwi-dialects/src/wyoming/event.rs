//! The events of the Wyoming protocol, as bytes and as values: a line of JSON (`type`, `data_length`, `payload_length`),
//! the JSON of its data, and a payload. Knows no socket and no engine.
//!
//! Source: `event.py`, `tts.py`, `asr.py`, `audio.py`, `ping.py` and `error.py` of the package `wyoming` 1.10.2.

use bytes::Bytes;
use izwi_server::ApiError;
use izwi_server::extract::{parse_json, required};
use izwi_types::excerpt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Version of the protocol, in each event: that of the reference package.
pub(super) const VERSION: &str = "1.10.2";

/// Bounds of the format of a recording.
const RATES_HZ: std::ops::RangeInclusive<u32> = 8_000..=192_000;
const WIDTHS: std::ops::RangeInclusive<u16> = 1..=4;
const CHANNELS: std::ops::RangeInclusive<u16> = 1..=8;

/// An event of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClientEvent {
    Describe,
    Ping {
        text: Option<String>,
    },
    SelectProgram {
        name: String,
    },
    Synthesize {
        text: String,
        voice: VoiceFields,
        seed: Option<u64>,
    },
    SynthesizeStart {
        voice: VoiceFields,
        seed: Option<u64>,
    },
    SynthesizeChunk {
        text: String,
    },
    SynthesizeStop,
    Transcribe(TranscribeFields),
    AudioStart(AudioFormat),
    AudioChunk {
        format: AudioFormat,
        audio: Bytes,
    },
    AudioStop,
    /// Of a type that this service does not serve. Servers drop such events.
    Unknown(String),
}

/// Which voice is wanted. A name comes before a language.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "a JSON object")]
pub(crate) struct VoiceFields {
    pub(super) name: Option<String>,
    pub(super) language: Option<String>,
    pub(super) speaker: Option<String>,
}

/// How the next recording is to be transcribed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "a JSON object")]
pub(crate) struct TranscribeFields {
    /// The model.
    pub(super) name: Option<String>,
    pub(super) language: Option<String>,
    /// Words that are likely; names come before terms.
    pub(super) transcript_names: Option<Vec<String>>,
    pub(super) transcript_terms: Option<Vec<String>>,
}

/// Interleaved integer PCM, little-endian; samples of one byte are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AudioFormat {
    pub(super) rate_hz: u32,
    /// Bytes of a sample.
    pub(super) width: u16,
    pub(super) channels: u16,
}

/// The first line of an event.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct Header {
    #[serde(rename = "type")]
    kind: String,
    /// Data in the line itself, as early versions of the protocol send it.
    #[serde(default)]
    data: Option<Map<String, Value>>,
    #[serde(default)]
    data_length: Option<usize>,
    #[serde(default)]
    payload_length: Option<usize>,
}

impl Header {
    pub(super) fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Bytes after the line; `None` if their number is absurd.
    pub(super) fn rest(&self) -> Option<usize> {
        self.data_length.unwrap_or(0).checked_add(self.payload_length.unwrap_or(0))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, expecting = "a JSON object")]
struct TextFields {
    text: Option<String>,
    name: Option<String>,
    voice: Option<VoiceFields>,
    text_format: Option<String>,
    /// An extension: seed of all randomness.
    seed: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
struct AudioFields {
    rate: Option<u32>,
    width: Option<u16>,
    channels: Option<u16>,
}

impl ClientEvent {
    /// Reads a whole event.
    ///
    /// # Errors
    /// It is no event, or a field is missing, of another type or out of range.
    pub(crate) fn parse(event: &Bytes) -> Result<Self, ApiError> {
        let end = event.iter().position(|byte| *byte == b'\n').map_or(event.len(), |end| end + 1);
        let header =
            Header::parse(&event[..end]).map_err(|error| ApiError::MalformedJson(error.to_string()))?;
        let data_end = (end + header.data_length.unwrap_or(0)).min(event.len());
        let data = joined(header.data, &event[end..data_end])?;
        Self::of(&header.kind, &data, event.slice(data_end..))
    }

    fn of(kind: &str, data: &[u8], audio: Bytes) -> Result<Self, ApiError> {
        Ok(match kind {
            "describe" => Self::Describe,
            "ping" => Self::Ping { text: fields::<TextFields>(data)?.text },
            "select-program" => {
                Self::SelectProgram { name: required("name", fields::<TextFields>(data)?.name)? }
            }
            "synthesize" => {
                let fields = speech(data)?;
                let (voice, seed) = (fields.voice.unwrap_or_default(), fields.seed);
                Self::Synthesize { text: required("text", fields.text)?, voice, seed }
            }
            "synthesize-start" => {
                let fields = speech(data)?;
                Self::SynthesizeStart { voice: fields.voice.unwrap_or_default(), seed: fields.seed }
            }
            "synthesize-chunk" => {
                Self::SynthesizeChunk { text: required("text", fields::<TextFields>(data)?.text)? }
            }
            "synthesize-stop" => Self::SynthesizeStop,
            "transcribe" => Self::Transcribe(fields(data)?),
            "audio-start" => Self::AudioStart(format(data)?),
            "audio-chunk" => Self::AudioChunk { format: format(data)?, audio },
            "audio-stop" => Self::AudioStop,
            other => Self::Unknown(excerpt(other)),
        })
    }
}

/// The data of an event: that after its line, which overrides that in the line.
fn joined(inline: Option<Map<String, Value>>, behind: &[u8]) -> Result<Vec<u8>, ApiError> {
    let Some(mut data) = inline else {
        return Ok(if behind.is_empty() { b"{}".to_vec() } else { behind.to_vec() });
    };
    if !behind.is_empty() {
        data.extend(parse_json::<Map<String, Value>>(behind)?);
    }
    // Serializing parsed JSON cannot fail.
    Ok(serde_json::to_vec(&data).unwrap_or_default())
}

fn fields<T: DeserializeOwned>(data: &[u8]) -> Result<T, ApiError> {
    parse_json(data)
}

/// The data of a request for speech, which must be plain text.
fn speech(data: &[u8]) -> Result<TextFields, ApiError> {
    let fields: TextFields = fields(data)?;
    match fields.text_format.as_deref() {
        None | Some("text") => Ok(fields),
        Some(other) => {
            let message = format!("text_format '{}' is not supported; send plain text", excerpt(other));
            Err(ApiError::invalid("text_format", message))
        }
    }
}

fn format(data: &[u8]) -> Result<AudioFormat, ApiError> {
    let fields: AudioFields = fields(data)?;
    let rate_hz = required("rate", fields.rate)?;
    let (width, channels) = (required("width", fields.width)?, required("channels", fields.channels)?);
    izwi_server::extract::check_range("rate", rate_hz, &RATES_HZ)?;
    izwi_server::extract::check_range("width", width, &WIDTHS)?;
    izwi_server::extract::check_range("channels", channels, &CHANNELS)?;
    Ok(AudioFormat { rate_hz, width, channels })
}

#[derive(Serialize)]
struct HeaderOut<'a> {
    r#type: &'a str,
    version: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    data_length: usize,
    #[serde(skip_serializing_if = "is_zero")]
    payload_length: usize,
}

fn is_zero(length: &usize) -> bool {
    *length == 0
}

/// The bytes of an event.
pub(super) fn event(kind: &str, data: &impl Serialize, payload: &[u8]) -> Bytes {
    // Serializing strings, numbers and lists cannot fail.
    let data = serde_json::to_vec(data).unwrap_or_default();
    let header =
        HeaderOut { r#type: kind, version: VERSION, data_length: data.len(), payload_length: payload.len() };
    let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(&data);
    bytes.extend_from_slice(payload);
    bytes.into()
}

/// The event of an error.
pub(super) fn error(error: &ApiError) -> Bytes {
    event("error", &serde_json::json!({"text": error.message(), "code": error.code()}), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, data: &str, payload: &[u8]) -> Result<ClientEvent, ApiError> {
        let mut bytes = line.as_bytes().to_vec();
        bytes.push(b'\n');
        bytes.extend_from_slice(data.as_bytes());
        bytes.extend_from_slice(payload);
        ClientEvent::parse(&bytes.into())
    }

    #[test]
    fn data_is_read_from_the_line_and_from_behind_it() {
        let synthesize = |text: &str, name: Option<&str>| ClientEvent::Synthesize {
            text: text.to_owned(),
            voice: VoiceFields { name: name.map(str::to_owned), ..Default::default() },
            seed: None,
        };
        let data = r#"{"text": "Hé", "voice": {"name": "a"}, "context": {"x": 1}}"#;
        let line = format!(r#"{{"type": "synthesize", "version": "1.10.2", "data_length": {}}}"#, data.len());
        assert_eq!(parse(&line, data, b"").unwrap(), synthesize("Hé", Some("a")));
        let line = r#"{"type": "synthesize", "data": {"text": "old", "voice": null}}"#;
        assert_eq!(parse(line, "", b"").unwrap(), synthesize("old", None));
        let line = r#"{"type": "synthesize", "data": {"text": "old"}, "data_length": 15}"#;
        assert_eq!(parse(line, r#"{"text": "new"}"#, b"").unwrap(), synthesize("new", None));
        let data = r#"{"rate": 16000, "width": 2, "channels": 1, "timestamp": null}"#;
        let line = format!(r#"{{"type":"audio-chunk","data_length":{},"payload_length":4}}"#, data.len());
        let format = AudioFormat { rate_hz: 16_000, width: 2, channels: 1 };
        let chunk = ClientEvent::AudioChunk { format, audio: Bytes::from_static(b"abcd") };
        assert_eq!(parse(&line, data, b"abcd").unwrap(), chunk);
        assert_eq!(
            parse(r#"{"type": "detect"}"#, "", b"").unwrap(),
            ClientEvent::Unknown("detect".to_owned())
        );
    }

    #[test]
    fn bad_fields_are_named() {
        let param = |line: &str| parse(line, "", b"").unwrap_err().param().map(str::to_owned);
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(param(r#"{"type": "synthesize"}"#), named("text"));
        assert_eq!(param(r#"{"type": "synthesize", "data": {"text": 5}}"#), named("text"));
        assert_eq!(
            param(r#"{"type": "synthesize", "data": {"text": "a", "text_format": "ssml"}}"#),
            named("text_format")
        );
        assert_eq!(
            param(r#"{"type": "audio-start", "data": {"rate": 16000, "width": 2}}"#),
            named("channels")
        );
        let of = |rate, width| {
            format!(
                r#"{{"type": "audio-start", "data": {{"rate": {rate}, "width": {width}, "channels": 1}}}}"#
            )
        };
        assert_eq!(param(&of(0, 2)), named("rate"));
        assert_eq!(param(&of(4_294_967_295_u32, 2)), named("rate"));
        assert_eq!(param(&of(16_000, 5)), named("width"));
        assert_eq!(param(r#"{"type": "select-program"}"#), named("name"));
    }

    #[test]
    fn an_event_tells_the_lengths_of_its_parts() {
        let bytes = event("audio-chunk", &serde_json::json!({"rate": 8000}), b"\x01\x02");
        let expected = "{\"type\":\"audio-chunk\",\"version\":\"1.10.2\",\"data_length\":13,\"payload_length\":2}\n{\"rate\":8000}\u{1}\u{2}";
        assert_eq!(bytes, expected.as_bytes());
    }
}
