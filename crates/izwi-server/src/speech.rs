//! From a client's speech options to the engine's request and its first chunk. HTTP and WebSocket share it.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use futures::stream;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{
    Engine, EngineCoreRequest, EngineError, FinishReason, GenerationParams, ReferenceAudio, RequestId,
    RequestStats, SpeechOptions, StreamingOutput, Task, VoiceInput,
};
use izwi_types::{TextNotes, excerpt, languages};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::encoding::EncodedUtterance;
use crate::error::ApiError;
use crate::extract::{check_range, non_blank, parse_priority};
use crate::record;
use crate::registry::Lease;
use crate::state::AppState;
use crate::stats_headers;
use crate::voices::{self, Voice};

/// Range of `speed`; a model may honour less. <https://platform.openai.com/docs/api-reference/audio/createSpeech>
const SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// Name, for clients, of a voice made of a recording that came with the request or session.
const REFERENCE_NAME: &str = "ref_audio";

/// What a text without words is spoken as.
const SILENCE: Duration = Duration::from_millis(200);
/// The most characters of it that are reported.
const MAX_UNSPOKEN: usize = 32;

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

    /// A voice made of the recording, for several requests; `None` without one.
    pub(crate) async fn into_voice(self, engine: &Engine, id: &RequestId) -> Result<Option<Voice>, ApiError> {
        let Some(VoiceInput::Recording(recording)) = self.reference(engine)? else { return Ok(None) };
        let has_text = recording.text.is_some() && !recording.timbre_only;
        let made = engine.make_voice(recording).await;
        let pack = made.map_err(|error| {
            ApiError::from_engine(error, &engine.profile().model, id).about_recording("ref_audio")
        })?;
        Ok(Some(Voice::Saved { name: REFERENCE_NAME.to_owned(), pack: pack.into(), has_text }))
    }

    /// The recording to clone; `None` without one.
    fn reference(self, engine: &Engine) -> Result<Option<VoiceInput>, ApiError> {
        let members = [
            ("ref_audio", self.ref_audio.is_some()),
            ("ref_text", self.ref_text.is_some()),
            ("x_vector_only_mode", self.x_vector_only_mode),
        ];
        let Some((param, _)) = members.into_iter().find(|(_, is_given)| *is_given) else { return Ok(None) };
        let profile = engine.profile();
        if !profile.info.clones_voices {
            let message =
                format!("model '{}' does not support voice cloning; leave {param} out", profile.model);
            return Err(ApiError::invalid(param, message));
        }
        let Some(base64) = self.ref_audio else {
            let message = format!("{param} is given without ref_audio; send the recording in ref_audio");
            return Err(ApiError::invalid(param, message));
        };
        Ok(Some(VoiceInput::Recording(ReferenceAudio {
            audio: base64.into(),
            text: self.ref_text,
            timbre_only: self.x_vector_only_mode,
        })))
    }
}

/// The requested voice. With a recording to clone only OpenAI's names are accepted, and ignored: their SDKs must send one.
pub(crate) fn voice_beside_recording(
    name: Option<String>,
    has_recording: bool,
) -> Result<Option<String>, ApiError> {
    if !has_recording {
        return Ok(name);
    }
    match name.filter(|name| !name.is_empty() && !voices::is_alias(name)) {
        None => Ok(None),
        Some(name) => {
            let name = excerpt(&name);
            let message = format!("voice '{name}' and ref_audio are both given; leave one out");
            Err(ApiError::invalid("voice", message))
        }
    }
}

/// The voice of a request. A recording to clone takes precedence over a named voice.
#[derive(Debug, Clone, Default)]
pub(crate) struct VoiceChoice {
    pub(crate) voice: Option<Voice>,
    pub(crate) cloning: Cloning,
}

/// Speech options checked against a model.
#[derive(Debug, Clone)]
pub struct ResolvedSpeechOptions {
    /// The engine's request without its text.
    template: EngineCoreRequest,
    voice_name: String,
    /// Whether the voice is prompted with the transcript of its recording.
    has_transcript: bool,
    /// Names of the fields that have no effect.
    ignored: Vec<&'static str>,
}

