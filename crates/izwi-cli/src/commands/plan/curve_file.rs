//! A cost curve as a file: TOML, as `--save` writes it.

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use izwi_core::engine::Engine;
use izwi_core::engine::capacity::Curve;
use izwi_core::engine::qos::admission::StreamRate;
use izwi_core::engine::qos::cost::StepShape;
use serde::{Deserialize, Serialize};

use crate::build_info::VERSION;
use crate::failure::usage;
use crate::machine::{peak_memory, processor};

const FORMAT: u32 = 1;
/// What a file begins with.
const HEAD: &str =
    "# What a model costs on a machine, measured by `izwi plan --save`. `izwi plan --curve` reads it.\n";
/// The most of anything in a file.
const MOST: f64 = 1e12;

/// What was measured on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurveFile {
    format: u32,
    pub(super) machine: String,
    pub(super) device: String,
    pub(super) threads: usize,
    pub(super) model: String,
    pub(super) precision: String,
    pub(super) version: String,
    pub(super) measured_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) price_per_hour: Option<f64>,
    /// Peak memory of the process that measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
    /// Memory of the model, as the engine counts it.
    model_bytes: u64,
    sample_rate_hz: u32,
    /// Seconds of audio of a step of one stream.
    step_audio_s: f64,
    /// Whether a step generates a token or frame; otherwise it speaks a sentence of `step_tokens` tokens.
    generates: bool,
    step_tokens: usize,
    prompt_token_s: f64,
    prompt_tokens: f64,
    prompt_tokens_per_char: f64,
    chars_per_s: f64,
    /// Standard deviation of the time of a step, relative to its mean.
    deviation: f64,
    streaming_chunk_size: usize,
    max_batch_size: usize,
    max_streams: usize,
    max_first_audio_s: f64,
    step: Vec<Step>,
}

/// The time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    streams: usize,
    seconds: f64,
}

impl CurveFile {
    /// The file of a curve that was measured with `engine` now.
    pub(super) fn new(engine: &Engine, curve: Curve, name: Option<String>, price: Option<f64>) -> Self {
        let (profile, config) = (engine.profile(), engine.config());
        let StepShape { decodes, prefill_tokens, .. } = curve.rate.step;
        Self {
            format: FORMAT,
            machine: name.or_else(processor).unwrap_or_else(|| "this machine".to_owned()),
            device: profile.device.clone(),
            threads: config.num_threads,
            model: profile.model.clone(),
            precision: profile.precision.to_string(),
            version: VERSION.clone(),
            measured_at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            price_per_hour: price,
            memory_bytes: peak_memory(),
            model_bytes: profile.memory_bytes as u64,
            sample_rate_hz: curve.sample_rate,
            step_audio_s: curve.rate.audio_s,
            generates: decodes > 0,
            step_tokens: if decodes > 0 { decodes } else { prefill_tokens },
            prompt_token_s: curve.prompt_token_s,
            prompt_tokens: curve.prompt_tokens.0,
            prompt_tokens_per_char: curve.prompt_tokens.1,
            chars_per_s: curve.chars_per_s,
            deviation: curve.deviation,
            streaming_chunk_size: curve.chunk_samples,
            max_batch_size: curve.batch,
            max_streams: curve.max_streams,
            max_first_audio_s: curve.max_first_audio_s,
            step: curve.steps.iter().map(|&(streams, seconds)| Step { streams, seconds }).collect(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a value is missing or out of range.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let help = "give --curve a file that `izwi plan --save` wrote";
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("--curve {name}: it cannot be read: {error}"), help))?;
        let file: Self =
            toml::from_str(&text).map_err(|error| usage(format!("--curve {name}: {error}"), help))?;
        match file.fault() {
            Some(fault) => Err(usage(format!("--curve {name}: {fault}"), help)),
            None => Ok(file),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = toml::to_string(self).context("cannot write the curve as TOML")?;
        let help = "give --save a file in a folder that exists and may be written";
        std::fs::write(path, format!("{HEAD}{text}"))
            .map_err(|error| usage(format!("--save {}: {error}", path.display()), help))
    }

    /// The first value that is out of range.
    fn fault(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("format {}: this izwi reads format {FORMAT}", self.format));
        }
        let positive = [
            ("sample_rate_hz", f64::from(self.sample_rate_hz)),
            ("step_audio_s", self.step_audio_s),
            ("step_tokens", self.step_tokens as f64),
            ("chars_per_s", self.chars_per_s),
            ("streaming_chunk_size", self.streaming_chunk_size as f64),
            ("max_batch_size", self.max_batch_size as f64),
            ("max_streams", self.max_streams as f64),
            ("max_first_audio_s", self.max_first_audio_s),
        ];
        let none_or_more = [
            ("prompt_token_s", self.prompt_token_s),
            ("prompt_tokens", self.prompt_tokens),
            ("prompt_tokens_per_char", self.prompt_tokens_per_char),
            ("deviation", self.deviation),
            ("price_per_hour", self.price_per_hour.unwrap_or(0.0)),
        ];
        let positive = positive.iter().find(|(_, value)| !(*value > 0.0 && *value <= MOST));
        let negative = none_or_more.iter().find(|(_, value)| !(0.0..=MOST).contains(value));
        if let Some((field, value)) = positive {
            return Some(format!("{field} {value}: it must be above 0"));
        }
        if let Some((field, value)) = negative {
            return Some(format!("{field} {value}: it must be 0 or more"));
        }
        if self.deviation >= 1.0 {
            return Some(format!("deviation {}: it must be below 1", self.deviation));
        }
        let rises = self
            .step
            .windows(2)
            .all(|pair| pair[0].streams < pair[1].streams && pair[0].seconds <= pair[1].seconds);
        let is_real = |step: &Step| step.streams > 0 && step.seconds > 0.0 && step.seconds <= MOST;
        if self.step.is_empty() || !rises || !self.step.iter().all(is_real) {
            return Some("step: it must have a time above 0 for each rising number of streams".to_owned());
        }
        None
    }

    /// The curve.
    pub(super) fn curve(&self) -> Curve {
        let step = if self.generates {
            StepShape::decode(self.step_tokens)
        } else {
            StepShape { prefill_tokens: self.step_tokens, ..StepShape::default() }
        };
        Curve {
            rate: StreamRate { step, audio_s: self.step_audio_s },
            steps: self.step.iter().map(|step| (step.streams, step.seconds)).collect(),
            prompt_token_s: self.prompt_token_s,
            deviation: self.deviation,
            prompt_tokens: (self.prompt_tokens, self.prompt_tokens_per_char),
            chars_per_s: self.chars_per_s,
            sample_rate: self.sample_rate_hz,
            chunk_samples: self.streaming_chunk_size,
            batch: self.max_batch_size,
            max_streams: self.max_streams,
            max_first_audio_s: self.max_first_audio_s,
        }
    }
}
