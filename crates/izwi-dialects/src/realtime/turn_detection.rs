//! How the turns of a speaker are found: by silence, or by a turn model that is asked in a pause. What clients change of it, and how they
//! see it.

use std::ops::RangeInclusive;

use izwi_server::extract::check_range;
use izwi_server::turns::TurnOptions;
use izwi_types::{Eagerness, TurnEnds, excerpt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::Refusal;

const PREFIX_PADDING_MS: RangeInclusive<u64> = 0..=5_000;
/// What names the settings in refusals.
const PARAM: &str = "session.audio.input.turn_detection";

/// Server VAD, or semantic VAD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TurnDetection {
    pub(super) options: TurnOptions,
    /// Of semantic VAD; `None` if silence alone ends a turn.
    pub(super) eagerness: Option<Eagerness>,
    /// Whether the end of a turn asks for a response.
    pub(super) create_response: bool,
    /// Whether the start of a turn cancels the response.
    pub(super) interrupt_response: bool,
}

impl Default for TurnDetection {
    fn default() -> Self {
        Self {
            options: TurnOptions::default(),
            eagerness: None,
            create_response: true,
            interrupt_response: true,
        }
    }
}

impl TurnDetection {
    /// That of a pipeline.
    pub(super) fn of(ends: TurnEnds) -> Self {
        Self::default().with_ends(ends)
    }

    /// Server VAD in place of semantic VAD.
    pub(super) fn server_vad(self) -> Self {
        self.with_ends(TurnEnds::default())
    }

    fn with_ends(self, ends: TurnEnds) -> Self {
        Self { options: self.options.with_ends(ends), eagerness: ends.eagerness, ..self }
    }

    /// As its client sees it.
    pub(super) fn view(self) -> Value {
        let mut view = match self.eagerness {
            Some(eagerness) => json!({"type": "semantic_vad", "eagerness": eagerness.name()}),
            None => json!({
                "type": "server_vad",
                "threshold": self.options.threshold,
                "prefix_padding_ms": self.options.prefix_padding_ms,
                "silence_duration_ms": self.options.silence_duration_ms,
                "idle_timeout_ms": null,
            }),
        };
        view["create_response"] = self.create_response.into();
        view["interrupt_response"] = self.interrupt_response.into();
        view
    }
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct TurnDetectionPatch {
    #[serde(rename = "type")]
    kind: Option<String>,
    threshold: Option<f32>,
    prefix_padding_ms: Option<u64>,
    silence_duration_ms: Option<u64>,
    eagerness: Option<String>,
    create_response: Option<bool>,
    interrupt_response: Option<bool>,
    idle_timeout_ms: Option<u64>,
}

impl TurnDetectionPatch {
    /// The settings with these in place.
    pub(super) fn applied(&self, before: Option<TurnDetection>) -> Result<TurnDetection, Refusal> {
        let param = |name: &str| format!("{PARAM}.{name}");
        let before = before.unwrap_or_default();
        let is_semantic = match self.kind.as_deref() {
            None => before.eagerness.is_some(),
            Some("semantic_vad") => true,
            Some("server_vad") => false,
            Some(kind) => {
                let shown = excerpt(kind);
                let message = format!("{PARAM}.type is '{shown}'; use server_vad, semantic_vad or null");
                return Err(Refusal::invalid(&param("type"), message));
            }
        };
        let before = match (is_semantic, before.eagerness) {
            // What silence may last at most goes with the eagerness.
            (true, Some(_)) if self.eagerness.is_none() => before,
            (true, _) => {
                let eagerness = self.eagerness()?.or(Some(Eagerness::Auto));
                before.with_ends(TurnEnds { eagerness, silence_ms: None })
            }
            (false, Some(_)) => before.server_vad(),
            (false, None) => before,
        };
        if self.idle_timeout_ms.is_some() {
            return Err(Refusal::unsupported(&param("idle_timeout_ms"), "leave it out"));
        }
        let TurnDetection { mut options, eagerness, create_response, interrupt_response } = before;
        if let Some(threshold) = self.threshold {
            options.threshold = check_range(&param("threshold"), threshold, &(0.0..=1.0))?;
        }
        if let Some(ms) = self.prefix_padding_ms {
            options.prefix_padding_ms = check_range(&param("prefix_padding_ms"), ms, &PREFIX_PADDING_MS)?;
        }
        if let Some(ms) = self.silence_duration_ms.filter(|_| !is_semantic) {
            options.silence_duration_ms =
                check_range(&param("silence_duration_ms"), ms, &TurnEnds::SILENCES_MS)?;
        }
        Ok(TurnDetection {
            options,
            eagerness,
            create_response: self.create_response.unwrap_or(create_response),
            interrupt_response: self.interrupt_response.unwrap_or(interrupt_response),
        })
    }

    fn eagerness(&self) -> Result<Option<Eagerness>, Refusal> {
        let Some(name) = &self.eagerness else { return Ok(None) };
        Eagerness::parse(name).map(Some).ok_or_else(|| {
            let param = format!("{PARAM}.eagerness");
            let message = format!("{param} is '{}'; use {}", excerpt(name), Eagerness::CHOICE);
            Refusal::invalid(&param, message)
        })
    }
}
