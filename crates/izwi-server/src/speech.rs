//! From a client's speech options to the engine's request and its first chunk. HTTP and WebSocket share it.

use std::sync::Arc;
use std::time::Duration;

use izwi_core::engine::{
    Engine, EngineCoreRequest, FinishReason, GenerationParams, Priority, ReferenceRecording, RequestId,
    StreamingOutput, VoiceReference,
};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::voices::Voice;

/// Range of `speed`; a model may honour less. <https://platform.openai.com/docs/api-reference/audio/createSpeech>
const SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// Speech options of a request, without the name of the voice. The model's defaults stand for absent members.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpeechOptions {
    pub(crate) language: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) speed: Option<f32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) priority: Option<String>,
    pub(crate) streams_text: Option<bool>,
    pub(crate) cloning: Cloning,
}

/// Voice cloning from a recording that comes with the request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cloning {
    pub(crate) ref_audio: Option<String>,
    pub(crate) ref_text: Option<String>,
    pub(crate) x_vector_only_mode: bool,
}

impl Cloning {
    /// Empty strings and false count as absent, because SDKs send them.
    pub(crate) fn new(
        ref_audio: Option<String>,
        ref_text: Option<String>,
        x_vector_only_mode: Option<bool>,
    ) -> Self {
        let x_vector_only_mode = x_vector_only_mode.unwrap_or(false);
        Self { ref_audio: non_blank(ref_audio), ref_text: non_blank(ref_text), x_vector_only_mode }
    }

    pub(crate) fn has_recording(&self) -> bool {
        self.ref_audio.is_some()
    }

    /// The recording to clone; `None` without one.
    fn reference(self, engine: &Engine) -> Result<Option<VoiceReference>, ApiError> {
        let members = [
            ("ref_audio", self.ref_audio.is_some()),
            ("ref_text", self.ref_text.is_some()),
            ("x_vector_only_mode", self.x_vector_only_mode),
        ];
        let Some((param, _)) = members.into_iter().find(|(_, is_given)| *is_given) else { return Ok(None) };
        let profile = engine.profile();
        if !profile.clones_voices {
            let message =
                format!("model '{}' does not support voice cloning; leave {param} out", profile.model);
            return Err(ApiError::invalid(param, message));
        }
        let Some(base64) = self.ref_audio else {
            let message = format!("{param} is given without ref_audio; send the recording in ref_audio");
            return Err(ApiError::invalid(param, message));
        };
        Ok(Some(VoiceReference::Recording(ReferenceRecording {
            audio: base64.into(),
            text: self.ref_text,
            timbre_only: self.x_vector_only_mode,
        })))
    }
}

/// Speech options checked against a model, with its defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedSpeechOptions {
    /// A voice that has a name.
    voice: Option<Voice>,
    /// A recording that came with the request.
    reference: Option<VoiceReference>,
    streams_text: Option<bool>,
    language: Option<String>,
    instructions: Option<String>,
    params: GenerationParams,
    priority: Priority,
}

impl ResolvedSpeechOptions {
    /// Checks options against the model's abilities. A recording in `options` takes precedence over `voice`.
    pub(crate) fn resolve(
        options: SpeechOptions,
        voice: Option<Voice>,
        engine: &Engine,
    ) -> Result<Self, ApiError> {
        let profile = engine.profile();
        let reference = options.cloning.reference(engine)?;
        let voice = voice.filter(|_| reference.is_none());
        let instructions = non_blank(options.instructions);
        if instructions.is_some() && !profile.takes_instructions {
            let message = format!("model '{}' does not support instructions; leave them out", profile.model);
            return Err(ApiError::invalid("instructions", message));
        }
        if let Some(speed) = options.speed {
            check_range("speed", speed, &SPEED)?;
        }
        let priority = parse_priority(options.priority.as_deref())?;
        let defaults = &profile.default_params;
        let params = GenerationParams {
            temperature: options.temperature.unwrap_or(defaults.temperature),
            top_p: options.top_p.unwrap_or(defaults.top_p),
            top_k: options.top_k.unwrap_or(defaults.top_k),
            max_tokens: options.max_tokens.unwrap_or(defaults.max_tokens),
            repetition_penalty: options.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            speed: options.speed.unwrap_or(defaults.speed),
            seed: options.seed.or(defaults.seed),
        };
        let (language, streams_text) = (non_blank(options.language), options.streams_text);
        Ok(Self { voice, reference, streams_text, language, instructions, params, priority })
    }

    /// Name of the voice for clients.
    pub(crate) fn voice_name(&self) -> &str {
        match (&self.voice, &self.reference) {
            (Some(voice), _) => voice.name(),
            (None, Some(_)) => "ref_audio",
            (None, None) => "default",
        }
    }

    /// The engine's request for a single utterance; moves the recording into it.
    pub(crate) fn into_request(mut self, text: String) -> EngineCoreRequest {
        let reference = self.reference.take();
        let mut request = self.request(text);
        request.reference = reference.or(request.reference);
        request
    }

    /// The engine's request for one utterance.
    pub(crate) fn request(&self, text: String) -> EngineCoreRequest {
        let mut request = EngineCoreRequest::tts(text)
            .with_params(self.params.clone())
            .with_priority(self.priority)
            .with_streaming(true);
        match &self.voice {
            Some(Voice::Own(name)) => request.voice = Some(name.clone()),
            Some(Voice::Saved { pack, .. }) => {
                request.reference = Some(VoiceReference::Pack(Arc::clone(pack)));
            }
            None => request.reference.clone_from(&self.reference),
        }
        request.streams_text = self.streams_text;
        request.language.clone_from(&self.language);
        request.instructions.clone_from(&self.instructions);
        request
    }
}

/// Refuses text that is blank or too long.
pub(crate) fn check_text(param: &str, text: &str, max_chars: usize) -> Result<(), ApiError> {
    if text.trim().is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty; send some text")));
    }
    if text.chars().nth(max_chars).is_some() {
        let message = format!("{param} has more than {max_chars} characters; send it in parts");
        return Err(ApiError::invalid(param, message));
    }
    Ok(())
}

/// Submits a request and waits for its first chunk. A failure until then is an error with a status of its own.
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