impl Default for ResolvedSpeechOptions {
    fn default() -> Self {
        let template = EngineCoreRequest::tts("");
        Self { template, voice_name: "default".to_owned(), has_transcript: false, ignored: Vec::new() }
    }
}

impl ResolvedSpeechOptions {
    /// Checks options against the model's abilities. A model that takes no instructions ignores them: clients send them
    /// to any model.
    pub(crate) fn resolve(
        options: SpeechOptions,
        choice: VoiceChoice,
        priority: Option<&str>,
        engine: &Engine,
    ) -> Result<Self, ApiError> {
        let profile = engine.profile();
        let reference = choice.cloning.reference(engine)?;
        let voice = choice.voice.filter(|_| reference.is_none());
        let (instructions, language) = (non_blank(options.instructions), non_blank(options.language));
        let mut ignored = Vec::new();
        let instructions = instructions.filter(|_| {
            if !profile.info.takes_instructions {
                ignored.push("instructions");
            }
            profile.info.takes_instructions
        });
        if matches!(voice, Some(Voice::StandIn(_))) {
            ignored.push("voice");
        }
        if let Some(wanted) = language.as_deref().filter(|wanted| !wanted.eq_ignore_ascii_case("auto"))
            && let known = &profile.info.languages
            && !known.is_empty()
        {
            let checked = languages::supported(wanted, known);
            checked.map_err(|message| ApiError::invalid("language", message))?;
        }
        if let Some(speed) = options.speed {
            check_range("speed", speed, &SPEED)?;
        }
        let priority = parse_priority(priority)?;
        let options = SpeechOptions { instructions, language, ..options };
        check_sampling(&profile.default_params().with(&options))?;
        let mut template = EngineCoreRequest::tts("").with_options(options).with_priority(priority);
        let (voice_name, has_transcript) = match (&voice, &reference) {
            (Some(voice), _) => {
                (voice.name().to_owned(), matches!(voice, Voice::Saved { has_text: true, .. }))
            }
            (None, Some(VoiceInput::Recording(recording))) => {
                (REFERENCE_NAME.to_owned(), !recording.timbre_only && recording.text.is_some())
            }
            (None, Some(VoiceInput::Pack(_))) => (REFERENCE_NAME.to_owned(), true),
            (None, None) => ("default".to_owned(), false),
        };
        match voice {
            Some(Voice::Own(name) | Voice::StandIn(name)) => template.voice = Some(name),
            Some(Voice::Saved { name, pack, .. }) => {
                (template.saved_voice, template.reference) = (Some(name), Some(VoiceInput::Pack(pack)));
            }
            None => template.reference = reference,
        }
        Ok(Self { template, voice_name, has_transcript, ignored })
    }

    /// Checks options against the model's abilities, in a voice that was looked up.
    ///
    /// # Errors
    /// The model does not take the options.
    pub fn of_voice(options: SpeechOptions, voice: Option<Voice>, engine: &Engine) -> Result<Self, ApiError> {
        Self::resolve(options, VoiceChoice { voice, cloning: Cloning::default() }, None, engine)
    }

    /// Names of the fields that have no effect.
    pub fn ignored(&self) -> &[&'static str] {
        &self.ignored
    }

    /// Whether `engine` can speak text in this voice as it arrives.
    pub fn appends_text(&self, engine: &Engine) -> bool {
        let is_whole = self.template.options.non_streaming_mode == Some(true);
        engine.profile().info.appends_text && !self.has_transcript && !is_whole
    }

    /// What the sound of a text depends on beside the text.
    pub(crate) fn fingerprint(&self, engine: &Engine) -> String {
        let (profile, template) = (engine.profile(), &self.template);
        let voice = match &template.reference {
            Some(VoiceInput::Pack(pack)) => izwi_hub::sha256(pack),
            Some(recording) => izwi_hub::sha256(format!("{recording:?}")),
            None => String::new(),
        };
        let model = format!("{} {} {:?}", profile.model, profile.device, profile.precision);
        format!("{} {model} {:?} {:?} {voice}", env!("CARGO_PKG_VERSION"), template.voice, template.options)
    }

