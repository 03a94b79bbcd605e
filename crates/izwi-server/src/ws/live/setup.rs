//! The configuration of a live transcription, read and checked.

use std::ops::RangeInclusive;
use std::sync::Arc;

use izwi_types::{TurnEnds, excerpt};

use crate::dto::live::ConfigFields;
use crate::error::ApiError;
use crate::extract::{check_range, parse_priority};
use crate::live::{LiveListener, LiveSettings, LiveTranscriber};
use crate::registry::Lease;
use crate::speakers::Speakers;
use crate::state::AppState;
use crate::turns::{PcmEncoding, PcmInput, RATE_HZ, TurnInput, TurnModel, TurnOptions, read_ends};

/// Ranges of the parameters of turns.
const PADDINGS_MS: RangeInclusive<u64> = 0..=2_000;
const SILENCES_MS: RangeInclusive<u64> = 200..=10_000;

const ENCODINGS: [(&str, PcmEncoding); 3] =
    [("pcm_s16le", PcmEncoding::S16Le), ("mulaw", PcmEncoding::MuLaw), ("alaw", PcmEncoding::ALaw)];

/// The engines of a session.
pub(crate) struct Models {
    pub(super) asr: Lease,
    /// The turn model, if it is asked for and installed.
    pub(super) turns: Option<Arc<Lease>>,
    /// The model that tells speakers, if they are asked for.
    pub(super) speakers: Option<Speakers>,
}

/// What the session was configured to.
pub(super) struct Setup {
    pub(super) encoding: &'static str,
    pub(super) rate_hz: u32,
    pub(super) word_times: bool,
    /// How ends of turns are found.
    pub(super) turns: TurnEnds,
    /// Silence that ends a turn.
    pub(super) silence_ms: u64,
    pub(super) listener: LiveListener,
    /// Keeps the model loaded.
    _engine: Lease,
}

impl Setup {
    /// Checks the fields against the model.
    pub(super) fn resolve(state: &AppState, fields: ConfigFields, models: Models) -> Result<Self, ApiError> {
        let Models { asr: engine, turns: turn_model, speakers } = models;
        let wanted = fields.encoding.as_deref().unwrap_or(ENCODINGS[0].0);
        let known = ENCODINGS.into_iter().find(|(name, _)| *name == wanted);
        let (encoding, pcm) = known.ok_or_else(|| {
            let names = ENCODINGS.map(|(name, _)| name).join(", ");
            ApiError::invalid(
                "encoding",
                format!("encoding '{}' is unknown; use one of {names}", excerpt(wanted)),
            )
        })?;
        let rate_hz = fields.sample_rate.unwrap_or(RATE_HZ);
        check_range("sample_rate", rate_hz, &PcmInput::RATES_HZ)?;
        let (kind, eagerness) = (fields.turn_detection.as_deref(), fields.eagerness.as_deref());
        let wanted = read_ends(kind, eagerness, fields.silence_duration_ms)?;
        // Without a model silence serves, which `session.created` tells.
        let ends = wanted.available(turn_model.is_some());
        let turns = turn_options(&fields, &engine)?.with_ends(ends);
        let turn_model = turn_model.zip(ends.eagerness);
        let turn_model =
            turn_model.map(|(model, eagerness)| TurnModel::new(state, &model, eagerness.threshold()));
        let settings = LiveSettings {
            latency_ms: fields.latency_ms,
            language: fields.language,
            languages: fields.languages,
            prompt: fields.prompt,
            keywords: fields.keywords,
            inverse_normalization: fields.inverse_normalization.unwrap_or(false),
            spoken_commands: fields.spoken_commands.unwrap_or(false),
            priority: parse_priority(fields.priority.as_deref())?,
        };
        if fields.saved_speakers.is_some() && speakers.is_none() {
            let message = "saved_speakers is only for sessions that tell speakers; set speakers to true";
            return Err(ApiError::invalid("saved_speakers", message));
        }
        let transcriber = LiveTranscriber::new(state, &engine, settings, 0)?;
        let transcriber = match speakers {
            Some(model) => transcriber.with_speakers(model)?,
            None => transcriber,
        };
        Ok(Self {
            encoding,
            rate_hz,
            word_times: fields.word_times.unwrap_or(false),
            turns: ends,
            silence_ms: turns.silence_duration_ms,
            listener: LiveListener::new(
                TurnInput::with_turns((pcm, rate_hz), &state.vad(), turns, turn_model)?,
                transcriber,
            ),
            _engine: engine,
        })
    }
}

fn turn_options(fields: &ConfigFields, engine: &Lease) -> Result<TurnOptions, ApiError> {
    let defaults = TurnOptions::default();
    let threshold = fields.threshold.unwrap_or(defaults.threshold);
    check_range("threshold", threshold, &(0.0..=1.0))?;
    let prefix_padding_ms = fields.prefix_padding_ms.unwrap_or(defaults.prefix_padding_ms);
    check_range("prefix_padding_ms", prefix_padding_ms, &PADDINGS_MS)?;
    if let Some(ms) = fields.silence_duration_ms {
        check_range("silence_duration_ms", ms, &SILENCES_MS)?;
    }
    let max_turn_ms = LiveTranscriber::max_turn_ms(engine);
    Ok(TurnOptions { threshold, prefix_padding_ms, max_turn_ms, ..defaults })
}
