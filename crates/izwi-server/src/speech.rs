//! From what a client wants spoken to its first audio: the checks that both speaking interfaces share.

use std::time::Duration;

use izwi_core::engine::{
    Engine, EngineCoreRequest, FinishReason, GenerationParams, Priority, RequestId, StreamingOutput,
};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::voices;

/// Range of `speed`; a model may honour less. <https://platform.openai.com/docs/api-reference/audio/createSpeech>
const SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// How to speak. Absent members leave the choice to the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpeechOptions {
    pub(crate) voice: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) speed: Option<f32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) priority: Option<String>,
}

/// How to speak, checked against a model and complete.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    /// The real voice, where the model has voices.
    pub(crate) voice: Option<String>,
    language: Option<String>,
    instructions: Option<String>,
    params: GenerationParams,
    priority: Priority,
}

impl Manner {
    /// Checks options against what the model can do.
    pub(crate) fn resolve(options: SpeechOptions, engine: &Engine) -> Result<Self, ApiError> {
        let profile = engine.profile();
        let voice = voices::resolve(profile, options.voice.as_deref())?.map(|voice| voice.id.clone());
        // SDKs send an empty string for "none".
        let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        let instructions = given(options.instructions);
        if instructions.is_some() && !profile.takes_instructions {
            let message = format!("model '{}' takes no style prompt; leave instructions out", profile.model);
            return Err(ApiError::invalid("instructions", message));
        }
        if let Some(speed) = options.speed.filter(|speed| !SPEED.contains(speed)) {
            let message =
                format!("speed is {speed}; it must be between {} and {}", SPEED.start(), SPEED.end());
            return Err(ApiError::invalid("speed", message));
        }
        let priority = match options.priority.as_deref() {
            None => Priority::Normal,
            Some(text) => text.parse().map_err(|message: String| ApiError::invalid("priority", message))?,
        };
        let defaults = profile.default_params.clone();
        let params = GenerationParams {
            temperature: options.temperature.unwrap_or(defaults.temperature),
            top_p: options.top_p.unwrap_or(defaults.top_p),
            top_k: options.top_k.unwrap_or(defaults.top_k),
            max_tokens: options.max_tokens.unwrap_or(defaults.max_tokens),
            speed: options.speed.unwrap_or(defaults.speed),
            seed: options.seed.or(defaults.seed),
            ..defaults
        };
        Ok(Self { voice, language: given(options.language), instructions, params, priority })
    }

    /// The engine's request for one utterance.
    pub(crate) fn request(&self, text: String) -> EngineCoreRequest {
        let mut request = EngineCoreRequest::tts(text)
            .with_params(self.params.clone())
            .with_priority(self.priority)
            .with_streaming(true);
        request.voice.clone_from(&self.voice);
        request.language.clone_from(&self.language);
        request.instructions.clone_from(&self.instructions);
        request
    }
}

/// Refuses text that is blank or too long.
pub(crate) fn check_text(param: &str, text: &str, max_chars: usize) -> Result<(), ApiError> {
    if text.trim().is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty; give some text to speak")));
    }
    if text.chars().nth(max_chars).is_some() {
        let message = format!("{param} has more than {max_chars} characters; send it in parts");
        return Err(ApiError::invalid(param, message));
    }
    Ok(())
}

/// Submits a request and waits for its first chunk: until then a failure can still be told as what it is.
pub(crate) async fn begin(
    engine: &Engine,
    request: EngineCoreRequest,
    limit: Duration,
) -> Result<(StreamingOutput, mpsc::Receiver<StreamingOutput>), ApiError> {
    let model = &engine.profile().model;
    let id = request.id.clone();
    let started = async {
        let streaming = engine.generate_streaming(request).await;
        let (_, mut chunks) = streaming.map_err(|error| ApiError::from_engine(error, model, &id))?;
        let first = chunks.recv().await;
        Ok((check_first(first, model, &id)?, chunks))
    };
    match tokio::time::timeout(limit, started).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::FirstAudioTimeout(limit.as_secs().max(1))),
    }
}

fn check_first(
    first: Option<StreamingOutput>,
    model: &str,
    id: &RequestId,
) -> Result<StreamingOutput, ApiError> {
    let Some(first) = first else { return Err(ApiError::ModelUnavailable(model.to_owned())) };
    match &first.stats {
        Some(stats) if stats.finish_reason == FinishReason::Error => {
            Err(ApiError::internal(stats.error.as_deref().unwrap_or("(no details)"), id))
        }
        Some(stats) if stats.finish_reason == FinishReason::Cancelled => Err(ApiError::Draining),
        _ => Ok(first),
    }
}
