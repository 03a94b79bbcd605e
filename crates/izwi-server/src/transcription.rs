//! From the fields of a transcription request to the engine's request, and from a transcript to its response body.

use izwi_core::engine::AudioInput;
use izwi_core::engine::{
    Engine, EngineCoreRequest, EngineOutput, Priority, RequestStats, Task, TranscriptionOptions,
};
use izwi_types::excerpt;

use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::extract::{non_blank, parse_priority};
use crate::ignored::IgnoredFields;
use crate::registry::Lease;
use crate::speakers::{Reference, Speakers};
use crate::state::AppState;
use crate::transcript_format::{AsrTask, FinishedTranscript, JsonExtras, TokenUsage, TranscriptFormat};
use crate::upload::Recording;

/// The most speakers whose names are known, and characters of a name.
const MAX_KNOWN: usize = 16;
const MAX_NAME_CHARS: usize = 64;

/// A request whose fields are checked, as far as possible without the model.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedRequest {
    /// `None` for the default one.
    pub(crate) model: Option<String>,
    pub(crate) format: TranscriptFormat,
    pub(crate) stream: bool,
    pub(crate) options: TranscriptionOptions,
    pub(crate) priority: Priority,
    /// Whether the answer lists words.
    pub(crate) with_words: bool,
    /// Speakers whose names are known.
    pub(crate) references: Vec<Reference>,
    /// Whether saved speakers are told by their names; `None` as the server's setting says.
    pub(crate) saved_speakers: Option<bool>,
}

impl CheckedRequest {
    /// A request for a transcript of one model, by a client of which no more is known than these options.
    ///
    /// # Errors
    /// An option cannot be used.
    pub fn of_options(
        model: &str,
        options: TranscriptionOptions,
        response_format: Option<&str>,
        stream: bool,
    ) -> Result<Self, ApiError> {
        let fields = TranscriptionRequest {
            model: Some(model.to_owned()),
            response_format: response_format.map(str::to_owned),
            stream: Some(stream),
            options,
            ..TranscriptionRequest::default()
        };
        Self::check(fields, AsrTask::Transcribe)
    }

    /// Checks the fields of a request.
    pub(crate) fn check(fields: TranscriptionRequest, task: AsrTask) -> Result<Self, ApiError> {
        let format = parse_format(non_blank(fields.response_format).as_deref())?;
        let references = references(fields.known_speaker_names, fields.known_speaker_references, format)?;
        let options = fields.options.checked();
        let mut options = options.map_err(|error| ApiError::invalid(error.param, error.message))?;
        options.translate |= task == AsrTask::Translate;
        check_format(&options, format)?;
        let saved_speakers = fields.saved_speakers;
        if saved_speakers.is_some() && format != TranscriptFormat::DiarizedJson {
            let message =
                "saved_speakers is only for transcripts with speakers; set response_format to diarized_json";
            return Err(ApiError::invalid("saved_speakers", message));
        }
        let with_words = options.words();
        if format == TranscriptFormat::DiarizedJson {
            if options.translate {
                let message = "response_format 'diarized_json' is only for transcriptions; use verbose_json";
                return Err(ApiError::invalid("response_format", message));
            }
            // Speakers are those of words.
            options = options.with_words();
        }
        let priority = parse_priority(non_blank(fields.priority).as_deref())?;
        let stream = fields.stream.unwrap_or(false);
        check_stream(stream, format)?;
        let model = non_blank(fields.model);
        Ok(Self { model, format, stream, options, priority, with_words, references, saved_speakers })
    }

    /// Leases the model that tells speakers, where the format has them, and then that of the words. Whether the latter stands in
    /// for the one that is named is noted.
    ///
    /// # Errors
    /// A model is missing or cannot be loaded, or a reference of a speaker cannot be used.
    pub(crate) async fn lease(
        &self,
        state: &AppState,
        ignored: &mut IgnoredFields,
    ) -> Result<(Option<Speakers>, Lease), ApiError> {
        let speakers = match self.format {
            TranscriptFormat::DiarizedJson => {
                let speakers = Speakers::lease(state, "response_format", self.saved_speakers).await?;
                let references = self.references.clone();
                Some(speakers.with_known(references, self.priority, "known_speaker_references").await?)
            }
            _ => None,
        };
        let engine = state.lease(self.model.as_deref(), Task::Asr).await?;
        if self.model.as_deref().is_some_and(|model| state.registry().is_stand_in(model)) {
            ignored.add("model");
        }
        Ok((speakers, engine))
    }

