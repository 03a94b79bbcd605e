//! How the turns of a speaker are found: by silence, or by a turn model that is asked in a pause. What clients change of it, and how they
//! see it.

use std::ops::RangeInclusive;

use izwi_server::extract::check_range;
use izwi_server::turns::TurnOptions;
use izwi_types::excerpt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::refusal::Refusal;

const PREFIX_PADDING_MS: RangeInclusive<u64> = 0..=5_000;
const SILENCE_DURATION_MS: RangeInclusive<u64> = 100..=10_000;
/// Silence after which a model is asked whether a turn is complete: what it was trained with.
const DECISION_PAUSE_MS: u64 = 200;
/// What names the settings in refusals.
const PARAM: &str = "session.audio.input.turn_detection";

/// How early a turn may end, where a model decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eagerness {
    Low,
    Medium,
    High,
    Auto,
}

impl Eagerness {
    const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Auto];

    fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Auto => "auto",
        }
    }

    /// The silence that ends a turn whatever the model says: that of the hosted API.
    /// <https://platform.openai.com/docs/guides/realtime-vad#semantic-vad>
    fn longest_silence_ms(self) -> u64 {
        match self {
            Self::Low => 8_000,
            Self::Medium | Self::Auto => 4_000,
            Self::High => 2_000,
        }
    }

    /// The probability from which on a turn is complete.
    pub(super) fn threshold(self) -> f32 {
        match self {
            Self::Low => 0.7,
            Self::Medium | Self::Auto => 0.5,
            Self::High => 0.3,
        }
    }
}

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
    /// Server VAD in place of semantic VAD.
    pub(super) fn server_vad(self) -> Self {
        let TurnOptions { silence_duration_ms, pause_ms, .. } = TurnOptions::default();
        let options = TurnOptions { silence_duration_ms, pause_ms, ..self.options };
        Self { options, eagerness: None, ..self }
    }

    fn semantic_vad(self, eagerness: Eagerness) -> Self {
        let (silence_duration_ms, pause_ms) = (eagerness.longest_silence_ms(), Some(DECISION_PAUSE_MS));
        let options = TurnOptions { silence_duration_ms, pause_ms, ..self.options };
        Self { options, eagerness: Some(eagerness), ..self }
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
            (true, eagerness) => {
                before.semantic_vad(self.eagerness()?.or(eagerness).unwrap_or(Eagerness::Auto))
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
                check_range(&param("silence_duration_ms"), ms, &SILENCE_DURATION_MS)?;
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
        let found = Eagerness::ALL.into_iter().find(|eagerness| eagerness.name() == name);
        found.map(Some).ok_or_else(|| {
            let param = format!("{PARAM}.eagerness");
            let message = format!("{param} is '{}'; use low, medium, high or auto", excerpt(name));
            Refusal::invalid(&param, message)
        })
    }
}
