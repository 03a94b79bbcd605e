//! The fields of the requests that carry a recording, as JSON and as a form. Reads no body.

use izwi_types::excerpt;
use serde::de::DeserializeOwned;

use crate::dto::listing::VoiceRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;

/// The fields of a request that carries one recording.
pub(crate) trait RecordingFields: DeserializeOwned + Default + Send {
    /// Names of the form part that holds the recording; error messages name the first.
    const FILES: &'static [&'static str];
    /// Names of the text parts; other parts are ignored.
    const TEXTS: &'static [&'static str];
    /// Members of a JSON body that may hold the recording; error messages name the first.
    const MEMBERS: &'static [&'static str];
    /// Text parts that may occur more than once.
    const REPEATED: &'static [&'static str];

    /// Takes out the contents of [`MEMBERS`](Self::MEMBERS).
    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)>;

    /// Sets a field from a text part.
    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError>;
}

impl RecordingFields for TranscriptionRequest {
    const FILES: &'static [&'static str] = &["file"];
    const MEMBERS: &'static [&'static str] = &["audio", "audio_base64"];
    const TEXTS: &'static [&'static str] = &[
        "model",
        "language",
        "prompt",
        "response_format",
        "temperature",
        "timestamp_granularities",
        "timestamp_granularities[]",
        "stream",
        "seed",
        "priority",
    ];
    const REPEATED: &'static [&'static str] = &["timestamp_granularities", "timestamp_granularities[]"];

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("audio", self.audio.take()), ("audio_base64", self.audio_base64.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = Some(text),
            "language" => self.language = Some(text),
            "prompt" => self.prompt = Some(text),
            "response_format" => self.response_format = Some(text),
            "priority" => self.priority = Some(text),
            "temperature" => self.temperature = Some(parse(name, &text, "a number")?),
            "seed" => self.seed = Some(parse(name, &text, "a whole number from 0")?),
            "stream" => self.stream = Some(parse_bool(name, &text)?),
            "timestamp_granularities" | "timestamp_granularities[]" => {
                self.timestamp_granularities.get_or_insert_default().push(text);
            }
            _ => {}
        }
        Ok(())
    }
}

impl RecordingFields for VoiceRequest {
    const FILES: &'static [&'static str] = &["audio_sample", "file", "ref_audio"];
    const MEMBERS: &'static [&'static str] = &["ref_audio", "audio_sample"];
    const TEXTS: &'static [&'static str] =
        &["name", "model", "ref_text", "text", "x_vector_only_mode", "overwrite"];
    const REPEATED: &'static [&'static str] = &[];

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("ref_audio", self.ref_audio.take()), ("audio_sample", self.audio_sample.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "name" => self.name = Some(text),
            "model" => self.model = Some(text),
            "ref_text" => self.ref_text = Some(text),
            "text" => self.text = Some(text),
            "x_vector_only_mode" => self.x_vector_only_mode = Some(parse_bool(name, &text)?),
            "overwrite" => self.overwrite = Some(parse_bool(name, &text)?),
            _ => {}
        }
        Ok(())
    }
}

fn parse_bool(name: &str, text: &str) -> Result<bool, ApiError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(unparsable(name, text, "true or false")),
    }
}

fn parse<T: std::str::FromStr>(name: &str, text: &str, expected: &str) -> Result<T, ApiError> {
    text.trim().parse().map_err(|_| unparsable(name, text, expected))
}

fn unparsable(name: &str, text: &str, expected: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is '{}'; it must be {expected}", excerpt(text)))
}
