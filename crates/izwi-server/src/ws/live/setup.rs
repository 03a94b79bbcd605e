//! The configuration of a live transcription: checked, and made into the engine's requests.

use std::ops::RangeInclusive;

use bytes::Bytes;
use izwi_core::engine::{EngineCoreRequest, LiveWindow, Priority, TranscriptionOptions};
use izwi_types::{excerpt, languages};

use crate::dto::live::ConfigFields;
use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::live::LiveOptions;
use crate::registry::Lease;
use crate::turns::{PcmEncoding, PcmInput, RATE_HZ, TurnOptions};

/// Range of `latency_ms`, and without it.
const LATENCIES_MS: RangeInclusive<u64> = 200..=5_000;
const LATENCY_MS: u64 = 300;
/// Ranges of the parameters of turns.
const PADDINGS_MS: RangeInclusive<u64> = 0..=2_000;
const SILENCES_MS: RangeInclusive<u64> = 200..=10_000;
/// A turn has no limit of its own: its window has.
const MAX_TURN_MS: u64 = u64::MAX;

const ENCODINGS: [(&str, PcmEncoding); 3] =
    [("pcm_s16le", PcmEncoding::S16Le), ("mulaw", PcmEncoding::MuLaw), ("alaw", PcmEncoding::ALaw)];

/// What the session was configured to.
pub(super) struct Setup {
    pub(super) engine: Lease,
    pub(super) encoding: &'static str,
    /// Code of the language, if the client set it.
    pub(super) language: Option<String>,
    pub(super) word_times: bool,
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
        let hop_ms = fields.latency_ms.unwrap_or(LATENCY_MS);
        check_range("latency_ms", hop_ms, &LATENCIES_MS)?;
        let rate_hz = fields.sample_rate.unwrap_or(RATE_HZ);
        check_range("sample_rate", rate_hz, &PcmInput::RATES_HZ)?;
        let turns = turn_options(&fields)?;
        let likely =
            TranscriptionOptions { prompt: fields.prompt, keywords: fields.keywords, ..Default::default() };
        let TranscriptionOptions { prompt, keywords, .. } =
            likely.checked().map_err(|error| ApiError::invalid(error.param, error.message))?;
        let profile = engine.profile();
        if !(keywords.is_empty() || profile.info.takes_keywords) {
            let message = "this model does not take keywords; choose another for it";
            return Err(ApiError::invalid("keywords", message));
        }
        let code = |wanted: String| {
            languages::supported(&wanted, &profile.info.languages)
                .map_err(|message| ApiError::invalid("language", message))
        };
        let language = non_blank(fields.language).map(code).transpose()?;
        let priority = parse_priority(fields.priority.as_deref())?;
        let options =
            LiveOptions { encoding: pcm, rate_hz, hop_ms, turns, prompt: prompt.unwrap_or_default() };
        let word_times = fields.word_times.unwrap_or(false);
        Ok((Self { encoding, language, word_times, keywords, priority, engine }, options))
    }

    /// The engine's request for a window.
    pub(super) fn request(
        &self,
        file: Bytes,
        window: LiveWindow,
        context: String,
        language: Option<String>,
    ) -> EngineCoreRequest {
        let options = TranscriptionOptions {
            language,
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

fn turn_options(fields: &ConfigFields) -> Result<TurnOptions, ApiError> {
    let defaults = TurnOptions::default();
    let threshold = fields.threshold.unwrap_or(defaults.threshold);
    check_range("threshold", threshold, &(0.0..=1.0))?;
    let prefix_padding_ms = fields.prefix_padding_ms.unwrap_or(defaults.prefix_padding_ms);
    check_range("prefix_padding_ms", prefix_padding_ms, &PADDINGS_MS)?;
    let silence_duration_ms = fields.silence_duration_ms.unwrap_or(defaults.silence_duration_ms);
    check_range("silence_duration_ms", silence_duration_ms, &SILENCES_MS)?;
    Ok(TurnOptions { threshold, prefix_padding_ms, silence_duration_ms, max_turn_ms: MAX_TURN_MS })
}