    /// Name of the voice for clients.
    pub(crate) fn voice_name(&self) -> &str {
        &self.voice_name
    }

    /// The engine's request for a single utterance; moves the recording into it.
    pub fn into_request(self, text: String) -> EngineCoreRequest {
        EngineCoreRequest { text: Some(text), ..self.template }
    }

    /// The engine's request for one utterance.
    pub fn request(&self, text: String) -> EngineCoreRequest {
        EngineCoreRequest { id: RequestId::random(), ..self.clone().into_request(text) }
    }
}

/// Refuses values that no request can have, before the first one.
pub(crate) fn check_sampling(params: &GenerationParams) -> Result<(), ApiError> {
    params.sampling().check().map_err(|error| ApiError::invalid(error.param, error.message))?;
    if params.max_tokens == 0 {
        return Err(ApiError::invalid("max_tokens", "max_tokens is 0; it must be at least 1"));
    }
    Ok(())
}

/// Refuses text that is blank or too long.
pub fn check_text(param: &str, text: &str, max_chars: usize) -> Result<(), ApiError> {
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
    // Where text arrives while it is spoken, the engine also waits for the client. Audio that arrives may have no text for as
    // long as it lasts.
    let text_limit = request.text_input.as_ref().map_or(Duration::ZERO, |_| engine.config().text_timeout);
    let limit = if request.audio_stream.is_some() { Duration::MAX } else { limit + text_limit };
    let wordless = request.text.clone().filter(|text| request.task_type == Task::Tts && !has_words(text));
    let started = async {
        let (_, mut chunks) = match engine.generate_streaming(request).await {
            Ok(streaming) => streaming,
            Err(EngineError::InvalidRequest { param, .. }) if param == "input" && wordless.is_some() => {
                return Ok(silence(engine, id.clone(), &wordless.unwrap_or_default()));
            }
            Err(error) => return Err(ApiError::from_engine(error, model, &id)),
        };
        let first = chunks.recv().await;
        Ok((check_first(first, model, &id)?, chunks))
    };
    match tokio::time::timeout(limit, started).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::FirstAudioTimeout(limit.as_secs().max(1))),
    }
}

