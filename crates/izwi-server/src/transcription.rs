//! From the fields of a transcription request to the engine's request, and from a transcript to its response body.

use std::ops::RangeInclusive;
use std::time::Duration;

use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_core::engine::{
    BeamSearch, Engine, EngineCoreRequest, EngineOutput, GenerationParams, Priority, RequestStats,
    SamplingParams, TranscriptionOptions,
};
use izwi_types::{SpeechDetection, excerpt};

use crate::dto::schemas::MAX_VAD_MS;
use crate::dto::transcription::{ChunkingStrategy, TranscriptionRequest};
use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::transcript_format::{AsrTask, FinishedTranscript, JsonExtras, TokenUsage, TranscriptFormat};
use crate::upload::Recording;

/// Range of `temperature`. <https://platform.openai.com/docs/api-reference/audio/createTranscription>
const TEMPERATURE: RangeInclusive<f32> = 0.0..=1.0;
/// The most entries of `languages` and `keywords`, and characters of a keyword.
const MAX_LANGUAGES: usize = 32;
const MAX_KEYWORDS: usize = 128;
const MAX_KEYWORD_CHARS: usize = 128;
/// Values of a `server_vad` that sets none.
/// <https://platform.openai.com/docs/api-reference/audio/createTranscription#audio-createtranscription-chunking_strategy>
const VAD_THRESHOLD: f32 = 0.5;
const VAD_PREFIX_MS: u64 = 300;
const VAD_SILENCE_MS: u64 = 200;
/// Range of the times of a `server_vad`.
const VAD_MS: RangeInclusive<u64> = 0..=MAX_VAD_MS;

/// A request whose fields are checked, as far as possible without the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CheckedRequest {
    /// `None` for the default one.
    pub(crate) model: Option<String>,
    pub(crate) task: AsrTask,
    pub(crate) format: TranscriptFormat,
    pub(crate) stream: bool,
    words: bool,
    pub(crate) logprobs: bool,
    language: Option<String>,
    languages: Vec<String>,
    keywords: Vec<String>,
    search: BeamSearch,
    detection: Option<SpeechDetection>,
    prompt: Option<String>,
    temperature: Option<f32>,
    seed: Option<u64>,
    priority: Priority,
}

impl CheckedRequest {
    pub(crate) fn check(fields: TranscriptionRequest, task: AsrTask) -> Result<Self, ApiError> {
        refuse_speakers(&fields)?;
        let model = non_blank(fields.model);
        let task = if fields.translate == Some(true) { AsrTask::Translate } else { task };
        let format = parse_format(non_blank(fields.response_format).as_deref())?;
        let logprobs = wants_logprobs(fields.include.as_deref().unwrap_or_default(), format)?;
        let language = non_blank(fields.language).filter(|language| !language.eq_ignore_ascii_case("auto"));
        let languages = check_languages(fields.languages.unwrap_or_default(), language.is_some())?;
        let keywords = check_keywords(fields.keywords.unwrap_or_default())?;
        let search = BeamSearch {
            beam_size: fields.beam_size,
            patience: fields.patience,
            length_penalty: fields.length_penalty,
        };
        search.check().map_err(|error| ApiError::invalid(error.param, error.message))?;
        let detection = fields.chunking_strategy.map(detection).transpose()?.flatten();
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
        check_stream(stream, format)?;
        Ok(Self {
            model,
            task,
            format,
            stream,
            words,
            logprobs,
            language,
            languages,
            keywords,
            search,
            detection,
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
        let options = TranscriptionOptions {
            prompt: self.prompt.clone(),
            translate,
            languages: self.languages.clone(),
            keywords: self.keywords.clone(),
            word_timestamps: self.words,
            logprobs: self.logprobs,
            detection: self.detection,
            search: self.search,
            is_streamed: self.stream,
            window: None,
        };
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
            extras: self.extras(&output.stats),
        })
    }

    /// What a plain JSON transcript has beside its text. Models of a name that is billed by tokens tell tokens.
    pub(crate) fn extras(&self, stats: &RequestStats) -> JsonExtras {
        let tokens = TokenUsage { input: stats.prompt_tokens, output: stats.generated_tokens };
        JsonExtras {
            logprobs: self.logprobs,
            languages: self.model.as_deref().is_some_and(tells_languages),
            tokens: Some(tokens)
                .filter(|_| self.model.as_deref().is_some_and(|model| model.starts_with("gpt-"))),
        }
    }
}