    /// The engine's request, if the model supports the task.
    pub fn request(&self, recording: Recording, engine: &Engine) -> Result<EngineCoreRequest, ApiError> {
        let profile = engine.profile();
        if self.options.translate && !profile.info.translates {
            let message = format!(
                "model '{}' does not support translation; choose a multilingual one, see /v1/models",
                profile.model
            );
            return Err(ApiError::invalid("model", message));
        }
        Ok(EngineCoreRequest::asr(recording.audio)
            .with_transcription(self.options.clone())
            .with_streaming(self.stream)
            .with_priority(self.priority))
    }

    /// The body of a finished transcript.
    pub(crate) fn render(&self, output: EngineOutput) -> Result<String, serde_json::Error> {
        self.format.render(&FinishedTranscript {
            transcript: &output.transcript.unwrap_or_default(),
            task: if self.options.translate { AsrTask::Translate } else { AsrTask::Transcribe },
            duration_s: output.stats.audio_duration.as_secs_f64(),
            with_words: self.with_words,
            extras: self.extras(&output.stats),
        })
    }

    /// What a plain JSON transcript has besides its text.
    pub(crate) fn extras(&self, stats: &RequestStats) -> JsonExtras {
        self.extras_of(TokenUsage { input: stats.prompt_tokens, output: stats.generated_tokens })
    }

