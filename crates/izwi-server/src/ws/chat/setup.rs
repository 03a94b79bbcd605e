//! The configuration of a conversation: checked against its model, and made into the engine's requests.

use izwi_audio::chunk::ChunkLengths;
use izwi_core::engine::{ChatOptions, Conversation, EngineCoreRequest, Priority, SpeechOptions};

use crate::chunking::ChunkSizes;
use crate::dto::chat::ConfigFields;
use crate::encoding::{self, OutputFormat};
use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::registry::Lease;
use crate::speech::check_sampling;

/// Range of `input_sample_rate`, in Hz.
const INPUT_RATES: std::ops::RangeInclusive<u32> = 8_000..=48_000;

/// Range of `text_temperature`.
const TEXT_TEMPERATURES: std::ops::RangeInclusive<f32> = 0.0..=2.0;

/// What the session was configured to.
pub(super) struct Setup {
    pub(super) engine: Lease,
    pub(super) output: OutputFormat,
    /// Lengths of the chunks as they are sent, at the rate of the output.
    pub(super) sent_chunks: ChunkLengths,
    /// Rate of the client's audio, in Hz.
    pub(super) input_rate: u32,
    chunks: ChunkSizes,
    options: SpeechOptions,
    text_temperature: Option<f32>,
    priority: Priority,
}

impl Setup {
    /// Checks the fields against the model.
    pub(super) fn resolve(fields: ConfigFields, engine: Lease) -> Result<Self, ApiError> {
        let profile = engine.profile();
        let format = encoding::for_session(fields.response_format.as_deref())?;
        let rate_hz = profile.info.sample_rate_hz;
        let output = OutputFormat::resolve(format, fields.sample_rate, fields.bit_rate, rate_hz)?;
        let chunks_at = |rate_hz| ChunkSizes::resolve(fields.chunk_ms, fields.first_chunk_ms, rate_hz);
        let (chunks, sent_chunks) = (chunks_at(rate_hz)?, chunks_at(output.sample_rate_hz)?.lengths());
        let input_rate = fields.input_sample_rate.unwrap_or(profile.info.input_sample_rate_hz);
        check_range("input_sample_rate", input_rate, &INPUT_RATES)?;
        let priority = parse_priority(fields.priority.as_deref())?;
        let instructions = non_blank(fields.options.instructions);
        let options = SpeechOptions { instructions, speed: None, ..fields.options };
        check_sampling(&profile.default_params().with(&options))?;
        if let Some(temperature) = fields.text_temperature {
            check_range("text_temperature", temperature, &TEXT_TEMPERATURES)?;
        }
        Ok(Self {
            output,
            sent_chunks,
            input_rate,
            chunks,
            options,
            text_temperature: fields.text_temperature,
            priority,
            engine,
        })
    }

    /// The engine's request for the model's turn.
    pub(super) fn request(&self, conversation: Conversation) -> EngineCoreRequest {
        let text_temperature = self.text_temperature;
        let request = EngineCoreRequest::converse(Conversation::new())
            .with_chat(ChatOptions { conversation, text_temperature, ..ChatOptions::default() })
            .with_options(self.options.clone())
            .with_priority(self.priority);
        self.chunks.of(request)
    }
}
