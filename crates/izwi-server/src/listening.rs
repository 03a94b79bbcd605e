//! From what a client wants heard to the engine's request, and back: the checks and the forms of a transcript.

use std::ops::RangeInclusive;

use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_core::engine::{
    Engine, EngineCoreRequest, EngineOutput, GenerationParams, Priority, SamplingParams, TranscriptionOptions,
};
use izwi_core::transcript::{self, DurationUsage, VerboseTranscript};

use crate::dto::transcription::{TranscriptObject, TranscriptionRequest};
use crate::error::ApiError;
use crate::near;
use crate::upload::Recording;

/// Range of `temperature`. <https://platform.openai.com/docs/api-reference/audio/createTranscription>
const TEMPERATURE: RangeInclusive<f32> = 0.0..=1.0;
const FORMATS: &str = "json, text, srt, vtt, verbose_json";

/// What is wanted of the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// As they were said.
    Transcribe,
    /// In English.
    Translate,
}

/// A form of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    VerboseJson,
}

impl Format {
    fn parse(name: Option<&str>) -> Result<Self, ApiError> {
        match name {
            None | Some("json") => Ok(Self::Json),
            Some("text") => Ok(Self::Text),
            Some("srt") => Ok(Self::Srt),
            Some("vtt") => Ok(Self::Vtt),
            Some("verbose_json") => Ok(Self::VerboseJson),
            Some(other) => {
                let message =
                    format!("response_format '{}' is unknown; use one of {FORMATS}", near::shown(other));
                Err(ApiError::invalid("response_format", message))
            }
        }
    }

    /// Media type of a body in this form.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::VerboseJson => "application/json",
            Self::Text => "text/plain; charset=utf-8",
            // <https://www.iana.org/assignments/media-types/> knows text/vtt; SubRip has this customary name.
            Self::Srt => "application/x-subrip",
            Self::Vtt => "text/vtt",
        }
    }
}

/// How to listen, checked as far as that needs no model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    pub(crate) model: String,
    pub(crate) aim: Aim,
    pub(crate) format: Format,
    pub(crate) stream: bool,
    words: bool,
    language: Option<String>,
    prompt: Option<String>,
    temperature: Option<f32>,
    seed: Option<u64>,
    priority: Priority,
}

impl Ask {
    pub(crate) fn check(fields: TranscriptionRequest, aim: Aim) -> Result<Self, ApiError> {
        // SDKs send an empty string for "none".
        let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        let Some(model) = given(fields.model) else {
            return Err(ApiError::invalid("model", "model is missing; it is required, see /v1/models"));
        };
        let format = Format::parse(given(fields.response_format).as_deref())?;
        let words = wants_words(fields.timestamp_granularities.as_deref().unwrap_or_default(), format)?;
        if let Some(temperature) = fields.temperature.filter(|value| !TEMPERATURE.contains(value)) {
            let message = format!(
                "temperature is {temperature}; it must be between {} and {}",
                TEMPERATURE.start(),
                TEMPERATURE.end()
            );
            return Err(ApiError::invalid("temperature", message));
        }
        let prompt = given(fields.prompt);
        if prompt.as_ref().is_some_and(|prompt| prompt.chars().nth(MAX_TEXT_CHARS).is_some()) {
            let message = format!("prompt has more than {MAX_TEXT_CHARS} characters; send its last part");
            return Err(ApiError::invalid("prompt", message));
        }
        let priority = match given(fields.priority).as_deref() {
            None => Priority::Normal,
            Some(text) => text.parse().map_err(|message: String| ApiError::invalid("priority", message))?,
        };
        let stream = fields.stream.unwrap_or(false);
        check_stream(stream, format, aim)?;
        Ok(Self {
            model,
            aim,
            format,
            stream,
            words,
            language: given(fields.language),
            prompt,
            temperature: fields.temperature,
            seed: fields.seed,
            priority,
        })
    }

    /// The engine's request, if the model can do it.
    pub(crate) fn request(
        &self,
        recording: Recording,
        engine: &Engine,
    ) -> Result<EngineCoreRequest, ApiError> {
        let profile = engine.profile();
        let translate = self.aim == Aim::Translate;
        if translate && !profile.info.translates {
            let message = format!(
                "model '{}' does not translate; choose a multilingual one, see /v1/models",
                profile.model
            );
            return Err(ApiError::invalid("model", message));
        }
        let defaults = profile.default_params();
        let params = GenerationParams {
            sampling: SamplingParams { temperature: self.temperature.unwrap_or(0.0), ..defaults.sampling },
            seed: self.seed.or(defaults.seed),
            ..defaults
        };
        let options =
            TranscriptionOptions { prompt: self.prompt.clone(), translate, word_timestamps: self.words };
        let mut request = EngineCoreRequest::asr(recording.audio)
            .with_transcription(options)
            .with_params(params)
            .with_priority(self.priority);
        request.language.clone_from(&self.language);
        Ok(request)
    }