/// Whether responses of the model of this name list the detected languages.
fn tells_languages(model: &str) -> bool {
    model.starts_with("gpt-transcribe")
}

/// Refuses fields that ask who speaks.
fn refuse_speakers(fields: &TranscriptionRequest) -> Result<(), ApiError> {
    let asked = [
        ("known_speaker_names", &fields.known_speaker_names),
        ("known_speaker_references", &fields.known_speaker_references),
    ];
    match asked.into_iter().find(|(_, list)| list.as_ref().is_some_and(|list| !list.is_empty())) {
        Some((param, _)) => {
            Err(ApiError::invalid(param, format!("no model here tells speakers apart; leave {param} out")))
        }
        None => Ok(()),
    }
}

fn wants_logprobs(include: &[String], format: TranscriptFormat) -> Result<bool, ApiError> {
    if let Some(other) = include.iter().find(|name| *name != "logprobs") {
        let message = format!("include has '{}'; use logprobs", excerpt(other));
        return Err(ApiError::invalid("include", message));
    }
    if !include.is_empty() && format != TranscriptFormat::Json {
        let message = "include has 'logprobs', which only response_format json carries; set that";
        return Err(ApiError::invalid("include", message));
    }
    Ok(!include.is_empty())
}

fn check_languages(languages: Vec<String>, has_language: bool) -> Result<Vec<String>, ApiError> {
    let languages: Vec<String> = languages.into_iter().filter_map(|name| non_blank(Some(name))).collect();
    if languages.len() > MAX_LANGUAGES {
        let message = format!("languages has more than {MAX_LANGUAGES} entries; send fewer");
        return Err(ApiError::invalid("languages", message));
    }
    if has_language && !languages.is_empty() {
        return Err(ApiError::invalid("languages", "language and languages are both given; send one"));
    }
    Ok(languages)
}

fn check_keywords(keywords: Vec<String>) -> Result<Vec<String>, ApiError> {
    let is_long = |keyword: &String| keyword.chars().nth(MAX_KEYWORD_CHARS).is_some();
    if keywords.len() > MAX_KEYWORDS || keywords.iter().any(is_long) {
        let message = format!(
            "keywords has more than {MAX_KEYWORDS} entries, or one of more than {MAX_KEYWORD_CHARS} characters; send less"
        );
        return Err(ApiError::invalid("keywords", message));
    }
    Ok(keywords)
}

/// Reads `chunking_strategy`. `auto` is what the models do without it.
fn detection(strategy: ChunkingStrategy) -> Result<Option<SpeechDetection>, ApiError> {
    let unknown = |param: &str, name: &str| {
        let message =
            format!("{param} '{}' is unknown; use \"auto\" or an object of type server_vad", excerpt(name));
        Err(ApiError::invalid(param, message))
    };
    let vad = match strategy {
        ChunkingStrategy::Named(name) if name == "auto" => return Ok(None),
        ChunkingStrategy::Named(name) => return unknown("chunking_strategy", &name),
        ChunkingStrategy::Vad(vad) => vad,
    };
    let kind = vad.kind.unwrap_or_default();
    if kind != "server_vad" {
        return unknown("chunking_strategy.type", &kind);
    }
    let threshold = vad.threshold.unwrap_or(VAD_THRESHOLD);
    check_range("chunking_strategy.threshold", threshold, &(0.0..=1.0))?;
    let ms = |param: &str, value: Option<u64>, default: u64| {
        check_range(param, value.unwrap_or(default), &VAD_MS).map(Duration::from_millis)
    };
    Ok(Some(SpeechDetection {
        threshold,
        prefix_padding: ms("chunking_strategy.prefix_padding_ms", vad.prefix_padding_ms, VAD_PREFIX_MS)?,
        silence: ms("chunking_strategy.silence_duration_ms", vad.silence_duration_ms, VAD_SILENCE_MS)?,
    }))
}

