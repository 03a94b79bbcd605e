//! How answers sound: their format, voice and tempo. What clients change of it, and how they see it.

use std::ops::RangeInclusive;

use izwi_audio::encode::SAMPLE_RATES_HZ;
use izwi_core::engine::executor::ExecutorProfile;
use izwi_server::extract::check_range;
use izwi_server::voices::OPENAI_VOICES;
use izwi_types::{ModelInfo, Voice, excerpt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::audio_format::{AudioFormat, FormatPatch};
use super::refusal::Refusal;

/// The tempo that the hosted API takes.
const SPEED: RangeInclusive<f32> = 0.25..=1.5;
/// The voice of a model of conversations that has no other, and that of a pipeline.
const OWN_VOICE: &str = "default";

/// How answers sound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Output {
    pub(super) format: AudioFormat,
    /// `None` for the model's own.
    pub(super) voice: Option<String>,
    pub(super) speed: Option<f32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OutputPatch {
    format: Option<FormatPatch>,
    voice: Option<Value>,
    speed: Option<f32>,
}

impl OutputPatch {
    /// The settings with these in place.
    pub(super) fn checked(&self, param: &str, mut before: Output) -> Result<Output, Refusal> {
        if let Some(speed) = self.speed {
            before.speed = Some(check_range(&format!("{param}.speed"), speed, &SPEED)?);
        }
        if let Some(voice) = &self.voice {
            // A string, or an object with an id.
            let Some(name) = voice.as_str().or_else(|| voice["id"].as_str()) else {
                let message = format!("{param}.voice is {}; name a voice", excerpt(voice));
                return Err(Refusal::invalid(&format!("{param}.voice"), message));
            };
            let is_any = name == OWN_VOICE || OPENAI_VOICES.contains(&name);
            before.voice = (!is_any).then(|| name.to_owned());
        }
        let Some(format) = &self.format else { return Ok(before) };
        let format = format.checked(&format!("{param}.format"), before.format)?;
        if !SAMPLE_RATES_HZ.contains(&format.rate_hz) {
            let message =
                format!("{param}.format.rate is {}; use one of {SAMPLE_RATES_HZ:?}", format.rate_hz);
            return Err(Refusal::invalid(&format!("{param}.format.rate"), message));
        }
        Ok(Output { format, ..before })
    }
}

impl Output {
    pub(super) fn view(&self) -> Value {
        let voice = self.voice.as_deref().unwrap_or(OWN_VOICE);
        json!({"format": self.format.view(), "voice": voice, "speed": self.speed.unwrap_or(1.0)})
    }

    /// Refuses what a model does not do: `param` names the settings.
    pub(super) fn check(&self, param: &str, model: &ExecutorProfile) -> Result<(), Refusal> {
        let ModelInfo { transcriber, voices, speed_range, .. } = &model.info;
        // A model that reads what is said speaks by another one.
        let has_choice = transcriber.is_some();
        if let Some(voice) =
            self.voice.as_deref().filter(|voice| !has_choice || !Voice::is_named(voice, voices))
        {
            let known: Vec<&str> = voices.iter().map(|voice| voice.id.as_str()).collect();
            let remedy = match has_choice {
                true => format!("use {}", known.join(", ")),
                false => "the model has one voice, leave it out".to_owned(),
            };
            let what = format!("it is '{}'; {remedy}", excerpt(voice));
            return Err(Refusal::unsupported(&format!("{param}.voice"), &what));
        }
        match self.speed.filter(|speed| *speed != 1.0) {
            Some(speed) if !has_choice || speed_range.is_none() => {
                let what = format!("it is {speed}; the model cannot change its tempo, use 1.0");
                Err(Refusal::unsupported(&format!("{param}.speed"), &what))
            }
            _ => Ok(()),
        }
    }
}
