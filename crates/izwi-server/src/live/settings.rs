//! How live audio is transcribed: checked against the model, and made into the engine's requests.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use izwi_core::engine::{
    AudioStream, Engine, EngineCoreRequest, LiveWindow, Priority, TranscriptionOptions, WriterOptions,
};
use izwi_types::languages;

use super::turns::Method;
use crate::error::ApiError;
use crate::extract::{check_range, non_blank};

/// Range of `latency_ms`, and without it.
const LATENCIES_MS: RangeInclusive<u64> = 200..=5_000;
const LATENCY_MS: u64 = 300;
/// The longest turn of a model that takes audio as it arrives, and of one that transcribes a turn once it has ended. Elsewhere
/// its window has a limit, not the turn.
const MAX_STREAMED_TURN_MS: u64 = 600_000;
const MAX_WHOLE_TURN: Duration = Duration::from_secs(60);
/// A turn ends this much before the limit of the model, because it ends at a frame of the VAD.
const TURN_MARGIN: Duration = Duration::from_millis(100);

/// How a client wants live audio to be transcribed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveSettings {
    /// New audio from one text to the next; `None` for the model's default.
    pub latency_ms: Option<u64>,
    /// Code or name of the language; detected in each turn without one.
    pub language: Option<String>,
    /// Codes or names of the languages of which one is detected in each turn, in place of `language`.
    pub languages: Vec<String>,
    /// Context as if it preceded the audio.
    pub prompt: Option<String>,
    /// Words that are likely in the audio.
    pub keywords: Vec<String>,
    /// Whether numbers are written in figures, where the model writes them in words.
    pub inverse_normalization: bool,
    /// Whether spoken commands such as `new line` are carried out.
    pub spoken_commands: bool,
    /// Urgency of the requests.
    pub priority: Priority,
}

impl LiveSettings {
    /// Settings in which `words` are likely, as far as the model takes them: as keywords, or else as a prompt.
    pub fn likely(words: Vec<String>, engine: &Engine) -> Self {
        let info = &engine.profile().info;
        if info.takes_keywords {
            return Self { keywords: words, ..Self::default() };
        }
        Self { prompt: non_blank(Some(words.join(", ")).filter(|_| info.takes_prompt)), ..Self::default() }
    }
}

/// Settings that are checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) method: Method,
    /// Code of the language, if the client set it.
    pub(super) language: Option<String>,
    pub(super) prompt: String,
    /// How words become text.
    pub(super) written: WriterOptions,
    /// Codes of the languages of which one is detected; empty for all.
    languages: Vec<String>,
    keywords: Vec<String>,
    takes_prompt: bool,
    pub(super) priority: Priority,
}

impl Checked {
    /// # Errors
    /// The model does not support a setting; the error names it.
    pub(super) fn check(settings: LiveSettings, engine: &Engine) -> Result<Self, ApiError> {
        let LiveSettings { latency_ms, language, languages: candidates, prompt, keywords, priority, .. } =
            settings;
        let method = method(latency_ms, engine)?;
        let given =
            TranscriptionOptions { language, languages: candidates, prompt, keywords, ..Default::default() };
        let TranscriptionOptions { language, languages: candidates, prompt, keywords, .. } =
            given.checked().map_err(|error| ApiError::invalid(error.param, error.message))?;
        let info = &engine.profile().info;
        let written = WriterOptions {
            numbers: settings.inverse_normalization && !info.writes_figures,
            commands: settings.spoken_commands,
        };
        let refused = |param: &str, what: &str| {
            Err(ApiError::invalid(param, format!("this model does not take {what}; choose another for it")))
        };
        if !(keywords.is_empty() || info.takes_keywords) {
            return refused("keywords", "keywords");
        }
        let takes_prompt = info.takes_prompt && !matches!(method, Method::Chunks { .. });
        let prompt = non_blank(prompt);
        if prompt.is_some() && !takes_prompt {
            return refused("prompt", "a prompt of live audio");
        }
        if !(candidates.is_empty() || info.detects_language) {
            let message = "this model does not choose among languages; choose another for it";
            return Err(ApiError::invalid("languages", message));
        }
        let code = |param, wanted: &str| {
            languages::supported(wanted, &info.languages).map_err(|message| ApiError::invalid(param, message))
        };
        let language = non_blank(language).map(|wanted| code("language", &wanted)).transpose()?;
        let candidates = candidates.iter().map(|wanted| code("languages", wanted));
        let languages = candidates.collect::<Result<Vec<String>, ApiError>>()?;
        let prompt = prompt.unwrap_or_default();
        Ok(Self { method, language, prompt, written, languages, keywords, takes_prompt, priority })
    }