/// Reads `response_format`.
fn parse_format(name: Option<&str>) -> Result<TranscriptFormat, ApiError> {
    let Some(name) = name else { return Ok(TranscriptFormat::Json) };
    TranscriptFormat::parse(name).ok_or_else(|| {
        if name == "diarized_json" {
            let message = "response_format 'diarized_json' needs a model that tells speakers apart, and no model here does; use verbose_json";
            return ApiError::invalid("response_format", message);
        }
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

fn check_stream(stream: bool, format: TranscriptFormat) -> Result<(), ApiError> {
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
    use crate::extract::parse_json;

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
        for model in [None, text(" ")] {
            let checked =
                CheckedRequest::check(TranscriptionRequest { model, ..fields() }, AsrTask::Transcribe);
            assert_eq!(checked.unwrap().model, None, "the default model");
        }
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
        let list = |entries: &[&str]| Some(entries.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>());
        let transcribe = |fields, param: &str| check(fields, AsrTask::Transcribe, param);
        transcribe(TranscriptionRequest { include: list(&["all"]), ..fields() }, "include");
        let include = list(&["logprobs"]);
        transcribe(TranscriptionRequest { include, response_format: text("text"), ..fields() }, "include");
        let names = list(&["agent"]);
        transcribe(
            TranscriptionRequest { known_speaker_names: names.clone(), ..fields() },
            "known_speaker_names",
        );
        transcribe(
            TranscriptionRequest { known_speaker_references: names, ..fields() },
            "known_speaker_references",
        );
        transcribe(
            TranscriptionRequest { response_format: text("diarized_json"), ..fields() },
            "response_format",
        );
        let both = TranscriptionRequest { language: text("en"), languages: list(&["de"]), ..fields() };
        transcribe(both, "languages");
        transcribe(TranscriptionRequest { beam_size: Some(11), ..fields() }, "beam_size");
        transcribe(TranscriptionRequest { patience: Some(0.0), ..fields() }, "patience");
        transcribe(TranscriptionRequest { length_penalty: Some(1.5), ..fields() }, "length_penalty");
        let many = vec!["en"; MAX_LANGUAGES + 1];
        transcribe(TranscriptionRequest { languages: list(&many), ..fields() }, "languages");
        for keywords in [vec!["a".to_owned(); MAX_KEYWORDS + 1], vec!["é".repeat(MAX_KEYWORD_CHARS + 1)]] {
            transcribe(TranscriptionRequest { keywords: Some(keywords), ..fields() }, "keywords");
        }
        check(TranscriptionRequest { priority: text("urgent"), ..fields() }, AsrTask::Transcribe, "priority");
        let srt = TranscriptionRequest { stream: Some(true), response_format: text("srt"), ..fields() };
        check(srt, AsrTask::Transcribe, "stream");
    }

    #[test]
    fn a_chunking_strategy_sets_the_detection() {
        let read = |json: &str| {
            let json = format!(r#"{{"model":"m","chunking_strategy":{json}}}"#);
            let fields: TranscriptionRequest = parse_json(json.as_bytes())?;
            Ok::<_, ApiError>(CheckedRequest::check(fields, AsrTask::Transcribe)?.detection)
        };
        for auto in ["null", r#""auto""#] {
            assert_eq!(read(auto), Ok(None));
        }
        let vad = |threshold, prefix, silence| {
            let (prefix_padding, silence) = (Duration::from_millis(prefix), Duration::from_millis(silence));
            Ok(Some(SpeechDetection { threshold, prefix_padding, silence }))
        };
        assert_eq!(read(r#"{"type":"server_vad"}"#), vad(0.5, 300, 200));
        let all =
            r#"{"type":"server_vad","threshold":0.25,"prefix_padding_ms":0,"silence_duration_ms":10000}"#;
        assert_eq!(read(all), vad(0.25, 0, 10_000));
        for (json, param) in [
            (r#""none""#, "chunking_strategy"),
            (r#""""#, "chunking_strategy"),
            ("7", "chunking_strategy"),
            ("{}", "chunking_strategy.type"),
            (r#"{"type":"semantic_vad"}"#, "chunking_strategy.type"),
            (r#"{"type":"server_vad","threshold":"loud"}"#, "chunking_strategy.threshold"),
            (r#"{"type":"server_vad","threshold":1.5}"#, "chunking_strategy.threshold"),
            (r#"{"type":"server_vad","prefix_padding_ms":-1}"#, "chunking_strategy.prefix_padding_ms"),
            (r#"{"type":"server_vad","silence_duration_ms":10001}"#, "chunking_strategy.silence_duration_ms"),
        ] {
            assert_eq!(read(json).unwrap_err().param(), Some(param), "{json}");
        }
    }
}