/// Whether a text has a letter or a digit. Emoji and punctuation alone have none.
fn has_words(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

/// The stream of a text without words that the model cannot speak: a short silence, and the text as what is left out.
/// Players and clients that wait for audio get some.
fn silence(
    engine: &Engine,
    request_id: RequestId,
    text: &str,
) -> (StreamingOutput, mpsc::Receiver<StreamingOutput>) {
    let sample_rate = engine.profile().info.sample_rate_hz;
    let samples = vec![0.0; (SILENCE.as_secs_f64() * f64::from(sample_rate)) as usize];
    let mut unspoken = String::new();
    for character in text.chars().filter(|character| !character.is_whitespace()) {
        if unspoken.chars().count() < MAX_UNSPOKEN && !unspoken.contains(character) {
            unspoken.push(character);
        }
    }
    let stats = RequestStats {
        finish_reason: FinishReason::Stop,
        error: None,
        seed: 0,
        prompt_tokens: 0,
        generated_tokens: 0,
        samples: samples.len() as u64,
        audio_duration: SILENCE,
        accepted_at: Instant::now(),
        prepare_time: Duration::ZERO,
        queue_time: Duration::ZERO,
        generation_time: Duration::ZERO,
        time_to_first_output: None,
        time_to_first_audio: None,
    };
    let chunk = StreamingOutput {
        request_id,
        sequence: 0,
        sample_offset: 0,
        samples,
        words: Vec::new(),
        sample_rate,
        text: None,
        partial: String::new(),
        segments: Vec::new(),
        language: None,
        emissions: Vec::new(),
        emission_ends: Vec::new(),
        is_final: true,
        stats: Some(stats),
        prediction: None,
        notes: TextNotes { unspoken, ..TextNotes::default() },
        pauses: None,
    };
    // Nothing follows the last chunk.
    (chunk, mpsc::channel(1).1)
}

/// Generation failed halfway. The connection is cut, so that no client takes the audio for complete.
#[derive(Debug, thiserror::Error)]
#[error("generation was cut off")]
pub struct CutOff;

impl CutOff {
    /// Logs why a chunk could not be encoded.
    pub fn encoding(error: &EncodeError) -> Self {
        tracing::error!(%error, "audio could not be encoded");
        Self
    }
}

/// The chunks of a generation whose first one has arrived. Dropping them aborts the request.
#[derive(Debug)]
pub struct SpeechChunks {
    /// The engine that generates them.
    pub engine: Lease,
    first: Option<StreamingOutput>,
    rest: mpsc::Receiver<StreamingOutput>,
    is_over: bool,
}

impl SpeechChunks {
    /// Submits a request as [`begin`] does, and keeps the lease until the last chunk.
    pub async fn begin(engine: Lease, request: EngineCoreRequest, limit: Duration) -> Result<Self, ApiError> {
        let (first, rest) = begin(&engine, request, limit).await?;
        Ok(Self { engine, first: Some(first), rest, is_over: false })
    }

    /// Headers about the text and the prediction, until the first chunk is taken.
    pub fn headers(&self, state: &AppState) -> HeaderMap {
        let Some(first) = &self.first else { return HeaderMap::new() };
        let foreign = first.notes.foreign.first();
        let suggested = foreign.and_then(|code| state.speaker_of(code));
        let mut headers = stats_headers::of_notes(&first.notes, suggested.as_deref());
        headers.extend(first.prediction.as_ref().map(stats_headers::of_prediction).unwrap_or_default());
        headers
    }

    /// The next chunk; `None` after the last one, and after an error.
    pub async fn next(&mut self) -> Option<Result<StreamingOutput, CutOff>> {
        if self.is_over {
            return None;
        }
        let chunk = match self.first.take() {
            Some(first) => Some(first),
            None => self.rest.recv().await,
        };
        if let Some(stats) = chunk.as_ref().and_then(|chunk| chunk.stats.as_ref()) {
            record::generated(&self.engine, stats, stats.finish_reason);
        }
        match chunk {
            Some(chunk) if !has_failed(&chunk) => {
                self.is_over = chunk.is_final;
                Some(Ok(chunk))
            }
            failed => {
                let stats = failed.as_ref().map(|chunk| (&chunk.request_id, &chunk.stats));
                tracing::error!(?stats, "generation failed halfway");
                self.is_over = true;
                Some(Err(CutOff))
            }
        }
    }

    /// Gives no further chunk.
    pub fn stop(&mut self) {
        self.is_over = true;
    }

    /// A body of what `encode` makes of each chunk, as the chunks come.
    pub fn into_body(
        self,
        encode: impl FnMut(&StreamingOutput) -> Result<Bytes, CutOff> + Send + 'static,
    ) -> Body {
        Body::from_stream(stream::unfold((self, encode), |(mut chunks, mut encode)| async move {
            let bytes = chunks.next().await?.and_then(|chunk| encode(&chunk));
            if bytes.is_err() {
                chunks.stop();
            }
            Some((bytes, (chunks, encode)))
        }))
    }
}

/// The audio of each chunk alone, for [`SpeechChunks::into_body`].
pub fn audio_of(
    mut encoded: EncodedUtterance,
) -> impl FnMut(&StreamingOutput) -> Result<Bytes, CutOff> + Send {
    move |chunk| encoded.encode(chunk).map_err(|error| CutOff::encoding(&error))
}

fn has_failed(chunk: &StreamingOutput) -> bool {
    let reason = chunk.stats.as_ref().map(|stats| stats.finish_reason);
    matches!(reason, Some(FinishReason::Error | FinishReason::Cancelled))
}

fn check_first(
    first: Option<StreamingOutput>,
    model: &str,
    id: &RequestId,
) -> Result<StreamingOutput, ApiError> {
    let Some(first) = first else { return Err(ApiError::ModelUnavailable(model.to_owned())) };
    match &first.stats {
        Some(stats) if stats.finish_reason == FinishReason::Error => {
            Err(ApiError::from_failure(stats.error.clone(), model, id))
        }
        Some(stats) if stats.finish_reason == FinishReason::Cancelled => Err(ApiError::Draining),
        _ => Ok(first),
    }
}
