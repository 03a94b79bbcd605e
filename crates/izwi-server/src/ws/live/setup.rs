//! The configuration of a live transcription: checked, and made into the engine's requests.

use std::ops::RangeInclusive;

use bytes::Bytes;
use izwi_core::engine::{
    AudioStream, EngineCoreRequest, LiveWindow, Priority, TranscriptionOptions, WriterOptions,
};
use izwi_types::{excerpt, languages};

use crate::dto::live::ConfigFields;
use crate::error::ApiError;
use crate::extract::{check_range, parse_priority};
use crate::live::{LiveOptions, Method};
use crate::registry::Lease;
use crate::turns::{PcmEncoding, PcmInput, RATE_HZ, TurnOptions};

/// Range of `latency_ms`, and without it.
const LATENCIES_MS: RangeInclusive<u64> = 200..=5_000;
const LATENCY_MS: u64 = 300;
/// Ranges of the parameters of turns.
const PADDINGS_MS: RangeInclusive<u64> = 0..=2_000;
const SILENCES_MS: RangeInclusive<u64> = 200..=10_000;
/// The longest turn of a model that takes audio as it arrives. Elsewhere its window has a limit, not the turn.
const MAX_TURN_MS: u64 = 600_000;

const ENCODINGS: [(&str, PcmEncoding); 3] =
    [("pcm_s16le", PcmEncoding::S16Le), ("mulaw", PcmEncoding::MuLaw), ("alaw", PcmEncoding::ALaw)];

/// What the session was configured to.
pub(super) struct Setup {
    pub(super) engine: Lease,
    pub(super) encoding: &'static str,
    /// Code of the language, if the client set it.
    pub(super) language: Option<String>,
    pub(super) word_times: bool,
    /// How the words become text.
    pub(super) written: WriterOptions,
    /// Codes of the languages of which one is detected; empty for all.
    languages: Vec<String>,
    keywords: Vec<String>,
    priority: Priority,
}

impl Setup {
    /// Checks the fields against the model.
    pub(super) fn resolve(fields: ConfigFields, engine: Lease) -> Result<(Self, LiveOptions), ApiError> {
        let wanted = fields.encoding.as_deref().unwrap_or(ENCODINGS[0].0);
        let known = ENCODINGS.into_iter().find(|(name, _)| *name == wanted);
        let (encoding, pcm) = known.ok_or_else(|| {
            let names = ENCODINGS.map(|(name, _)| name).join(", ");
            ApiError::invalid(
                "encoding",
                format!("encoding '{}' is unknown; use one of {names}", excerpt(wanted)),
            )
        })?;
        let method = method(fields.latency_ms, &engine)?;
        let rate_hz = fields.sample_rate.unwrap_or(RATE_HZ);
        check_range("sample_rate", rate_hz, &PcmInput::RATES_HZ)?;
        let turns = turn_options(&fields, method)?;
        let given = TranscriptionOptions {
            language: fields.language,
            languages: fields.languages,
            prompt: fields.prompt,
            keywords: fields.keywords,
            ..Default::default()
        };
        let TranscriptionOptions { language, languages: candidates, prompt, keywords, .. } =
            given.checked().map_err(|error| ApiError::invalid(error.param, error.message))?;
        let profile = engine.profile();
        if !(keywords.is_empty() || profile.info.takes_keywords) {
            let message = "this model does not take keywords; choose another for it";
            return Err(ApiError::invalid("keywords", message));
        }
        if !(candidates.is_empty() || profile.info.detects_language) {
            let message = "this model does not choose among languages; choose another for it";
            return Err(ApiError::invalid("languages", message));
        }
        let code = |param, wanted: &str| {
            languages::supported(wanted, &profile.info.languages)
                .map_err(|message| ApiError::invalid(param, message))
        };
        let language = language.map(|wanted| code("language", &wanted)).transpose()?;
        let candidates = candidates.iter().map(|wanted| code("languages", wanted));
        let candidates = candidates.collect::<Result<Vec<String>, ApiError>>()?;
        let written = WriterOptions {
            numbers: fields.inverse_normalization.unwrap_or(false) && !profile.info.writes_figures,
            commands: fields.spoken_commands.unwrap_or(false),
        };
        let priority = parse_priority(fields.priority.as_deref())?;
        let options =
            LiveOptions { encoding: pcm, rate_hz, method, turns, prompt: prompt.unwrap_or_default() };
        let word_times = fields.word_times.unwrap_or(false);
        let setup = Self {
            encoding,
            language,
            word_times,
            written,
            languages: candidates,
            keywords,
            priority,
            engine,
        };
        Ok((setup, options))
    }

    /// Code of the language of words, of which `detected` was detected; that of a model with one language is known.
    pub(super) fn language_of<'a>(&'a self, detected: Option<&'a str>) -> Option<&'a str> {
        let known = &self.engine.profile().languages;
        let only = known.first().filter(|_| known.len() == 1).map(String::as_str);
        self.language.as_deref().or(detected).or(only)
    }

    /// The engine's request for audio that it takes as it arrives.
    pub(super) fn stream_request(&self, audio: AudioStream) -> EngineCoreRequest {
        let (language, keywords) = (self.language.clone(), self.keywords.clone());
        let options = TranscriptionOptions { language, keywords, ..TranscriptionOptions::default() };
        EngineCoreRequest::listen(audio).with_transcription(options.with_words()).with_priority(self.priority)
    }

    /// The engine's request for a window.
    pub(super) fn request(
        &self,
        file: Bytes,
        window: LiveWindow,
        context: String,
        language: Option<String>,
    ) -> EngineCoreRequest {
        let languages = if language.is_some() { Vec::new() } else { self.languages.clone() };
        let options = TranscriptionOptions {
            language,
            languages,
            prompt: Some(context),
            keywords: self.keywords.clone(),
            ..TranscriptionOptions::default()
        };
        EngineCoreRequest::asr(file)
            .with_transcription(options.with_words().with_logprobs())
            .with_window(window)
            .with_priority(self.priority)
    }
}

/// How turns become text, with `latency_ms` of new audio from one text to the next; a model that takes audio as it arrives
/// has some lengths of chunks, of which the longest is used that is not longer.
fn method(latency_ms: Option<u64>, engine: &Lease) -> Result<Method, ApiError> {
    let profile = engine.profile();
    let chunks_ms = &profile.info.chunks_ms;
    let (Some(&default), Some(&least)) = (chunks_ms.first(), chunks_ms.iter().min()) else {
        let hop_ms = latency_ms.unwrap_or(LATENCY_MS);
        check_range("latency_ms", hop_ms, &LATENCIES_MS)?;
        return Ok(Method::Windows { hop_ms });
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

fn turn_options(fields: &ConfigFields, method: Method) -> Result<TurnOptions, ApiError> {
    let defaults = TurnOptions::default();
    let threshold = fields.threshold.unwrap_or(defaults.threshold);
    check_range("threshold", threshold, &(0.0..=1.0))?;
    let prefix_padding_ms = fields.prefix_padding_ms.unwrap_or(defaults.prefix_padding_ms);
    check_range("prefix_padding_ms", prefix_padding_ms, &PADDINGS_MS)?;
    let silence_duration_ms = fields.silence_duration_ms.unwrap_or(defaults.silence_duration_ms);
    check_range("silence_duration_ms", silence_duration_ms, &SILENCES_MS)?;
    let max_turn_ms = match method {
        Method::Windows { .. } => u64::MAX,
        Method::Chunks { .. } => MAX_TURN_MS,
    };
    Ok(TurnOptions { threshold, prefix_padding_ms, silence_duration_ms, max_turn_ms })
}
