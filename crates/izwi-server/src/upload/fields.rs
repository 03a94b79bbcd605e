//! The fields of the requests that carry a recording, as JSON and as a form. Reads no body.

use izwi_types::excerpt;
use serde::de::DeserializeOwned;

use crate::dto::listing::VoiceRequest;
use crate::dto::transcription::{ChunkingStrategy, TranscriptionRequest, VadFields};
use crate::error::ApiError;
use crate::extract::parse_json;

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

    /// Refuses fields that ask for what needs no recording.
    fn check(&self) -> Result<(), ApiError> {
        Ok(())
    }
}

impl RecordingFields for TranscriptionRequest {
    const FILES: &'static [&'static str] = &["file"];
    const MEMBERS: &'static [&'static str] = &["audio", "audio_base64"];
    const TEXTS: &'static [&'static str] = &[
        "model",
        "language",
        "translate",
        "prompt",
        "response_format",
        "temperature",
        "beam_size",
        "patience",
        "length_penalty",
        "timestamp_granularities",
        "timestamp_granularities[]",
        "stream",
        "seed",
        "priority",
        "include",
        "include[]",
        "chunking_strategy",
        "chunking_strategy[type]",
        "chunking_strategy[prefix_padding_ms]",
        "chunking_strategy[silence_duration_ms]",
        "chunking_strategy[threshold]",
        "languages",
        "languages[]",
        "keywords",
        "keywords[]",
        "known_speaker_names",
        "known_speaker_names[]",
        "known_speaker_references",
        "known_speaker_references[]",
    ];
    const REPEATED: &'static [&'static str] = &[
        "timestamp_granularities",
        "timestamp_granularities[]",
        "include",
        "include[]",
        "languages",
        "languages[]",
        "keywords",
        "keywords[]",
        "known_speaker_names",
        "known_speaker_names[]",
        "known_speaker_references",
        "known_speaker_references[]",
    ];

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("audio", self.audio.take()), ("audio_base64", self.audio_base64.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = Some(text),
            "language" => self.language = Some(text),
            "translate" => self.translate = Some(parse_bool(name, &text)?),
            "prompt" => self.prompt = Some(text),
            "response_format" => self.response_format = Some(text),
            "priority" => self.priority = Some(text),
            "temperature" => self.temperature = Some(parse(name, &text, "a number")?),
            "beam_size" => self.beam_size = Some(parse(name, &text, "a whole number from 1")?),
            "patience" => self.patience = Some(parse(name, &text, "a number")?),
            "length_penalty" => self.length_penalty = Some(parse(name, &text, "a number")?),
            "seed" => self.seed = Some(parse(name, &text, "a whole number from 0")?),
            "stream" => self.stream = Some(parse_bool(name, &text)?),
            "timestamp_granularities" | "timestamp_granularities[]" => {
                self.timestamp_granularities.get_or_insert_default().push(text);
            }
            "include" | "include[]" => self.include.get_or_insert_default().push(text),
            "languages" | "languages[]" => self.languages.get_or_insert_default().push(text),
            "keywords" | "keywords[]" => self.keywords.get_or_insert_default().push(text),
            "known_speaker_names" | "known_speaker_names[]" => {
                self.known_speaker_names.get_or_insert_default().push(text);
            }
            "known_speaker_references" | "known_speaker_references[]" => {
                self.known_speaker_references.get_or_insert_default().push(text);
            }
            "chunking_strategy" => self.chunking_strategy = Some(chunking_strategy(name, text)?),
            _ if name.starts_with("chunking_strategy[") => {
                let strategy =
                    self.chunking_strategy.take().unwrap_or(ChunkingStrategy::Vad(VadFields::default()));
                self.chunking_strategy = Some(with_vad_field(strategy, name, text)?);
            }
            _ => {}
        }
        Ok(())
    }
}

impl RecordingFields for VoiceRequest {
    const FILES: &'static [&'static str] = &["audio_sample", "file", "ref_audio"];
    const MEMBERS: &'static [&'static str] = &["ref_audio", "audio_sample"];
    const TEXTS: &'static [&'static str] = &[
        "name",
        "model",
        "ref_text",
        "text",
        "x_vector_only_mode",
        "overwrite",
        "type",
        "prompt",
        "script_hint",
    ];
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
            "type" => self.kind = Some(text),
            "prompt" => self.prompt = Some(text),
            "script_hint" => self.script_hint = Some(text),
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ApiError> {
        const REMEDY: &str = "voices are made of recordings only; send one in audio_sample";
        if let Some(kind) = self.kind.as_deref().filter(|kind| *kind != "audio_sample") {
            return Err(ApiError::invalid("type", format!("type is '{}'; {REMEDY}", excerpt(kind))));
        }
        for (param, given) in [("prompt", &self.prompt), ("script_hint", &self.script_hint)] {
            if given.as_ref().is_some_and(|text| !text.is_empty()) {
                return Err(ApiError::invalid(param, format!("{param} describes a voice; {REMEDY}")));
            }
        }
        Ok(())
    }
}

/// Reads a strategy of one text part: a name, or an object as JSON.
fn chunking_strategy(name: &str, text: String) -> Result<ChunkingStrategy, ApiError> {
    if !text.trim_start().starts_with('{') {
        return Ok(ChunkingStrategy::Named(text));
    }
    let inside = |error: ApiError| match error {
        ApiError::Invalid { param, message } => ApiError::invalid(&format!("{name}.{param}"), message),
        ApiError::MalformedJson(message) => ApiError::invalid(name, format!("{name} is no JSON: {message}")),
        other => other,
    };
    parse_json(text.as_bytes()).map(ChunkingStrategy::Vad).map_err(inside)
}

/// Sets one member of an object that comes as parts of a form.
fn with_vad_field(
    strategy: ChunkingStrategy,
    name: &str,
    text: String,
) -> Result<ChunkingStrategy, ApiError> {
    let ChunkingStrategy::Vad(mut vad) = strategy else {
        let message = format!("chunking_strategy and {name} are both given; send one");
        return Err(ApiError::invalid(name, message));
    };
    match name {
        "chunking_strategy[type]" => vad.kind = Some(text),
        "chunking_strategy[prefix_padding_ms]" => {
            vad.prefix_padding_ms = Some(parse(name, &text, "a whole number of milliseconds")?);
        }
        "chunking_strategy[silence_duration_ms]" => {
            vad.silence_duration_ms = Some(parse(name, &text, "a whole number of milliseconds")?);
        }
        _ => vad.threshold = Some(parse(name, &text, "a number")?),
    }
    Ok(ChunkingStrategy::Vad(vad))
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