    /// Code of the language of words, of which `detected` was detected; that of a model with one language is known.
    pub(super) fn spoken_language<'a>(
        &'a self,
        detected: Option<&'a str>,
        engine: &'a Engine,
    ) -> Option<&'a str> {
        let known = &engine.profile().languages;
        let only = known.first().filter(|_| known.len() == 1).map(String::as_str);
        self.language.as_deref().or(detected).or(only)
    }

    /// The engine's request for audio that it takes as it arrives.
    pub(super) fn stream_request(&self, audio: AudioStream) -> EngineCoreRequest {
        let options = self.options(self.language.clone()).with_words();
        EngineCoreRequest::listen(audio).with_transcription(options).with_priority(self.priority)
    }

    /// The engine's request for a window, which `context` precedes.
    pub(super) fn window_request(
        &self,
        file: Bytes,
        window: LiveWindow,
        context: String,
        language: Option<String>,
    ) -> EngineCoreRequest {
        let prompt = Some(context).filter(|_| self.takes_prompt);
        let options = TranscriptionOptions { prompt, ..self.options(language) };
        EngineCoreRequest::asr(file)
            .with_transcription(options.with_words().with_logprobs())
            .with_window(window)
            .with_priority(self.priority)
    }

    /// The engine's request for a turn that has ended.
    pub(super) fn whole_request(&self, file: Bytes) -> EngineCoreRequest {
        let prompt = non_blank(Some(self.prompt.clone()));
        let options = TranscriptionOptions { prompt, ..self.options(self.language.clone()) };
        EngineCoreRequest::asr(file)
            .with_transcription(options)
            .with_streaming(true)
            .with_priority(self.priority)
    }

    fn options(&self, language: Option<String>) -> TranscriptionOptions {
        let languages = if language.is_some() { Vec::new() } else { self.languages.clone() };
        let keywords = self.keywords.clone();
        TranscriptionOptions { language, languages, keywords, ..TranscriptionOptions::default() }
    }
}

/// The longest turn of which a model makes text while it continues, or at once.
pub(super) fn max_turn_ms(method: Method, engine: &Engine) -> u64 {
    match method {
        Method::Windows { .. } => u64::MAX,
        Method::Chunks { .. } => MAX_STREAMED_TURN_MS,
        Method::Whole => {
            let longest = engine.config().max_audio_duration.saturating_sub(TURN_MARGIN);
            longest.min(MAX_WHOLE_TURN).as_millis() as u64
        }
    }
}

/// How turns become text, with `latency_ms` of new audio from one text to the next; a model that takes audio as it arrives
/// has some lengths of chunks, of which the longest is used that is not longer.
pub(super) fn method(latency_ms: Option<u64>, engine: &Engine) -> Result<Method, ApiError> {
    let profile = engine.profile();
    let chunks_ms = &profile.info.chunks_ms;
    let (Some(&default), Some(&least)) = (chunks_ms.first(), chunks_ms.iter().min()) else {
        let hop_ms = latency_ms.unwrap_or(LATENCY_MS);
        check_range("latency_ms", hop_ms, &LATENCIES_MS)?;
        return Ok(if profile.info.live_windows { Method::Windows { hop_ms } } else { Method::Whole });
    };
    let Some(wanted) = latency_ms else { return Ok(Method::Chunks { chunk_ms: default }) };
    let fitting = chunks_ms.iter().copied().filter(|&chunk_ms| u64::from(chunk_ms) <= wanted).max();
    match fitting.filter(|_| wanted <= *LATENCIES_MS.end()) {
        Some(chunk_ms) => Ok(Method::Chunks { chunk_ms }),
        None => {
            let (model, most) = (&profile.model, LATENCIES_MS.end());
            let message = format!(
                "latency_ms is {wanted}; it must be between {least} and {most}: model '{model}' uses the longest of \
                 {chunks_ms:?} that is not longer"
            );
            Err(ApiError::invalid("latency_ms", message))
        }
    }
}
