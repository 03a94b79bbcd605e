//! What each kind of request that brings a recording is made of, as JSON and as a form. Reads no body.

use serde::de::DeserializeOwned;

use crate::dto::listing::VoiceRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::near;

/// A request that brings one recording.
pub(crate) trait BringsRecording: DeserializeOwned + Default + Send {
    /// Names of the part of a form that is the recording; messages name the first.
    const FILES: &'static [&'static str];
    /// Names of the parts that are text; others are passed over.
    const TEXTS: &'static [&'static str];
    /// Those of them that may come more than once.
    const REPEATED: &'static [&'static str];

    /// Takes the members of a JSON body out that may be the recording; messages name the first.
    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)>;

    /// Takes a part of a form, which is always text.
    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError>;
}

impl BringsRecording for TranscriptionRequest {
    const FILES: &'static [&'static str] = &["file"];
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
            "temperature" => self.temperature = Some(parsed(name, &text, "a number")?),
            "seed" => self.seed = Some(parsed(name, &text, "a whole number from 0")?),
            "stream" => self.stream = Some(switch(name, &text)?),
            "timestamp_granularities" | "timestamp_granularities[]" => {
                self.timestamp_granularities.get_or_insert_default().push(text);
            }
            _ => {}
        }
        Ok(())
    }
}

impl BringsRecording for VoiceRequest {
    const FILES: &'static [&'static str] = &["audio_sample", "file", "ref_audio"];
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
            "x_vector_only_mode" => self.x_vector_only_mode = Some(switch(name, &text)?),
            "overwrite" => self.overwrite = Some(switch(name, &text)?),
            _ => {}
        }
        Ok(())
    }
}

fn switch(name: &str, text: &str) -> Result<bool, ApiError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(unparsed(name, text, "true or false")),
    }
}

fn parsed<T: std::str::FromStr>(name: &str, text: &str, expected: &str) -> Result<T, ApiError> {
    text.trim().parse().map_err(|_| unparsed(name, text, expected))
}

fn unparsed(name: &str, text: &str, expected: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is '{}'; it must be {expected}", near::shown(text)))
}
