//! How a recording is cut into stretches of speech.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::{InputError, excerpt};

/// Values of a `server_vad` that sets none.
/// <https://platform.openai.com/docs/api-reference/audio/createTranscription#audio-createtranscription-chunking_strategy>
const THRESHOLD: f32 = 0.5;
const PREFIX_MS: u64 = 300;
const SILENCE_MS: u64 = 200;

/// How speech is found in a recording: each stretch of speech is transcribed on its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeechDetection {
    /// Score of the detector above which a frame is speech, 0.0 to 1.0.
    pub threshold: f32,
    /// Audio before speech that is part of its stretch.
    pub prefix_padding: Duration,
    /// Silence that ends a stretch.
    pub silence: Duration,
}

/// How a recording is cut: the name of a strategy, or an object.
#[derive(Debug, Clone, PartialEq)]
pub enum ChunkingStrategy {
    /// `auto`, which is what the models do without a strategy.
    Named(String),
    /// Detection of speech with these parameters.
    Vad(VadFields),
}

/// Parameters of speech detection, as in an object of `type` `server_vad`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct VadFields {
    /// `server_vad`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Audio before speech that is part of its stretch, in milliseconds.
    pub prefix_padding_ms: Option<u64>,
    /// Silence that ends a stretch, in milliseconds.
    pub silence_duration_ms: Option<u64>,
    /// Score of the detector above which a frame is speech.
    pub threshold: Option<f32>,
}

impl VadFields {
    /// Range of the times, in milliseconds.
    pub const TIMES_MS: RangeInclusive<u64> = 0..=10_000;
    /// Range of the threshold.
    pub const THRESHOLDS: RangeInclusive<f32> = 0.0..=1.0;
}

impl ChunkingStrategy {
    /// Whether it is what the models do without a strategy.
    pub(crate) fn is_auto(&self) -> bool {
        matches!(self, Self::Named(name) if name == "auto")
    }

    /// The detection of a strategy that was checked; `None` for the model's own.
    pub(crate) fn detection(&self) -> Option<SpeechDetection> {
        let Self::Vad(vad) = self else { return None };
        Some(SpeechDetection {
            threshold: vad.threshold.unwrap_or(THRESHOLD),
            prefix_padding: Duration::from_millis(vad.prefix_padding_ms.unwrap_or(PREFIX_MS)),
            silence: Duration::from_millis(vad.silence_duration_ms.unwrap_or(SILENCE_MS)),
        })
    }

    /// Checks the name and the ranges of the parameters.
    ///
    /// # Errors
    /// The name is unknown, or a value is out of its range; the error names it.
    pub(crate) fn check(&self) -> Result<(), InputError> {
        let (param, name) = match self {
            Self::Named(name) => ("chunking_strategy", name.as_str()),
            Self::Vad(vad) => ("chunking_strategy.type", vad.kind.as_deref().unwrap_or_default()),
        };
        if !matches!((self, name), (Self::Named(_), "auto") | (Self::Vad(_), "server_vad")) {
            let name = excerpt(name);
            let message =
                format!("{param} '{name}' is unknown; use \"auto\" or an object of type server_vad");
            return Err(InputError { param, message });
        }
        let Self::Vad(vad) = self else { return Ok(()) };
        InputError::check_range("chunking_strategy.threshold", vad.threshold, &VadFields::THRESHOLDS)?;
        for (param, value) in [
            ("chunking_strategy.prefix_padding_ms", vad.prefix_padding_ms),
            ("chunking_strategy.silence_duration_ms", vad.silence_duration_ms),
        ] {
            InputError::check_range(param, value, &VadFields::TIMES_MS)?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for ChunkingStrategy {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Strategy;

        impl<'de> Visitor<'de> for Strategy {
            type Value = ChunkingStrategy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", or an object of type server_vad")
            }

            fn visit_str<E>(self, name: &str) -> Result<ChunkingStrategy, E> {
                Ok(ChunkingStrategy::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<ChunkingStrategy, A::Error> {
                VadFields::deserialize(MapAccessDeserializer::new(members)).map(ChunkingStrategy::Vad)
            }
        }

        reader.deserialize_any(Strategy)
    }
}