    /// The same of a transcript that took these tokens. Models of a name that is billed by tokens tell them.
    pub(crate) fn extras_of(&self, tokens: TokenUsage) -> JsonExtras {
        JsonExtras {
            logprobs: self.options.logprobs(),
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

/// The speakers whose names are known, each by a recording.
fn references(
    names: Option<Vec<String>>,
    recordings: Option<Vec<String>>,
    format: TranscriptFormat,
) -> Result<Vec<Reference>, ApiError> {
    const PARAMS: [&str; 2] = ["known_speaker_names", "known_speaker_references"];
    let (names, recordings) = (names.unwrap_or_default(), recordings.unwrap_or_default());
    let given = if names.is_empty() { PARAMS[1] } else { PARAMS[0] };
    let refuse = |param: &str, message: String| Err(ApiError::invalid(param, message));
    if names.is_empty() && recordings.is_empty() {
        return Ok(Vec::new());
    }
    if format != TranscriptFormat::DiarizedJson {
        let message = "is only for transcripts with speakers; set response_format to diarized_json";
        return refuse(given, format!("{given} {message}"));
    }
    if names.len() != recordings.len() || names.len() > MAX_KNOWN {
        let (names, recordings) = (names.len(), recordings.len());
        let counts =
            format!("known_speaker_names has {names} entries and known_speaker_references {recordings}");
        return refuse(given, format!("{counts}; send a reference for each of at most {MAX_KNOWN} speakers"));
    }
    for (at, name) in names.iter().enumerate() {
        let is_fine = !name.trim().is_empty() && name.chars().count() <= MAX_NAME_CHARS;
        if !is_fine || name.contains(char::is_control) || names[..at].contains(name) {
            let message = "must be a name of its own of 1 to 64 characters on one line";
            return refuse(
                PARAMS[0],
                format!("known_speaker_names[{at}] is '{}'; it {message}", excerpt(name)),
            );
        }
    }
    let reference = |(at, (name, recording)): (usize, (String, String))| {
        let payload = match recording.split_once(',') {
            Some((head, payload)) if head.starts_with("data:") => payload,
            _ => recording.as_str(),
        };
        if payload.trim().is_empty() {
            let message = format!("known_speaker_references[{at}] is empty; send a recording as a data URL");
            return Err(ApiError::invalid(PARAMS[1], message));
        }
        Ok(Reference { name, audio: AudioInput::Base64(recording) })
    };
    names.into_iter().zip(recordings).enumerate().map(reference).collect()
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

/// Refuses what the format of the answer does not carry.
fn check_format(options: &TranscriptionOptions, format: TranscriptFormat) -> Result<(), ApiError> {
    let json = &[TranscriptFormat::Json][..];
    let timed = &[TranscriptFormat::VerboseJson, TranscriptFormat::DiarizedJson][..];
    if options.max_speakers.is_some() && format != TranscriptFormat::DiarizedJson {
        let message =
            "max_speakers is only for transcripts with speakers; set response_format to diarized_json";
        return Err(ApiError::invalid("max_speakers", message));
    }
    for (asked, param, entry, carriers, names) in [
        (options.logprobs(), "include", "logprobs", json, "json carries"),
        (options.words(), "timestamp_granularities", "word", timed, "verbose_json and diarized_json carry"),
    ] {
        if asked && !carriers.contains(&format) {
            let message = format!("{param} has '{entry}', which only response_format {names}; set that");
            return Err(ApiError::invalid(param, message));
        }
    }
    Ok(())
}

fn check_stream(stream: bool, format: TranscriptFormat) -> Result<(), ApiError> {
    let streams = !matches!(format, TranscriptFormat::Srt | TranscriptFormat::Vtt);
    if stream && !streams {
        let message = "stream is only for response_format json, text, verbose_json and diarized_json; leave \
                       stream or response_format out";
        return Err(ApiError::invalid("stream", message));
    }
    Ok(())
}

/// Splits a text into deltas whose concatenation is the trimmed text.
#[derive(Debug, Default)]
pub struct TextDeltas {
    text: String,
    /// White space that belongs to the text only if more follows.
    held: String,
}

impl TextDeltas {
    /// Takes the next text and returns the delta to send, if there is one.
    pub fn push(&mut self, text: &str) -> Option<String> {
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
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use izwi_types::SpeechDetection;

    use super::*;
    use crate::extract::parse_with_options;

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
        let asking = |options| TranscriptionRequest { options, ..fields() };
        check(
            asking(TranscriptionOptions::default().with_words()),
            AsrTask::Transcribe,
            "timestamp_granularities",
        );
        let list = |entries: &[&str]| Some(entries.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>());
        let transcribe = |fields, param: &str| check(fields, AsrTask::Transcribe, param);
        let options = TranscriptionOptions::default().with_logprobs();
        transcribe(TranscriptionRequest { options, response_format: text("text"), ..fields() }, "include");
        let (names, data) = ("known_speaker_names", "known_speaker_references");
        let known = |all: &[&str], recordings: &[&str], format: &str| TranscriptionRequest {
            known_speaker_names: list(all),
            known_speaker_references: list(recordings),
            response_format: text(format),
            ..fields()
        };
        let options = TranscriptionOptions { max_speakers: Some(2), ..Default::default() };
        transcribe(asking(options), "max_speakers");
        transcribe(TranscriptionRequest { saved_speakers: Some(true), ..fields() }, "saved_speakers");
        transcribe(known(&["agent"], &[], "json"), names);
        transcribe(known(&[], &["AAAA"], "json"), data);
        transcribe(known(&["agent"], &[], "diarized_json"), names);
        transcribe(known(&["agent", "agent"], &["AAAA"; 2], "diarized_json"), names);
        transcribe(known(&["  "], &["AAAA"], "diarized_json"), names);
        transcribe(known(&["agent"], &["data:audio/wav;base64,"], "diarized_json"), data);
        let fine = known(&["agent"], &["data:audio/wav;base64,AAAA"], "diarized_json");
        assert_eq!(CheckedRequest::check(fine, AsrTask::Transcribe).unwrap().references[0].name, "agent");
        let diarized = TranscriptionRequest { response_format: text("diarized_json"), ..fields() };
        check(diarized, AsrTask::Translate, "response_format");
        let languages = vec!["de".to_owned()];
        transcribe(
            asking(TranscriptionOptions { language: text("en"), languages, ..Default::default() }),
            "languages",
        );
        transcribe(
            asking(TranscriptionOptions { temperature: Some(1.1), ..Default::default() }),
            "temperature",
        );
        transcribe(asking(TranscriptionOptions { beam_size: Some(11), ..Default::default() }), "beam_size");
        check(TranscriptionRequest { priority: text("urgent"), ..fields() }, AsrTask::Transcribe, "priority");
        let srt = TranscriptionRequest { stream: Some(true), response_format: text("srt"), ..fields() };
        check(srt, AsrTask::Transcribe, "stream");
    }

    #[test]
    fn a_chunking_strategy_sets_the_detection() {
        let read = |json: &str| {
            let json = format!(r#"{{"model":"m","chunking_strategy":{json}}}"#);
            let fields: TranscriptionRequest = parse_with_options(json.as_bytes())?;
            Ok::<_, ApiError>(CheckedRequest::check(fields, AsrTask::Transcribe)?.options.detection())
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
