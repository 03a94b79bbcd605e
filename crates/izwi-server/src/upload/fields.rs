//! The fields of the requests that carry a recording, as JSON and as a form. Reads no body.

use izwi_types::{ChunkingStrategy, OptionValue, TranscriptionOptions, VadFields, excerpt};
use serde::de::DeserializeOwned;

use crate::dto::alignment::AlignmentRequest;
use crate::dto::encoding::EncodingRequest;
use crate::dto::listing::VoiceRequest;
use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::extract::{parse_json, parse_json_telling, parse_with_options_telling};
use crate::ignored::IgnoredFields;

/// The members of `chunking_strategy` as parts of a form.
const VAD_PARTS: [&str; 4] = [
    "chunking_strategy[type]",
    "chunking_strategy[prefix_padding_ms]",
    "chunking_strategy[silence_duration_ms]",
    "chunking_strategy[threshold]",
];
/// The most bytes of a part that is not the recording, and of one that is a recording as text.
const MAX_TEXT_BYTES: usize = 256 << 10;
const MAX_REFERENCE_BYTES: usize = 4 << 20;
/// Parts with names of speakers, and with recordings of them.
const SPEAKER_PARTS: [(&str, usize); 4] = [
    ("known_speaker_names", MAX_TEXT_BYTES),
    ("known_speaker_names[]", MAX_TEXT_BYTES),
    ("known_speaker_references", MAX_REFERENCE_BYTES),
    ("known_speaker_references[]", MAX_REFERENCE_BYTES),
];

/// A text part of a form.
#[derive(Debug, Clone, Copy)]
pub struct TextPart {
    pub(crate) name: &'static str,
    /// Whether it may occur more than once.
    pub(crate) repeats: bool,
    /// The most bytes of one.
    pub(crate) max_bytes: usize,
}

impl TextPart {
    /// A part with little text.
    pub fn new(name: &'static str, repeats: bool) -> Self {
        Self { name, repeats, max_bytes: MAX_TEXT_BYTES }
    }
}

/// The fields of a request that carries one recording.
pub trait RecordingFields: DeserializeOwned + Default + Send {
    /// Names of the form part that holds the recording; error messages name the first.
    const FILES: &'static [&'static str];
    /// Members of a JSON body that may hold the recording; error messages name the first.
    const MEMBERS: &'static [&'static str];

    /// The text parts; other parts are ignored.
    fn texts() -> Vec<TextPart>;

    /// Reads a JSON body, and tells the members that nothing reads.
    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError>;

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

    fn texts() -> Vec<TextPart> {
        let mut options = TranscriptionOptions::default();
        let rows = options.rows().into_iter();
        let names = rows.flat_map(|row| [Some(row.name), row.alias].map(|name| (name, row.alias.is_some())));
        let options = names.filter_map(|(name, repeats)| Some(TextPart::new(name?, repeats)));
        let once =
            ["model", "response_format", "stream", "priority", "saved_speakers"].into_iter().chain(VAD_PARTS);
        let once = once.map(|name| TextPart::new(name, false));
        let lists = SPEAKER_PARTS.map(|(name, max_bytes)| TextPart { name, repeats: true, max_bytes });
        options.chain(once).chain(lists).collect()
    }

    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError> {
        parse_with_options_telling(json)
    }

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("audio", self.audio.take()), ("audio_base64", self.audio_base64.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = Some(text),
            "response_format" => self.response_format = Some(text),
            "priority" => self.priority = Some(text),
            "stream" => self.stream = Some(parse_bool(name, &text)?),
            "saved_speakers" => self.saved_speakers = Some(parse_bool(name, &text)?),
            "known_speaker_names" | "known_speaker_names[]" => {
                self.known_speaker_names.get_or_insert_default().push(text);
            }
            "known_speaker_references" | "known_speaker_references[]" => {
                self.known_speaker_references.get_or_insert_default().push(text);
            }
            _ => set_option(&mut self.options, name, text)?,
        }
        Ok(())
    }
}

/// Sets an option from a text part of its name, of its other name, or of one of its members.
fn set_option(options: &mut TranscriptionOptions, part: &str, text: String) -> Result<(), ApiError> {
    let name = part.split('[').next().unwrap_or_default();
    let Some(row) = options.rows().into_iter().find(|row| row.name == name) else { return Ok(()) };
    match row.value {
        OptionValue::Text(value, _) => *value = Some(text),
        OptionValue::Switch(value) => *value = parse_bool(part, &text)?,
        OptionValue::Number(value, ..) => *value = Some(parse(part, &text, "a number")?),
        OptionValue::Whole(value, range) => {
            *value = Some(parse(part, &text, &format!("a whole number from {}", range.start()))?);
        }
        OptionValue::List(list, _) => list.push(text),
        OptionValue::Chunking(value) if part == name => *value = Some(chunking_strategy(part, text)?),
        OptionValue::Chunking(value) => {
            let strategy = value.take().unwrap_or(ChunkingStrategy::Vad(VadFields::default()));
            *value = Some(with_vad_field(strategy, part, text)?);
        }
    }
    Ok(())
}

impl RecordingFields for AlignmentRequest {
    const FILES: &'static [&'static str] = &["file"];
    const MEMBERS: &'static [&'static str] = &["audio", "audio_base64"];

    fn texts() -> Vec<TextPart> {
        const NAMES: [&str; 5] = ["model", "text", "language", "response_format", "priority"];
        NAMES.map(|name| TextPart::new(name, false)).into()
    }

    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError> {
        parse_json_telling(json)
    }

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("audio", self.audio.take()), ("audio_base64", self.audio_base64.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = Some(text),
            "text" => self.text = text,
            "language" => self.language = Some(text),
            "response_format" => self.response_format = Some(text),
            "priority" => self.priority = Some(text),
            _ => {}
        }
        Ok(())
    }
}

impl RecordingFields for EncodingRequest {
    const FILES: &'static [&'static str] = &["file"];
    const MEMBERS: &'static [&'static str] = &["audio", "audio_base64"];

    fn texts() -> Vec<TextPart> {
        ["response_format", "sample_rate", "bit_rate"].map(|name| TextPart::new(name, false)).into()
    }

    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError> {
        parse_json_telling(json)
    }

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("audio", self.audio.take()), ("audio_base64", self.audio_base64.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "response_format" => self.response_format = Some(text),
            "sample_rate" => self.sample_rate = Some(parse(name, &text, "a whole number of Hz")?),
            "bit_rate" => self.bit_rate = Some(parse(name, &text, "a whole number of bits per second")?),
            _ => {}
        }
        Ok(())
    }
}

impl RecordingFields for VoiceRequest {
    const FILES: &'static [&'static str] = &["audio_sample", "file", "ref_audio"];
    const MEMBERS: &'static [&'static str] = &["ref_audio", "audio_sample"];

    fn texts() -> Vec<TextPart> {
        const NAMES: [&str; 9] = [
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
        NAMES.map(|name| TextPart::new(name, false)).into()
    }

    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError> {
        parse_json_telling(json)
    }

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

/// A switch of a form.
///
/// # Errors
/// It is neither true nor false.
pub fn parse_bool(name: &str, text: &str) -> Result<bool, ApiError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(unparsable(name, text, "true or false")),
    }
}

/// A value of a form, which is `expected`.
///
/// # Errors
/// It cannot be read.
pub fn parse<T: std::str::FromStr>(name: &str, text: &str, expected: &str) -> Result<T, ApiError> {
    text.trim().parse().map_err(|_| unparsable(name, text, expected))
}

fn unparsable(name: &str, text: &str, expected: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is '{}'; it must be {expected}", excerpt(text)))
}