    /// The body of a finished transcript.
    pub(crate) fn render(&self, output: EngineOutput) -> Result<String, serde_json::Error> {
        let duration_s = output.stats.audio_duration.as_secs_f64();
        let transcript = output.transcript.unwrap_or_default();
        Ok(match self.format {
            Format::Text => transcript.text(),
            Format::Srt => transcript::srt(&transcript.segments),
            Format::Vtt => transcript::vtt(&transcript.segments),
            Format::Json => serde_json::to_string(&TranscriptObject {
                text: transcript.text(),
                usage: DurationUsage::new(duration_s),
            })?,
            Format::VerboseJson => {
                let translated = self.aim == Aim::Translate;
                serde_json::to_string(&VerboseTranscript::new(
                    &transcript,
                    translated,
                    duration_s,
                    self.words,
                ))?
            }
        })
    }
}

fn wants_words(granularities: &[String], format: Format) -> Result<bool, ApiError> {
    const FIELD: &str = "timestamp_granularities";
    if let Some(other) = granularities.iter().find(|name| !matches!(name.as_str(), "word" | "segment")) {
        let message = format!("{FIELD} has '{}'; use word or segment", near::shown(other));
        return Err(ApiError::invalid(FIELD, message));
    }
    let words = granularities.iter().any(|name| name == "word");
    if words && format != Format::VerboseJson {
        let message =
            format!("{FIELD} has 'word', which only response_format verbose_json carries; set that");
        return Err(ApiError::invalid(FIELD, message));
    }
    Ok(words)
}

fn check_stream(stream: bool, format: Format, aim: Aim) -> Result<(), ApiError> {
    if stream && aim == Aim::Translate {
        return Err(ApiError::invalid("stream", "translations are not streamed; leave stream out"));
    }
    if stream && !matches!(format, Format::Json | Format::Text) {
        let message = "stream is only for response_format json and text; leave stream or response_format out";
        return Err(ApiError::invalid("stream", message));
    }
    Ok(())
}

/// A text in pieces whose concatenation is the whole without the space around it.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    text: String,
    /// Space that belongs to the text only if more follows.
    held: String,
}

impl Pieces {
    /// Takes text as it comes and gives what can be said now.
    pub(crate) fn push(&mut self, text: &str) -> Option<String> {
        let text = if self.text.is_empty() { text.trim_start() } else { text };
        self.held.push_str(text);
        let said = self.held.trim_end().len();
        if said == 0 {
            return None;
        }
        let rest = self.held.split_off(said);
        let piece = std::mem::replace(&mut self.held, rest);
        self.text.push_str(&piece);
        Some(piece)
    }

    /// The whole text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_trimmed_whole() {
        let mut pieces = Pieces::default();
        let said: Vec<_> =
            ["  ", " Ask", " not. ", " ", "", " What ", "\n"].map(|text| pieces.push(text)).into();
        let said: Vec<_> = said.into_iter().flatten().collect();
        assert_eq!(said, ["Ask", " not.", "   What"]);
        assert_eq!(pieces.into_text(), said.concat());
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let fields = || TranscriptionRequest { model: Some("m".to_owned()), ..Default::default() };
        let check = |fields, aim, param: &str| {
            let error = Ask::check(fields, aim).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
        };
        let text = |text: &str| Some(text.to_owned());
        let words = Some(vec!["word".to_owned()]);
        check(TranscriptionRequest::default(), Aim::Transcribe, "model");
        check(TranscriptionRequest { model: text(" "), ..fields() }, Aim::Transcribe, "model");
        check(
            TranscriptionRequest { response_format: text("xml"), ..fields() },
            Aim::Transcribe,
            "response_format",
        );
        for temperature in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
            let fields = TranscriptionRequest { temperature: Some(temperature), ..fields() };
            check(fields, Aim::Transcribe, "temperature");
        }
        check(
            TranscriptionRequest { timestamp_granularities: words, ..fields() },
            Aim::Transcribe,
            "timestamp_granularities",
        );
        check(TranscriptionRequest { stream: Some(true), ..fields() }, Aim::Translate, "stream");
        check(TranscriptionRequest { priority: text("urgent"), ..fields() }, Aim::Transcribe, "priority");
        let srt = TranscriptionRequest { stream: Some(true), response_format: text("srt"), ..fields() };
        check(srt, Aim::Transcribe, "stream");
    }
}
