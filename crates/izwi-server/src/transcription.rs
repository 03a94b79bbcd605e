//! From the fields of a transcription request to the engine's request, and from a transcript to its response body.

use std::ops::RangeInclusive;

use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_core::engine::{
    Engine, EngineCoreRequest, EngineOutput, GenerationParams, Priority, SamplingParams, TranscriptionOptions,
};
use izwi_types::excerpt;

use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::transcript_format::{AsrTask, FinishedTranscript, TranscriptFormat};
use crate::upload::Recording;

/// Range of `temperature`. <https://platform.openai.com/docs/api-reference/audio/createTranscription>
const TEMPERATURE: RangeInclusive<f32> = 0.0..=1.0;

/// A request whose fields are checked, as far as possible without the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CheckedRequest {
    pub(crate) model: String,
    pub(crate) task: AsrTask,
    pub(crate) format: TranscriptFormat,
    pub(crate) stream: bool,
    words: bool,
    language: Option<String>,
    prompt: Option<String>,
    temperature: Option<f32>,
    seed: Option<u64>,
    priority: Priority,
}

impl CheckedRequest {
    pub(crate) fn check(fields: TranscriptionRequest, task: AsrTask) -> Result<Self, ApiError> {
        let Some(model) = non_blank(fields.model) else {
            return Err(ApiError::invalid("model", "model is missing; it is required, see /v1/models"));
        };
        let format = parse_format(non_blank(fields.response_format).as_deref())?;
        let words = wants_words(fields.timestamp_granularities.as_deref().unwrap_or_default(), format)?;
        if let Some(temperature) = fields.temperature {
            check_range("temperature", temperature, &TEMPERATURE)?;
        }
        let prompt = non_blank(fields.prompt);
        if prompt.as_ref().is_some_and(|prompt| prompt.chars().nth(MAX_TEXT_CHARS).is_some()) {
            let message = format!("prompt has more than {MAX_TEXT_CHARS} characters; send its last part");
            return Err(ApiError::invalid("prompt", message));
        }
        let priority = parse_priority(non_blank(fields.priority).as_deref())?;
        let stream = fields.stream.unwrap_or(false);
        check_stream(stream, format, task)?;
        Ok(Self {
            model,
            task,
            format,
            stream,
            words,
            language: non_blank(fields.language),
            prompt,
            temperature: fields.temperature,
            seed: fields.seed,
            priority,
        })
    }

    /// The engine's request, if the model supports the task.
    pub(crate) fn request(
        &self,
        recording: Recording,
        engine: &Engine,
    ) -> Result<EngineCoreRequest, ApiError> {
        let profile = engine.profile();
        let translate = self.task == AsrTask::Translate;
        if translate && !profile.info.translates {
            let message = format!(
                "model '{}' does not support translation; choose a multilingual one, see /v1/models",
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
        self.format.render(&FinishedTranscript {
            transcript: &output.transcript.unwrap_or_default(),
            task: self.task,
            duration_s: output.stats.audio_duration.as_secs_f64(),
            with_words: self.words,
        })
    }
}

/// Reads `response_format`.
fn parse_format(name: Option<&str>) -> Result<TranscriptFormat, ApiError> {
    let Some(name) = name else { return Ok(TranscriptFormat::Json) };
    TranscriptFormat::parse(name).ok_or_else(|| {
        let (name, known) = (excerpt(name), TranscriptFormat::names().join(", "));
        ApiError::invalid(
            "response_format",
            format!("response_format '{name}' is unknown; use one of {known}"),
        )
    })
}

fn wants_words(granularities: &[String], format: TranscriptFormat) -> Result<bool, ApiError> {
    const FIELD: &str = "timestamp_granularities";
    if let Some(other) = granularities.iter().find(|name| !matches!(name.as_str(), "word" | "segment")) {
        let message = format!("{FIELD} has '{}'; use word or segment", excerpt(other));
        return Err(ApiError::invalid(FIELD, message));
    }
    let words = granularities.iter().any(|name| name == "word");
    if words && format != TranscriptFormat::VerboseJson {
        let message =
            format!("{FIELD} has 'word', which only response_format verbose_json carries; set that");
        return Err(ApiError::invalid(FIELD, message));
    }
    Ok(words)
}

fn check_stream(stream: bool, format: TranscriptFormat, task: AsrTask) -> Result<(), ApiError> {
    if stream && task == AsrTask::Translate {
        return Err(ApiError::invalid("stream", "translations are not streamed; leave stream out"));
    }
    if stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
        let message = "stream is only for response_format json and text; leave stream or response_format out";
        return Err(ApiError::invalid("stream", message));
    }
    Ok(())
}

/// Splits a text into deltas whose concatenation is the trimmed text.
#[derive(Debug, Default)]
pub(crate) struct TextDeltas {
    text: String,
    /// White space that belongs to the text only if more follows.
    held: String,
}

impl TextDeltas {
    /// Takes the next text and returns the delta to send, if there is one.
    pub(crate) fn push(&mut self, text: &str) -> Option<String> {
        let text = if self.text.is_empty() { text.trim_start() } else { text };
        self.held.push_str(text);
        let length = self.held.trim_end().len();
        if length == 0 {
            return None;
        }
        let rest = self.held.split_off(length);
        let delta = std::mem::replace(&mut self.held, rest);
        self.text.push_str(&delta);
        Some(delta)
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
    fn deltas_concatenate_to_the_trimmed_text() {
        let mut deltas = TextDeltas::default();
        let pushed = ["  ", " Ask", " not. ", " ", "", " What ", "\n"].map(|text| deltas.push(text));
        let sent: Vec<_> = pushed.into_iter().flatten().collect();
        assert_eq!(sent, ["Ask", " not.", "   What"]);
        assert_eq!(deltas.into_text(), sent.concat());
    }

    #[test]
    fn conflicting_fields_are_refused_by_name() {
        let fields = || TranscriptionRequest { model: Some("m".to_owned()), ..Default::default() };
        let check = |fields, task, param: &str| {
            let error = CheckedRequest::check(fields, task).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
        };
        let text = |text: &str| Some(text.to_owned());
        let words = Some(vec!["word".to_owned()]);
        check(TranscriptionRequest::default(), AsrTask::Transcribe, "model");
        check(TranscriptionRequest { model: text(" "), ..fields() }, AsrTask::Transcribe, "model");
        check(
            TranscriptionRequest { response_format: text("xml"), ..fields() },
            AsrTask::Transcribe,
            "response_format",
        );
        for temperature in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
            let fields = TranscriptionRequest { temperature: Some(temperature), ..fields() };
            check(fields, AsrTask::Transcribe, "temperature");
        }
        check(
            TranscriptionRequest { timestamp_granularities: words, ..fields() },
            AsrTask::Transcribe,
            "timestamp_granularities",
        );
        check(TranscriptionRequest { stream: Some(true), ..fields() }, AsrTask::Translate, "stream");
        check(TranscriptionRequest { priority: text("urgent"), ..fields() }, AsrTask::Transcribe, "priority");
        let srt = TranscriptionRequest { stream: Some(true), response_format: text("srt"), ..fields() };
        check(srt, AsrTask::Transcribe, "stream");
    }
}
